// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/spf13/cobra"
)

// ends is a command that ends with an error, or without one.
func ends(err error) Constructor {
	return func(call *Invocation) *cobra.Command {
		return &cobra.Command{Use: "end", Args: NoArgs, RunE: func(*cobra.Command, []string) error {
			fmt.Fprint(call.Out, call.JSON, call.Paths.Root)
			return err
		}}
	}
}

func runRoot(maker Constructor, args ...string) (code int, out, complaint string) {
	var o, e bytes.Buffer
	code = Run(cli.Process{Args: args, Out: &o, Err: &e}, maker)
	return code, o.String(), e.String()
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err       error
		code      int
		complaint string
	}{
		{nil, 0, ""},
		{cli.ErrFindings, 1, ""},
		{cli.RuntimeError{Err: errors.New("cannot do it: no\nreason")}, 1, "mpsctl: cannot do it: no; reason\n"},
		{fmt.Errorf("cannot end: %w", cli.RuntimeError{Err: errors.New("no space left")}), 1, "mpsctl: cannot end: no space left\n"},
		{errors.New("cannot read that"), 2, "mpsctl: cannot read that\n"},
		{WriteError("end", nil), 0, ""},
		{WriteError("end", errors.New("no space left")), 1, "mpsctl: cannot print end: no space left\n"},
	} {
		code, _, complaint := runRoot(ends(c.err), "end")
		if code != c.code || complaint != c.complaint {
			t.Errorf("%v: code %d, %q, want %d, %q", c.err, code, complaint, c.code, c.complaint)
		}
	}
}

// A wrong command line gives exit code 2 and one sentence, and prints nothing on stdout.
func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"bogus":               `cannot run "bogus": there is no such command: see mpsctl --help`,
		"en":                  `cannot run "en": there is no such command: did you mean end?`,
		"versoin":             `cannot run "versoin": there is no such command: did you mean version?`,
		"help bogus":          `cannot run "bogus": there is no such command: see mpsctl --help`,
		"help end more":       `cannot take "more": mpsctl end takes flags alone: see mpsctl end --help`,
		"version more":        `cannot take "more": mpsctl version takes flags alone: see mpsctl version --help`,
		"end more":            `cannot take "more": mpsctl end takes flags alone: see mpsctl end --help`,
		"end --bogus":         "cannot read flags: unknown flag: --bogus: see mpsctl end --help",
		"end --jsno":          "cannot read flags: unknown flag: --jsno: did you mean --json?",
		"end -json":           "cannot read flags: unknown shorthand flag: 'j' in -json: did you mean --json?",
		"--root tmp end":      `cannot use --root "tmp": give an absolute path`,
		"completion":          `cannot complete for []: name one shell: bash, zsh or fish`,
		"completion tcsh":     `cannot complete for ["tcsh"]: name one shell: bash, zsh or fish`,
		"completion bash 1 2": `cannot complete for ["bash" "1" "2"]: name one shell: bash, zsh or fish`,
		"completion bash zsh": `cannot complete for ["bash" "zsh"]: name one shell: bash, zsh or fish`,
	} {
		code, out, complaint := runRoot(ends(nil), strings.Fields(args)...)
		if code != cli.ExitUsage || out != "" || complaint != "mpsctl: "+want+"\n" {
			t.Errorf("%q: code %d, printed %q\ngot  %swant mpsctl: %s", args, code, out, complaint, want)
		}
	}
}

// help and version are commands, and so are --help and --version flags.
func TestHelpAndVersionAreCommands(t *testing.T) {
	for args, same := range map[string]string{"help": "--help", "help end": "end --help", "version": "--version"} {
		code, out, complaint := runRoot(ends(nil), strings.Fields(args)...)
		_, want, _ := runRoot(ends(nil), strings.Fields(same)...)
		if code != 0 || out == "" || out != want || complaint != "" {
			t.Errorf("%q: code %d, printed %q, want %q, %s", args, code, out, want, complaint)
		}
	}
}

