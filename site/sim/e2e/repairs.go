// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// ofOthers are programs that a repair may name, and that a machine of tests may lack.
var ofOthers = []string{"mpsctl", "scontrol", "scancel", "slurmd", "systemctl", "nvidia-smi", "nvidia-cuda-mps-control", "modprobe",
	"dpkg", "rpm", "sudo", "dmesg", "man", "${EDITOR:-vi}"}

// CanBePasted checks that a person can paste each step of a repair. A step is a command, or a remark, a colon and a
// command. A shell parses the command, and its programs exist.
func CanBePasted(t *testing.T, repair string) {
	t.Helper()
	for _, command := range Commands(repair) {
		if out, err := exec.Command("sh", "-n", "-c", command).CombinedOutput(); err != nil {
			t.Errorf("a shell does not parse %q: %s", command, out)
		}
		for part := range strings.SplitSeq(strings.ReplaceAll(command, "&&", "|"), "|") {
			program, _, _ := strings.Cut(strings.TrimSpace(part), " ")
			if _, err := exec.LookPath(program); err != nil && !slices.Contains(ofOthers, program) {
				t.Errorf("%q is no command: %v", command, err)
			}
		}
	}
}

// Commands returns the steps of a repair without their remarks.
func Commands(repair string) (all []string) {
	for step := range strings.SplitSeq(repair, "; ") {
		if _, command, remarked := strings.Cut(step, ": "); remarked {
			step = command
		}
		all = append(all, step)
	}
	return all
}
