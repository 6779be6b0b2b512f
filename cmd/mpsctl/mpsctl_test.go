// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/spf13/cobra"
)

// printsFlags is a command that prints the flags of all commands.
func printsFlags(call *command.Invocation) *cobra.Command {
	return &cobra.Command{Use: "end", Args: command.NoArgs, RunE: func(*cobra.Command, []string) error {
		_, err := fmt.Fprint(call.Out, call.JSON, call.Paths.Root)
		return err
	}}
}

func runRoot(constructor command.Constructor, args ...string) (code int, out, complaint string) {
	return run(func(call *command.Invocation) *cobra.Command { return newRoot(call, constructor) }, args...)
}

func run(program command.Constructor, args ...string) (code int, out, complaint string) {
	var o, e bytes.Buffer
	code = command.Run(cli.Process{Args: args, Out: &o, Err: &e}, program)
	return code, o.String(), e.String()
}

// A wrong command line gives exit code 2 and one sentence, and prints nothing on stdout.
func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"bogus":               `cannot run "bogus": there is no such command: see mpsctl --help`,
		"en":                  `cannot run "en": there is no such command: did you mean end?`,
		"versoin":             `cannot run "versoin": there is no such command: did you mean version?`,
		"help bogus":          `cannot run "bogus": there is no such command: see mpsctl --help`,
		"help end more":       `cannot take "more": mpsctl end takes only flags: see mpsctl end --help`,
		"version more":        `cannot take "more": mpsctl version takes only flags: see mpsctl version --help`,
		"end more":            `cannot take "more": mpsctl end takes only flags: see mpsctl end --help`,
		"end --bogus":         "cannot read flags: unknown flag: --bogus: see mpsctl end --help",
		"end --jsno":          "cannot read flags: unknown flag: --jsno: did you mean --json?",
		"end -json":           "cannot read flags: unknown shorthand flag: 'j' in -json: did you mean --json?",
		"--root tmp end":      `cannot use --root "tmp": give an absolute path`,
		"completion":          `cannot complete for []: name one shell: bash, zsh or fish`,
		"completion tcsh":     `cannot complete for ["tcsh"]: name one shell: bash, zsh or fish`,
		"completion bash 1 2": `cannot complete for ["bash" "1" "2"]: name one shell: bash, zsh or fish`,
		"completion bash zsh": `cannot complete for ["bash" "zsh"]: name one shell: bash, zsh or fish`,
	} {
		code, out, complaint := runRoot(printsFlags, strings.Fields(args)...)
		if code != cli.ExitUsage || out != "" || complaint != "mpsctl: "+want+"\n" {
			t.Errorf("%q: code %d, printed %q\ngot  %swant mpsctl: %s", args, code, out, complaint, want)
		}
	}
}

// help and version are commands, and so are --help and --version flags.
func TestHelpAndVersionAreCommands(t *testing.T) {
	for args, same := range map[string]string{"help": "--help", "help end": "end --help", "version": "--version"} {
		code, out, complaint := runRoot(printsFlags, strings.Fields(args)...)
		_, want, _ := runRoot(printsFlags, strings.Fields(same)...)
		if code != 0 || out == "" || out != want || complaint != "" {
			t.Errorf("%q: code %d, printed %q, want %q, %s", args, code, out, want, complaint)
		}
	}
}

// Every command has --json and --root, before its name or after it.
func TestFlagsOfAll(t *testing.T) {
	for _, args := range []string{"--json --root /x end", "end --json --root /x", "--root=/x end --json"} {
		if code, out, complaint := runRoot(printsFlags, strings.Fields(args)...); code != 0 || out != "true/x" {
			t.Errorf("%q: code %d, %q, %s", args, code, out, complaint)
		}
	}
}

// Each script is valid in the language of its shell, if the shell is installed. The scripts complete by asking
// mpsctl.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, out, complaint := runRoot(printsFlags, "completion", shell)
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
		code, out, _ := runRoot(printsFlags, "completion", shell, "mps-tune")
		if code != 0 || !strings.Contains(out, " for mps-tune ") || strings.Contains(out, "mpsctl") {
			t.Errorf("%s: code %d: this does not complete mps-tune:\n%.200s", shell, code, out)
		}
	}
	if _, out, _ := runRoot(printsFlags, "__complete", "completion", ""); !strings.HasPrefix(out, "bash\nzsh\nfish\n") {
		t.Errorf("shells complete to %q", out)
	}
	if _, out, _ := runRoot(printsFlags, "__complete", ""); !strings.Contains(out, "end\n") ||
		!strings.Contains(out, "completion\t") || strings.Contains(out, "no-help") {
		t.Errorf("commands complete to %q", out)
	}
}

// Every help fits a terminal of 80 columns.
func TestHelpFits80Columns(t *testing.T) {
	lines := []string{""}
	for len(lines) > 0 {
		line := strings.Fields(lines[0])
		code, out, complaint := run(mpsctl, append(line, "--help")...)
		if code != 0 {
			t.Errorf("help of %q: code %d, %s", line, code, complaint)
		}
		_, list, _ := strings.Cut(out, "\nAvailable Commands:\n")
		list, _, _ = strings.Cut(list, "\n\n")
		for below := range strings.Lines(list) {
			lines = append(lines, lines[0]+" "+strings.Fields(below)[0])
		}
		for text := range strings.Lines(out) {
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

// The values of flags complete, and an argument that is no file does not complete to files.
func TestCompletionOfValues(t *testing.T) {
	for args, want := range map[string]string{
		"policy explain --gpu h200":    ":4\n",
		"policy explain --ranks 1":     ":4\n",
		"policy explain --partition p": ":4\n",
		"reap --job 4":                 ":4\n",
		"doctor --slurm-conf s":        ":0\n",
		"status --root /":              ":16\n",
		"help pol":                     "policy\tcheck and explain the policy\n:4\n",
	} {
		if _, out, _ := run(mpsctl, append([]string{"__complete"}, strings.Fields(args)...)...); out != want {
			t.Errorf("%s: %q, want %q", args, out, want)
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
