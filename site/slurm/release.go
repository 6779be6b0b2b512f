// SPDX-License-Identifier: Apache-2.0

package slurm

import "strings"

// ParseRelease returns the release in what a command of Slurm prints with -V: "22.05" of "slurm-wlm 22.05.8", as
// Debian has it, and "24.11" of "slurm 24.11.5". It returns "" for another text.
func ParseRelease(printed string) string {
	program, version, _ := strings.Cut(strings.TrimSpace(printed), " ")
	parts := strings.Split(version, ".")
	if !strings.HasPrefix(program, "slurm") || len(parts) < 3 || !twoDigits(parts[0]) || !twoDigits(parts[1]) {
		return ""
	}
	return parts[0] + "." + parts[1]
}

func twoDigits(text string) bool {
	return len(text) == 2 && strings.Trim(text, "0123456789") == ""
}
