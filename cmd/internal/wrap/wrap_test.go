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
