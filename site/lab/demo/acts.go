// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/lab"
)

// act is one demonstration. run prints the commands and their output. It returns an error if the output is not what
// after describes.
type act struct {
	title         string
	before, after string
	run           func(context.Context, showing) error
}

var acts = []act{shares, killing, mistakes, healing, alone}

// showing holds what an act needs: the machine and the screen.
type showing struct {
	*machine
	screen
}

// show runs the acts in order, or only act number only if only is not 0.
func show(ctx context.Context, s screen, m *machine, only int) error {
	version, err := m.shell(ctx, m.user, "sinfo --version")
	if err != nil {
		return err
	}
	s.text("slurm-mps lets the processes of a Slurm job share GPUs through NVIDIA MPS.")
	s.text(fmt.Sprintf("This machine now runs a %s of its own, with slurm-mps and four NVIDIA H200s. "+
		"Slurm and slurm-mps are real, and the GPUs and their driver are simulated. It takes about 25 seconds.",
		strings.TrimSpace(version.Stdout)))
	for i, a := range acts {
		if only != 0 && only != i+1 {
			continue
		}
		s.title(fmt.Sprintf("%d of %d: %s", i+1, len(acts), a.title))
		s.text(a.before)
		if err := a.run(ctx, showing{m, s}); err != nil {
			err = errors.Join(err, ctx.Err())
			return fmt.Errorf("cannot show act %d: %w\nThe end of our log:\n%s", i+1, err, m.logTail())
		}
		fmt.Fprintln(s.out)
		s.text(a.after)
	}
	s.title("What to try next")
	s.text(next)
	return nil
}

const next = `make play          the same Slurm stays up, and you get a shell on it
docs/user.md       for people who submit jobs
docs/operator.md   for people who run a cluster

`

// do runs a command line, and prints the line and its output. The caller checks the exit code.
func (s showing) do(ctx context.Context, user lab.User, line string) (lab.Result, error) {
	s.command(user.Name, line)
	result, err := s.shell(ctx, user, line)
	s.output(result.Stdout)
	return result, err
}

// must runs a command line as do does, and returns an error if the line fails.
func (s showing) must(ctx context.Context, user lab.User, line string) (string, error) {
	result, err := s.do(ctx, user, line)
	if err == nil && result.Exit != 0 {
		err = fmt.Errorf("%s ends with code %d", line, result.Exit)
	}
	return result.Stdout, err
}

// submit shows how the user submits a script, and returns the job's number.
func (s showing) submit(ctx context.Context, script string) (id uint32, err error) {
	printed, err := s.must(ctx, s.user, "sbatch "+script)
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscanf(printed, "Submitted batch job %d", &id); err != nil {
		return 0, fmt.Errorf("cannot read the job's number from sbatch's %q", printed)
	}
	return id, nil
}
