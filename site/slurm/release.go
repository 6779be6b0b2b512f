// SPDX-License-Identifier: Apache-2.0

package slurm

import "strings"

// ParseRelease returns the release in the output of a command of Slurm with -V: "22.05" of "slurm-wlm 22.05.8", as
// Debian has it, and "24.11" of "slurm 24.11.5". It returns "" for another text.
func ParseRelease(printed string) string {
	program, version, _ := strings.Cut(strings.TrimSpace(printed), " ")
	year, rest, _ := strings.Cut(version, ".")
	month, _, patched := strings.Cut(rest, ".")
	if _, err := parseDigits(year + month); err != nil || !patched || len(year) != 2 || len(month) != 2 || !strings.HasPrefix(program, "slurm") {
		return ""
	}
	return year + "." + month
}