// Every command has --json and --root, before its name or after it.
func TestFlagsOfAll(t *testing.T) {
	for _, args := range []string{"--json --root /x end", "end --json --root /x", "--root=/x end --json"} {
		if code, out, complaint := runRoot(ends(nil), strings.Fields(args)...); code != 0 || out != "true/x" {
			t.Errorf("%q: code %d, %q, %s", args, code, out, complaint)
		}
	}
}

// A command that is a program has the same flags, errors and exit codes, below its own name.
func TestRunAlone(t *testing.T) {
	failed := cli.RuntimeError{Err: errors.New("cannot do it")}
	for _, c := range []struct {
		args           string
		err            error
		code           int
		out, complaint string
	}{
		{"--json --root /x", nil, 0, "true/x", ""},
		{"--version", failed, 0, cli.Version() + "\n", ""},
		{"", cli.ErrFindings, 1, "false", ""},
		{"", failed, 1, "false", "end: cannot do it\n"},
		{"more", nil, 2, "", `end: cannot take "more": end takes flags alone: see end --help` + "\n"},
		{"--bogus", nil, 2, "", "end: cannot read flags: unknown flag: --bogus: see end --help\n"},
		{"--root tmp", nil, 2, "", `end: cannot use --root "tmp": give an absolute path` + "\n"},
	} {
		var o, e bytes.Buffer
		code := RunAlone(cli.Process{Args: strings.Fields(c.args), Out: &o, Err: &e}, ends(c.err))
		if code != c.code || o.String() != c.out || e.String() != c.complaint {
			t.Errorf("%q: code %d, printed %q, %q, want %+v", c.args, code, o.String(), e.String(), c)
		}
	}
}

// Each script is valid in the language of its shell, if the shell is installed. The scripts complete by asking
// mpsctl.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, out, complaint := runRoot(ends(nil), "completion", shell)
		if code != 0 || complaint != "" || !strings.Contains(out, "__complete") {
			t.Errorf("%s: code %d, %s", shell, code, complaint)
		}
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		check := exec.Command(shell, "-n")
		check.Stdin = strings.NewReader(out)
		if said, err := check.CombinedOutput(); err != nil || len(said) > 0 {
			t.Errorf("%s cannot parse its script: %v: %s", shell, err, said)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, out, _ := runRoot(ends(nil), "completion", shell, "mps-tune")
		if code != 0 || !strings.Contains(out, " for mps-tune ") || strings.Contains(out, "mpsctl") {
			t.Errorf("%s: code %d: this does not complete mps-tune:\n%.200s", shell, code, out)
		}
	}
	if _, out, _ := runRoot(ends(nil), "__complete", "completion", ""); !strings.HasPrefix(out, "bash\nzsh\nfish\n") {
		t.Errorf("shells complete to %q", out)
	}
	if _, out, _ := runRoot(ends(nil), "__complete", ""); !strings.Contains(out, "end\n") || !strings.Contains(out, "completion\t") || strings.Contains(out, "no-help") {
		t.Errorf("commands complete to %q", out)
	}
}

// Every help fits a terminal of 80 columns.
func TestHelpFits80Columns(t *testing.T) {
	lines := []string{""}
	for len(lines) > 0 {
		line := strings.Fields(lines[0])
		var o, e bytes.Buffer
		if code := Run(cli.Process{Args: append(line, "--help"), Out: &o, Err: &e}, Commands()...); code != 0 {
			t.Errorf("help of %q: code %d, %s", line, code, &e)
		}
		_, list, _ := strings.Cut(o.String(), "\nAvailable Commands:\n")
		list, _, _ = strings.Cut(list, "\n\n")
		for below := range strings.Lines(list) {
			lines = append(lines, lines[0]+" "+strings.Fields(below)[0])
		}
		for text := range strings.Lines(o.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(text, "\n")); n > cli.HelpColumns {
				t.Errorf("help of %q has a line of %d columns: %s", line, n, text)
			}
			if f := strings.Fields(text); len(f) > 2 && strings.HasPrefix(f[0], "--") && f[1] == f[len(f)-1] && (len(f) == 3 || strings.HasSuffix(f[len(f)-2], ":")) {
				t.Errorf("help of %q explains a value by its name: %s", line, text)
			}
		}
		lines = lines[1:]
	}
}

