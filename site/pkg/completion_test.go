// SPDX-License-Identifier: Apache-2.0

package pkg

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
)

// completed returns the words to which bash completes the last word. A function replaces the wrapper's help.
func completed(t *testing.T, words ...string) []string {
	t.Helper()
	const script = `source mpirun-wrap.bash
mpirun-wrap() { echo "  --share SHARE  x"; echo "  --report  x"; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _mpirun_wrap mpirun-wrap "${COMP_WORDS[COMP_CWORD]}"
printf '%s\n' "${COMPREPLY[@]}"`
	out, err := exec.Command("bash", append([]string{"-c", script, "bash", "mpirun-wrap"}, words...)...).Output()
	if err != nil {
		t.Fatalf("%q: %v", words, err)
	}
	return strings.Fields(string(out))
}

func TestCompletionOfTheWrapper(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"-", "--share --report --help"}, {"--gpu bl", "block"}, {"--gpu = bl", "block"}, {"--report --priority =", "normal low"},
		{"--share even -", "--share --report --help"}, {"--report = true --mem e", "even"}, {"--report = t", ""}, {"--local-rank 1", ""},
		{"tru", "true"}, {"--share = even tru", "true"}, {"-- tru", "true"}, {"env tru", "true"}, {"env --gpu", ""},
	} {
		got := slices.Compact(completed(t, strings.Fields(c.line)...))
		if c.want == "true" && slices.Contains(got, "true") {
			continue
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %s", c.line, got, c.want)
		}
	}
}

// TestCompletionFollowsTheFlags checks that the script knows which flags have a value, and that it offers only values
// that the wrapper accepts.
func TestCompletionFollowsTheFlags(t *testing.T) {
	for _, s := range mpirunwrap.Settings() {
		if s.Value == "" {
			continue
		}
		values := completed(t, "--"+s.Flag, "")
		if slices.Contains(values, "mpirun-wrap.bash") {
			t.Errorf("--%s completes to files and programs: the script treats it as a switch", s.Flag)
		}
		for _, value := range values {
			if strings.HasSuffix(value, ":") {
				value += "2"
			}
			if err := new(mpirunwrap.Options).Set(s.Flag, value); err != nil {
				t.Error(err)
			}
		}
	}
}
