// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site/sim/node"

	"github.com/slurm-mps/slurm-mps/site/osfile"
)

// play opens a shell on the machine as its user, and returns when the shell has ended. The exit code of the shell's
// last command is no error.
func play(ctx context.Context, s screen, m *machine) error {
	if err := m.writeCard(); err != nil {
		return err
	}
	s.text(welcome(filepath.Join(m.bin(), "admin"), editors()))
	shell, err := m.shellOn(ctx, osfile.IsTerminal(os.Stdin), s.term)
	if err != nil {
		return err
	}
	err = shell.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) || ctx.Err() != nil {
		err = nil
	}
	s.text("\nThe shell has ended. Its jobs are cancelled, and then everything is removed.")
	return err
}

// welcome returns the text above the first prompt. With the prompt it fits a terminal of 24 rows, so it has only the
// first line of the card.
func welcome(admin, editors string) string {
	return fmt.Sprintf(`You are the user hpc1 on a Slurm of your own, with slurm-mps. Its node has 16 CPUs and four `+
		`simulated H200s. A job of more than 16 tasks waits for ever.
The simulated GPUs show shares and errors, but no gain in speed. There are no
shards. Without --constraint=mps, a job can use mpirun-wrap --own.

The files here are yours: change them. Editors on this machine: %s.
An admin's shell, for root in another terminal:
%s
When you leave the shell (exit or Ctrl-D), all of it is gone.

Ten things to try: the command card prints them. The first:

    %s

`, editors, admin, card[0].line)
}

// editors returns the names of the editors that PATH has.
func editors() string {
	var found []string
	for _, name := range []string{"nano", "vim", "vi", "emacs"} {
		if _, err := exec.LookPath(name); err == nil {
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		return "none (apt-get install nano)"
	}
	return strings.Join(found, ", ")
}

// writeCard writes the programs card and admin to PATH. The shell needs them, and the acts do not.
func (m *machine) writeCard() error {
	card := "#!/bin/sh\ncat <<'END'\n" + cardText() + "END\n"
	admin := "#!/bin/sh\ncd / && exec env " + quoted(append(m.env(), "PS1=root# ")) + " bash --noprofile --norc -i\n"
	return errors.Join(node.WriteProgram(filepath.Join(m.bin(), "card"), []byte(card)),
		node.WriteProgram(filepath.Join(m.bin(), "admin"), []byte(admin)))
}

// quoted returns a list of words, quoted for a shell.
func quoted(words []string) string {
	for i, word := range words {
		words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return strings.Join(words, " ")
}

// shellOn returns the user's shell. It reads its commands from stdin.
func (m *machine) shellOn(ctx context.Context, terminal bool, term string) (*exec.Cmd, error) {
	args := []string{"--noprofile", "--norc"}
	if terminal {
		args = append(args, "-i")
	}
	cmd, err := m.cluster.Command(ctx, m.user, "bash", args...)
	if err != nil {
		return nil, err
	}
	cmd.Env = append(cmd.Env, append(m.env(), "PS1="+m.user.Name+"$ ", "TERM="+term)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGHUP) } // a shell on a terminal ignores SIGTERM
	if terminal {
		cmd.SysProcAttr.Setpgid = false // the shell needs the terminal's foreground group to make groups of its own
	} else {
		cmd.Env = append(cmd.Env, "SLURM_STDINMODE=none") // otherwise srun would read the next commands from stdin
	}
	return cmd, nil
}