func TestFill(t *testing.T) {
	long := strings.Repeat("word ", 15) + "word" // 79 columns
	got := fill("a\nb\n  x  " + long + "\n  " + long + " end\n\nc")
	want := "a b\n  x  " + long[:74] + "\n     word\n  " + long[:74] + "\n  word end\n\nc"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The values of flags complete, and an argument that is no file does not complete to files.
func TestCompletionOfValues(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(root+"/run/slurm-mps/leases", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/run/slurm-mps/leases/4711.json", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"plan --share o":                   "none\neven\noverlap:\nweight:\n:4\n",
		"plan --gpu h200":                  strings.Join(modelNames(), "\n") + "\n:4\n",
		"plan --ranks 1":                   ":4\n",
		"policy explain --partition p":     ":4\n",
		"reap --root " + root + " --job 4": "4711\n:4\n",
		"doctor --slurm-conf s":            ":0\n",
		"status --root /":                  ":16\n",
		"help pol":                         "policy\tcheck, apply, format, explain and test the policy\n:4\n",
	} {
		var o, e bytes.Buffer
		Run(cli.Process{Args: append([]string{"__complete"}, strings.Fields(args)...), Out: &o, Err: &e}, Commands()...)
		if o.String() != want {
			t.Errorf("%s: %q, want %q", args, o.String(), want)
		}
	}
}

// An output that is no file is no terminal, and has no colour in any environment.
func TestScreenOfAPipe(t *testing.T) {
	call := Invocation{Process: cli.Process{Out: &bytes.Buffer{}, Env: []string{"TERM=xterm-256color"}}}
	if s := call.Screen(); s != plain || s.Red("x") != "x" {
		t.Errorf("screen %+v", s)
	}
}

func TestFold(t *testing.T) {
	s := Screen{Columns: 12}
	for text, want := range map[string]string{
		"one two three": "  one two\n  three\n", "abcdefghijklmnop x": "  abcdefghijklmnop\n  x\n", "": "  \n", "äöü äöü äöü": "  äöü äöü\n  äöü\n",
	} {
		if got := s.Wrap("  ", text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// If lines do not fit on a terminal, they are left out, and this is printed. The other lines replace the old lines.
func TestRedraw(t *testing.T) {
	s := Screen{Terminal: true, Columns: 80, Rows: 4}
	if got, want := s.Redraw("a\nb\n", 0), "\x1b[?7l\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J\x1b[?7h"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := s.Redraw("a\nb\nc\nd\n", 9), "\x1b[?7l\x1b[Hc\x1b[K\nd\x1b[K\nlines 3 to 4 of 4: arrows or j k, space, q quits\x1b[K\n\x1b[J\x1b[?7h"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A bar is as wide as the GPU for every share, and a larger share has a longer bar.
func TestBar(t *testing.T) {
	for _, c := range []struct {
		part int
		want string
	}{
		{0, "░░░░░░░░"}, {1, "▌░░░░░░░"}, {8, "████░░░░"}, {9, "████▌░░░"}, {15, "███████▌"}, {16, "████████"},
	} {
		if got := Bar(c.part, 16, 8); got != c.want {
			t.Errorf("%d of 16: %s, want %s", c.part, got, c.want)
		}
	}
	for sms := range 133 {
		if n := utf8.RuneCountInString(Bar(sms, 132, 38)); n != 38 {
			t.Errorf("%d of 132: %d cells", sms, n)
		}
	}
}

// Without a command, mpsctl prints its help, as git and kubectl do.
func TestABareCommandPrintsHelp(t *testing.T) {
	for _, line := range []string{"", "policy"} {
		code, out, complaint := runRoot(policyCommand, strings.Fields(line)...)
		if code != 0 || complaint != "" || !strings.Contains(out, "Usage:") {
			t.Errorf("%q: code %d, %q, %q", line, code, out, complaint)
		}
	}
}
