// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// completed returns the words to which bash completes the last word. A function replaces the wrapper's help.
func completed(t *testing.T, words ...string) []string {
	t.Helper()
	const script = `source completion/mpirun-wrap.bash
mpirun-wrap() { echo "  --share SHARE  x"; echo "  --report  x"; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _mpirun_wrap mpirun-wrap "${COMP_WORDS[COMP_CWORD]}"
printf '%s\n' "${COMPREPLY[@]}"`
	out, err := exec.Command("bash", append([]string{"-c", script, "bash", "mpirun-wrap"}, words...)...).Output()
	must.Have(t, err == nil, "%q: %v", words, err)
	return strings.Fields(string(out))
}

// TestCompletionFollowsTheFlags checks that the script knows which flags have a value, and that it offers only values
// that the wrapper accepts.
func TestCompletionFollowsTheFlags(t *testing.T) {
	for _, s := range mpirunwrap.Settings {
		if s.Value == "" {
			continue
		}
		values := completed(t, "--"+s.Flag, "")
		must.Hold(t, !slices.Contains(values, "completion"),
			"--%s completes to files and programs: the script treats it as a switch", s.Flag)
		for _, value := range values {
			if strings.HasSuffix(value, ":") {
				value += "2"
			}
			must.Note(t, new(mpirunwrap.Options).Set(s.Flag, value))
		}
	}
}

// flagsOf are the forms of a flag in the scripts of fish and zsh: its name, a mark if it has a value, and the values.
// Each form has one of the marks.
var flagsOf = map[string]*regexp.Regexp{
	"fish": regexp.MustCompile(`(?m)^complete -c mpirun-wrap -l ([a-z-]+)(?: -s v)?( -x)?(?: -a '([^'(]*)')?`),
	"zsh": regexp.MustCompile(`(?m)^ +(?:'\(-v --verbose\)'\{-v,--verbose\})?'(?:--([a-z-]+))?` +
		`(=)?-?\[[^]]*\](?::[a-z]+:(?:\(([^)]*)\))?)?`),
}

// TestFishAndZsh checks that these scripts have exactly the flags of the wrapper, and only values that it accepts.
func TestFishAndZsh(t *testing.T) {
	for shell, form := range flagsOf {
		file := "completion/mpirun-wrap." + shell
		text := must.Get(os.ReadFile(file))(t)
		known := map[string]bool{"root": true, "version": false, "help": false} // whether it needs a value
		for _, s := range mpirunwrap.Settings {
			known[s.Flag] = s.Value != ""
		}
		known["slots"] = false // its value is optional
		for _, m := range form.FindAllStringSubmatch(string(text), -1) {
			flag := m[1]
			if flag == "" {
				flag = "verbose"
			}
			value, ok := known[flag]
			if delete(known, flag); !ok || value != (m[2] != "" && flag != "slots") {
				t.Errorf("%s: --%s is no flag, stands there twice, or is wrong about having a value", file, flag)
			}
			for _, word := range strings.Fields(strings.ReplaceAll(m[3], `\`, "")) {
				if strings.HasSuffix(word, ":") {
					word += "2"
				}
				if err := new(mpirunwrap.Options).Set(flag, word); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
		}
		for flag := range known {
			t.Errorf("%s lacks --%s", file, flag)
		}
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		if out, err := exec.Command(shell, "-n", file).CombinedOutput(); err != nil {
			t.Errorf("%s cannot parse %s: %v: %s", shell, file, err, out)
		}
	}
}

// behind runs what bash runs to complete the last word of a line that begins with srun. Two functions replace those of
// bash-completion: one completes at an offset, and one loads the completion of srun.
func behind(t *testing.T, load, line string) string {
	t.Helper()
	const script = `_command_offset() { echo "offset $1"; }
_completion_loader() { ` + "eval \"$LOAD\"" + `; }
compopt() { echo "compopt $*"; }
_srun() { echo "own ${*@Q}"; }
source completion/behind.bash
complete_last() {
    [[ $(complete -p srun) =~ ' -F '([^ ]+)' ' ]] || { echo "no function"; exit; }
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    "${BASH_REMATCH[1]}" srun "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
}
complete_last srun --help >/dev/null # the second time must be like the first
complete_last "$@"
complete -p srun`
	cmd := exec.Command("bash", append([]string{"-c", script, "bash"}, strings.Fields(line)...)...)
	cmd.Env = append(os.Environ(), "LOAD="+load)
	out, err := cmd.CombinedOutput()
	must.Have(t, err == nil, "%q: %v: %s", line, err, out)
	return string(out)
}

// TestCompletionBehindALauncher checks that the example completes our programs behind srun, and that all other words
// are completed by Slurm's function with Slurm's options.
func TestCompletionBehindALauncher(t *testing.T) {
	const slurms, ours = "complete -o nospace -F _srun srun", "complete -o nospace -F _slurm_mps_behind srun\n"
	const none = "complete -F _slurm_mps_behind srun\n"
	for _, c := range []struct{ load, line, want string }{
		{slurms, "srun -n2 mpirun-wrap --sh", "offset 2\n" + ours},
		{slurms, "srun /usr/bin/mps-tune --", "offset 1\n" + ours},
		{slurms, "srun --part", "own 'srun' '--part' 'srun'\n" + ours},
		{slurms, "srun mpirun-w", "own 'srun' 'mpirun-w' 'srun'\n" + ours},
		{"false", "srun --part", "compopt -o bashdefault -o default\n" + none},
		{"complete -F _minimal srun", "srun ./a", "compopt -o bashdefault -o default\n" + none},
		{"complete -W 'a b' srun", "srun mpirun-wrap --gpu", "offset 1\n" + none},
	} {
		if got := behind(t, c.load, c.line); got != c.want {
			t.Errorf("%s, %s: got %q, want %q", c.load, c.line, got, c.want)
		}
	}
}
