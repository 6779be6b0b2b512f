// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestSplitWords(t *testing.T) {
	for line, want := range map[string][]string{
		"":                                  nil,
		"  srun\t-n {ranks} ":               {"srun", "-n", "{ranks}"},
		`srun --export="A B" -n{ranks}`:     {"srun", "--export=A B", "-n{ranks}"},
		`a 'b "c" \d' "e 'f' \" \\ \g"`:     {"a", `b "c" \d`, `e 'f' " \ \g`},
		`a '' "" b\ c \"`:                   {"a", "", "", "b c", `"`},
		`sh -c 'srun "$@" | tee log' sh`:    {"sh", "-c", `srun "$@" | tee log`, "sh"},
		"mpirun -x 'Ä ö'":                   {"mpirun", "-x", "Ä ö"},
		`srun --comment='it'"'"'s' {ranks}`: {"srun", "--comment=it's", "{ranks}"},
	} {
		if got, err := splitWords(line); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", line, got, err, want)
		}
	}
	for line, want := range map[string]string{
		`srun "a`:        `a quote " is open at its end: close it`,
		`srun 'a" b`:     `a quote ' is open at its end: close it`,
		`srun a\`:        `it ends in a backslash`,
		"srun a | tee b": "no shell runs it, so | has no effect",
		"srun a; srun b": "no shell runs it, so ; has no effect",
	} {
		got, err := splitWords(line)
		if got != nil || !strings.HasPrefix(fmt.Sprint(err), "cannot read --launcher ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v, want %s", line, got, err, want)
		}
	}
}
