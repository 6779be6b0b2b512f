// SPDX-License-Identifier: Apache-2.0

package rerun

import "testing"

// Each level of a test's name becomes one expression that matches only this level. A point replaces a quote.
func TestCommand(t *testing.T) {
	t.Setenv("RERUN_SET", "7")
	for name, want := range map[string]string{
		"a b":        `^a_b$`,
		"a/b (1)":    `^a$/^b_\(1\)$`,
		"it's [1].*": `^it.s_\[1\]\.\*$`,
	} {
		t.Run(name, func(t *testing.T) {
			want := `RERUN_SET=7 go test ./site/sim/rerun -run '^TestCommand$/` + want + `'`
			if got := Command(t, "RERUN_UNSET", "RERUN_SET"); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}
