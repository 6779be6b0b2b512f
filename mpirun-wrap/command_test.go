// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// If the ranks of a launch fail with the same error, one rank prints it. Each other error is printed too, and all
// ranks fail.
func TestOneRankPrintsTheError(t *testing.T) {
	var printed [50]bytes.Buffer
	var all sync.WaitGroup
	for rank := range printed {
		all.Go(func() {
			env := []string{"OMPI_COMM_WORLD_LOCAL_SIZE=50", fmt.Sprintf("OMPI_COMM_WORLD_LOCAL_RANK=%d", rank)}
			args := []string{"--root", t.TempDir(), "true"}
			if rank == 7 {
				args = []string{"--shar=even", "true"}
			}
			if code := Wrap(cli.Process{Args: args, Env: env, PID: os.Getpid(), Err: &printed[rank]}, nil); code != cli.ExitWrapperFailed {
				t.Errorf("rank %d: code %d", rank, code)
			}
		})
	}
	all.Wait()
	var lines []string
	for i := range printed {
		lines = append(lines, strings.Split(strings.TrimSuffix(printed[i].String(), "\n"), "\n")...)
	}
	const login = "mpirun-wrap: cannot use MPS: this is not a Slurm job (SLURM_JOB_ID is not set), " +
		"or Slurm's variables were unset: submit it: " +
		"sbatch --gres=gpu:1 --constraint=mps JOB.sh; or give --own (printed once for this node)"
	got := strings.Join(lines, "")
	if printed[7].String() != "mpirun-wrap: cannot read flags: unknown flag: --shar: did you mean --share? (printed once for this node)\n" ||
		strings.Count(got, login) != 1 || len(got) != len(login)+printed[7].Len()-1 {
		t.Errorf("printed %s", got)
	}
}

// All ranks of a prun are refused, and one of them prints it.
func TestOneRankOfPrunPrintsTheError(t *testing.T) {
	var printed [20]bytes.Buffer
	var all sync.WaitGroup
	for rank := range printed {
		all.Go(func() {
			env := []string{"SLURM_JOB_ID=7", "SLURM_LOCALID=0", "SLURM_GTIDS=0", "PMIX_NAMESPACE=prterun-n1-7@1", fmt.Sprint("PMIX_RANK=", rank)}
			p := cli.Process{Args: []string{"--root", t.TempDir(), "true"}, Env: env, PID: os.Getpid(), Err: &printed[rank]}
			if code := wrapped(p); code != cli.ExitWrapperFailed {
				t.Errorf("rank %d: code %d", rank, code)
			}
		})
	}
	all.Wait()
	lines := 0
	for i := range printed {
		lines += strings.Count(printed[i].String(), "--personality ompi")
	}
	must.Hold(t, lines == 1, "%d ranks print it", lines)
}

// The help texts fit a terminal of 80 columns, and name every flag.
func TestHelp(t *testing.T) {
	for name, program := range map[string]func(cli.Process) int{"mpirun-wrap": wrapped, "task-prolog": TaskProlog} {
		var out bytes.Buffer
		if code := program(cli.Process{Args: []string{"--help"}, Out: &out}); code != 0 {
			t.Errorf("%s: code %d", name, code)
		}
		for line := range strings.Lines(out.String()) {
			must.Hold(t, len(line) <= 81, "%s: a line of %d columns: %s", name, len(line)-1, line)
		}
		for _, s := range Settings {
			if name == "mpirun-wrap" && !strings.Contains(out.String(), "\n  --"+s.Flag+" ") {
				t.Errorf("no --%s in\n%s", s.Flag, &out)
			}
		}
	}
}

// A task prolog exits with 0 in any case, because Slurm fails the task for any other code.
//
// Contract: K7
func TestATaskPrologNeverFails(t *testing.T) {
	for _, args := range [][]string{{}, {"--root", t.TempDir()}, {"--nonsense"}, {"--root"}, {"--version"}} {
		for _, env := range [][]string{{}, {"SLURM_JOB_ID=7", "SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_MPS=x"}, {"SLURM_JOB_ID=x"}} {
			var out, failed bytes.Buffer
			if code := TaskProlog(cli.Process{Args: args, Env: env, Out: &out, Err: &failed}); code != 0 || failed.Len() > 0 {
				t.Errorf("%q, %q: code %d, stderr %q", args, env, code, &failed)
			}
		}
	}
}

// wrapped is Wrap for a rank that starts no daemon.
func wrapped(p cli.Process) int { return Wrap(p, nil) }
