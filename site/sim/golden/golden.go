// SPDX-License-Identifier: Apache-2.0

// Package golden compares the result of a test with a file in its testdata. The flag -update writes the file again.
package golden

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/rerun"
	"github.com/slurm-mps/slurm-mps/site/sim/txtar"
)

var update = flag.Bool("update", false, "write the goldens again: read the difference before you commit it")

// Compare fails the test if the file differs from the result. It prints the lines that differ, and the command that
// writes the file again.
func Compare(t testing.TB, path, got string) {
	t.Helper()
	want, err := os.ReadFile(path)
	compare(t, path, string(want), err, got, func() error { return os.WriteFile(path, []byte(got), 0o644) })
}

// CompareIn is Compare for a file of an archive (site/sim/txtar).
func CompareIn(t testing.TB, archive, name, got string) {
	t.Helper()
	a, err := txtar.Read(archive)
	want, found := a.Files[name]
	if err == nil && !found {
		err = fmt.Errorf("%s has no file %s", archive, name)
	}
	compare(t, archive+": "+name, want, err, got, func() error { return txtar.Put(archive, name, got) })
}

func compare(t testing.TB, name, want string, err error, got string, write func() error) {
	t.Helper()
	switch {
	case *update:
		must.OK(t, write())
	case err != nil:
		t.Fatalf("%v\nto write it: %s -update", err, rerun.Command(t))
	case got != want:
		t.Errorf("%s (-) differs from the result (+):\n%sto write it again: %s -update", name, Diff(want, got), rerun.Command(t))
	}
}

const (
	around   = 3   // lines before and after a difference
	maxLines = 100 // of a difference
)

// edit is a line of a difference. It is in both texts (' '), only in the first ('-') or only in the second ('+').
type edit struct {
	mark byte
	line string
	at   int // the line's number in the second text, from 1
}

// Diff returns the lines in which two texts differ, with some lines before and after them. Equal texts give "".
func Diff(want, got string) string {
	edits := edits(strings.SplitAfter(want, "\n"), strings.SplitAfter(got, "\n"))
	shown := make([]bool, len(edits))
	for i, e := range edits {
		if e.mark != ' ' {
			for k := max(0, i-around); k < min(len(edits), i+around+1); k++ {
				shown[k] = true
			}
		}
	}
	var out strings.Builder
	lines := 0
	for i, e := range edits {
		if !shown[i] || e.line == "" {
			continue
		}
		if lines++; lines > maxLines {
			out.WriteString("... and more\n")
			break
		}
		if i == 0 || !shown[i-1] {
			fmt.Fprintf(&out, "line %d:\n", e.at)
		}
		fmt.Fprintf(&out, "%c %s", e.mark, e.line)
		if !strings.HasSuffix(e.line, "\n") {
			out.WriteString("\n  (without a newline at the end)\n")
		}
	}
	return out.String()
}

// edits returns the lines of both texts in order. It keeps their longest common subsequence.
func edits(a, b []string) []edit {
	common := make([][]int, len(a)+1) // [i][j]: the length of the longest common subsequence of a[i:] and b[j:]
	common[len(a)] = make([]int, len(b)+1)
	for i := len(a) - 1; i >= 0; i-- {
		common[i] = make([]int, len(b)+1)
		for j := len(b) - 1; j >= 0; j-- {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var all []edit
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			all = append(all, edit{' ', a[i], j + 1})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			all = append(all, edit{'-', a[i], j + 1})
			i++
		default:
			all = append(all, edit{'+', b[j], j + 1})
			j++
		}
	}
	return all
}
