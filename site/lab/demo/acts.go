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

var mistakes = act{
	title: "A mistake gets a sentence",
	before: "You see three mistakes of a user: more SMs than the GPU has, no GPU, and a job that the site's policy denies. " +
		"After them you see the state of the node.",
	after: "It means: the user reads what is wrong and what to do. The node is idle and takes the next job, because a " +
		"user's mistake never takes a node out of service (in Slurm's words: it drains no node).",
	run: showMistakes,
}

// mistake is a command line of the user, and a part of the sentence that the program must print.
type mistake struct{ line, want string }

var userMistakes = []mistake{
	{"srun --gres=gpu:1 --constraint=mps mpirun-wrap --share=200% ./app", "want a percentage above 0 and up to 100"},
	{"srun --constraint=mps mpirun-wrap ./app", "submit it with --gres=gpu:N"},
	{"srun -p edu --gres=gpu:2 --constraint=mps mpirun-wrap ./app", "MPS on the edu partition is for one GPU at a time"},
}

func showMistakes(ctx context.Context, s showing) error {
	for _, m := range userMistakes {
		result, err := s.do(ctx, s.user, m.line)
		if err != nil {
			return err
		}
		if result.Exit == 0 || !strings.Contains(result.Stdout, m.want) {
			return fmt.Errorf("%s ends with code %d and does not print %q", m.line, result.Exit, m.want)
		}
		if err := s.waitIdle(ctx); err != nil {
			return err
		}
	}
	printed, err := s.must(ctx, s.user, sinfo)
	if err == nil && !strings.Contains(printed, "idle") {
		err = fmt.Errorf("the node is not idle")
	}
	return err
}

const sinfo = `sinfo -p main -o "%10P %8T %E"`

var killing = act{
	title: "A process is killed beside its neighbours",
	before: "You see four ranks on one GPU. The last one is killed (SIGKILL) while its kernel runs, its program on the GPU. " +
		"The first job has slurm-mps. The second job starts NVIDIA's MPS itself, without slurm-mps.",
	after: "It means: a rank that ends during its work does not take the others along. A root process of slurm-mps, the " +
		"guard, keeps the GPU files of the dead rank open until its work on the GPU is done. This was simulated, and " +
		"the simulation loses the neighbours each time. Measured in turns on a real H200 (driver 580.159.04, mode DEFAULT): with " +
		"the guard no neighbour died in 30 endings. On bare MPS, one died in 24 of 30. docs/benchmarks.md (Ends of clients) " +
		"has the rest. A rank that writes to a wrong GPU address still ends the others.",
	run: showKilling,
}

const (
	killWith    = "srun --gres=gpu:1 --constraint=mps -n4 mpirun-wrap ./killed"
	killWithout = "salloc --quiet --gres=gpu:1 -n4 ./bare-mps srun ./killed"
)

func showKilling(ctx context.Context, s showing) error {
	for _, c := range []struct{ line, want string }{{killWith, "finished"}, {killWithout, "died of CUDA error"}} {
		result, err := s.do(ctx, s.user, c.line)
		if err != nil {
			return err
		}
		if err := checkKilled(result, 3, c.want); err != nil {
			return err
		}
		if err := s.waitIdle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// checkKilled checks that exactly one rank was killed, and that its neighbours ended as expected.
func checkKilled(result lab.Result, neighbours int, want string) error {
	killed := strings.Count(result.Stdout, ": killed with SIGKILL")
	if killed != 1 {
		return fmt.Errorf("%d ranks were killed, want 1", killed)
	}
	if got := strings.Count(result.Stdout, ": "+want); got != neighbours {
		return fmt.Errorf("%d of %d neighbours %s, not all", got, neighbours, want)
	}
	if result.Exit == 0 {
		return errors.New("the launch ends with code 0, although a rank was killed")
	}
	return nil
}
