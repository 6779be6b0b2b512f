// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

const module = "../../.."

// The page's bound is that of the sum of all runs.
func TestThePageHasTheSum(t *testing.T) {
	sum, err := sumOf(filepath.Join(module, lines))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(module, page))
	if err != nil {
		t.Fatal(err)
	}
	if now, err := replaceSum(string(text), sum); err != nil || now != string(text) {
		t.Errorf("%s lacks %q (%v): go run ./site/lab/million -sum", page, sum.sentence(), err)
	}
}

// The bounds are those of tables of the Poisson distribution: 2.996, 4.744 and 10.513 for none, one and five.
func TestBound(t *testing.T) {
	for drains, want := range map[int]float64{0: 2.996, 1: 4.744, 5: 10.513} {
		if got := bound(1_000_000, drains); math.Abs(got-want) > 0.001 {
			t.Errorf("%d in a million: at most %v, want %v", drains, got, want)
		}
	}
	for _, c := range []struct {
		sum  run
		want string
	}{
		{run{pairs: 1_100_000}, "0 false drains in 1,100,000 pairs of hooks (`make million`): 2.8 in a million"},
		{run{pairs: 20_000}, "0 false drains in 20,000 pairs of hooks (`make million`): 150 in a million"},
		{run{pairs: 1_000, drains: 1}, "1 false drains in 1,000 pairs of hooks (`make million`): 4,800 in a million"},
	} {
		c.want += " at most, by 95 %"
		if got := c.sum.sentence(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
		if !sumLine.MatchString(c.want) {
			t.Errorf("no page can have %s", c.want)
		}
	}
}

// A run adds a line, and the sum is in the page.
func TestNote(t *testing.T) {
	top := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(top, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(lines, "# a note\n2026-11-28\tabc\t1000\t0\t60\n")
	write(page, "Before.\n* "+run{pairs: 1}.sentence()+". After.\n")
	if err := note(top, run{"2026-11-29", "def", 2000, 1, 120}); err != nil {
		t.Fatal(err)
	}
	sum, err := sumOf(filepath.Join(top, lines))
	if want := (run{pairs: 3000, drains: 1, seconds: 180}); err != nil || sum != want {
		t.Errorf("the sum is %+v, %v, want %+v", sum, err, want)
	}
	text, _ := os.ReadFile(filepath.Join(top, page))
	if want := "Before.\n* " + sum.sentence() + ". After.\n"; string(text) != want {
		t.Errorf("the page has\n%swant\n%s", text, want)
	}
	more := "2026-11-28\tabc\t10\t11\t1\n"
	for _, bad := range []string{"", "# only a note\n", more, "2026-11-28 abc 10 0 1\n", "torn\n"} {
		write(lines, bad)
		if _, err := sumOf(filepath.Join(top, lines)); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
	if _, err := replaceSum("nothing", sum); err == nil {
		t.Error("a page without the sum is no error")
	}
}

// A good pair drains nothing; a hook that fails is counted as a drain, and what it printed is kept.
func TestPair(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("hooks need root")
	}
	built, err := testnode.Built()
	if err != nil {
		t.Fatal(err)
	}
	err = onNode(built, func(n testnode.Node, conf string) error {
		for id := range uint32(2) {
			if drained, err := pair(n, conf, 7+id); err != nil || drained != "" {
				t.Errorf("a good pair drains: %s, %v", drained, err)
			}
		}
		if left, err := n.Left(); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
		gpus, err := n.Sim.Node.GPUs()
		if err != nil {
			return err
		}
		if err := gpus[0].Fail("nvmlDeviceSetComputeMode", 999, 0); err != nil {
			return err
		}
		drained, err := pair(n, conf, 9)
		if err != nil || !strings.Contains(drained, "the prolog of job 9 ends with 1") {
			t.Errorf("a GPU whose mode cannot be set gives %q, %v", drained, err)
		}
		folder := t.TempDir()
		if err := keep(n, folder, 1, drained); err != nil {
			return err
		}
		kept, _ := os.ReadFile(filepath.Join(folder, "drain-1.txt"))
		if !strings.Contains(string(kept), drained) || !strings.Contains(string(kept), `"program":"prolog"`) {
			t.Errorf("kept is %s", kept)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
