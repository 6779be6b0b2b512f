// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
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

func run(program Constructor, args ...string) (code int, out, complaint string) {
	var o, e bytes.Buffer
	code = Run(cli.Process{Args: args, Out: &o, Err: &e}, program)
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
		{cli.RuntimeError{Err: errors.New("cannot do it: no\nreason")}, 1, "end: cannot do it: no; reason\n"},
		{fmt.Errorf("cannot end: %w", cli.RuntimeError{Err: errors.New("no space left")}), 1, "end: cannot end: no space left\n"},
		{errors.New("cannot read that"), 2, "end: cannot read that\n"},
		{WriteError("end", nil), 0, ""},
		{WriteError("end", errors.New("no space left")), 1, "end: cannot print end: no space left\n"},
	} {
		code, _, complaint := run(ends(c.err))
		must.Hold(t, code == c.code && complaint == c.complaint,
			"%v: code %d, %q, want %d, %q", c.err, code, complaint, c.code, c.complaint)
	}
}

// A program has the flags, the errors and the exit codes of all programs, below its own name.
func TestRun(t *testing.T) {
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
		{"more", nil, 2, "", `end: cannot take "more": end takes only flags: see end --help` + "\n"},
		{"--bogus", nil, 2, "", "end: cannot read flags: unknown flag: --bogus: see end --help\n"},
		{"--root tmp", nil, 2, "", `end: cannot use --root "tmp": give an absolute path` + "\n"},
	} {
		code, out, complaint := run(ends(c.err), strings.Fields(c.args)...)
		must.Hold(t, code == c.code && out == c.out && complaint == c.complaint,
			"%q: code %d, printed %q, %q, want %+v", c.args, code, out, complaint, c)
	}
}

func TestFill(t *testing.T) {
	long := strings.Repeat("word ", 15) + "word" // 79 columns
	got := fill("a\nb\n  x  " + long + "\n  " + long + " end\n\nc")
	want := "a b\n  x  " + long[:74] + "\n     word\n  " + long[:74] + "\n  word end\n\nc"
	must.Equal(t, "got", got, want)
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
		must.Equal(t, text, s.Wrap("  ", text), want)
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
		must.Equal(t, fmt.Sprintf("%d of 16", c.part), Bar(c.part, 16, 8), c.want)
	}
	for sms := range 133 {
		must.Equal(t, fmt.Sprintf("%d of 132", sms), utf8.RuneCountInString(Bar(sms, 132, 38)), 38)
	}
}
