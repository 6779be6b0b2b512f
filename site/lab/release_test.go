// SPDX-License-Identifier: Apache-2.0

package lab

import "testing"

func TestParseRelease(t *testing.T) {
	for text, want := range map[string]string{
		"slurm-wlm 22.05.8\n":  "22.05",
		"slurm 24.11.5\n":      "24.11",
		"slurm 25.05.0-0rc1\n": "25.05",
		"":                     "", "slurmd: error: x": "", "slurm 5.1.0": "", "slurm": "", "other 24.11.5": "",
	} {
		if got := parseRelease(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
