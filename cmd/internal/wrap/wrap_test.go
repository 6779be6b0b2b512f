// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/site/slurm"
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
			if code := Wrap(cli.Process{Args: args, Env: env, PID: os.Getpid(), Err: &printed[rank]}); code != cli.ExitWrapperFailed {
				t.Errorf("rank %d: code %d", rank, code)
			}
		})
	}
	all.Wait()
	var lines []string
	for i := range printed {
		lines = append(lines, strings.Split(strings.TrimSuffix(printed[i].String(), "\n"), "\n")...)
	}
	const login = "mpirun-wrap: cannot use MPS: this is not a Slurm job (SLURM_JOB_ID is not set): submit it: " +
		"sbatch --gres=gpu:1 --constraint=mps JOB.sh (printed once for this node)"
	got := strings.Join(lines, "")
	if printed[7].String() != "mpirun-wrap: cannot read flags: unknown flag: --shar: did you mean --share? (printed once for this node)\n" ||
		strings.Count(got, login) != 1 || len(got) != len(login)+printed[7].Len()-1 {
		t.Errorf("printed %s", got)
	}
}

// A rank of prun in a batch script has no place of its own, so it is refused. A slot is a place.
func TestARankWithoutAPlace(t *testing.T) {
	env := slurm.Env{"SLURM_JOB_ID": "7", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0", "PMIX_RANK": "3"}
	const want = "give prun or prterun --personality ompi, or export LOCAL_RANK and LOCAL_WORLD_SIZE; " +
		"or give --local-rank and --local-size"
	if task, err := readTask(env, os.Getpid(), mpirunwrap.Options{}); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%+v, %v", task, err)
	}
	for _, n := range []int{8, mpirunwrap.JobTasks} {
		if task, err := readTask(env, os.Getpid(), mpirunwrap.Options{Slots: n}); err != nil || task.JobID != 7 {
			t.Errorf("%d slots: %+v, %v", n, task, err)
		}
	}
	env["SLURM_JOB_ID"] = "x"
	if task, err := readTask(env, os.Getpid(), mpirunwrap.Options{Slots: 8}); err == nil {
		t.Errorf("%+v", task)
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
			if code := Wrap(p); code != cli.ExitWrapperFailed {
				t.Errorf("rank %d: code %d", rank, code)
			}
		})
	}
	all.Wait()
	lines := 0
	for i := range printed {
		lines += strings.Count(printed[i].String(), "--personality ompi")
	}
	if lines != 1 {
		t.Errorf("%d ranks print it", lines)
	}
}

// The help texts fit a terminal of 80 columns, and name every flag.
func TestHelp(t *testing.T) {
	for name, program := range map[string]func(cli.Process) int{"mpirun-wrap": Wrap, "task-prolog": TaskProlog} {
		var out bytes.Buffer
		if code := program(cli.Process{Args: []string{"--help"}, Out: &out}); code != 0 {
			t.Errorf("%s: code %d", name, code)
		}
		for line := range strings.Lines(out.String()) {
			if len(line) > 81 {
				t.Errorf("%s: a line of %d columns: %s", name, len(line)-1, line)
			}
		}
		for _, s := range mpirunwrap.Settings() {
			if name == "mpirun-wrap" && !strings.Contains(out.String(), "\n  --"+s.Flag+" ") {
				t.Errorf("no --%s in\n%s", s.Flag, &out)
			}
		}
	}
}
