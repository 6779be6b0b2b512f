// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// The wrapper compares launchers' variables with the environment of the job's script, which is a process.
func TestWhoAmI(t *testing.T) {
	t.Parallel()
	m := newMembers(t, 4)
	const rank = "$WRAP --share=even -- /bin/sh -c 'echo $CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE'"
	const ompi = "OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=8 OMPI_COMM_WORLD_RANK=3 PMIX_NAMESPACE=5"
	const hydra = "MPI_LOCALRANKID=3 MPI_LOCALNRANKS=8 PMI_RANK=3 PMI_FD=9"
	const cleaned = "mpirun-wrap: cannot read task: SLURM_JOB_ID is set and SLURM_LOCALID is not, " +
		"so Slurm's variables are missing: " +
		"hand on SLURM_LOCALID, SLURM_GTIDS and SLURM_STEP_ID, or run the wrapper outside of the container; " +
		"in the shell of an salloc, start it by srun; or give --local-rank and --local-size (printed once for this node)"
	const unknown = "mpirun-wrap: cannot read task: it is not known whether OMPI_COMM_WORLD_LOCAL_RANK " +
		`is from a launcher in this job, because SLURM_TASK_PID ("0999999999") ` +
		`has ended or cannot be read: unset OMPI_COMM_WORLD_LOCAL_RANK if it is not; ` +
		"or give --local-rank and --local-size (printed once for this node)"
	const noJob = "mpirun-wrap: cannot use MPS: this is not a Slurm job (SLURM_JOB_ID is not set), or Slurm's variables were " +
		"unset: submit it: sbatch --gres=gpu:1 --constraint=mps JOB.sh; or give --own (printed once for this node)"
	const ended = "SLURM_TASK_PID=0999999999 "
	flag := func(flags string) string { return strings.Replace(rank, "--share", flags+" --share", 1) }
	clean := func(env string) string {
		return `env -i "WRAP=$WRAP" SLURM_JOB_ID=7 ` + env + ` /bin/sh -c '` + strings.ReplaceAll(rank, "'", `'\''`) + "'"
	}
	socket := func(cmd *exec.Cmd) { // as PMI_FD, descriptor 9
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0) // no rank of another test has it
		must.OK(t, err)
		ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
		t.Cleanup(func() { ours.Close(); theirs.Close() })
		cmd.ExtraFiles = []*os.File{6: theirs}
	}
	for _, c := range []struct {
		name, job, script string // what the job has inherited, and what its script runs
		set               func(*exec.Cmd)
		want              string
	}{
		{"nothing", "", rank + "; true", nil, "GPU-0"},
		{"from mpirun", ompi, rank + "; true", nil, "GPU-0"},
		{"from mpirun, exec", ompi, "exec " + rank, nil, "GPU-0"},
		{"an mpirun in a job from mpirun", ompi, "PMIX_NAMESPACE=6 " + rank + "; true", nil, "GPU-3 50"},
		{"from mpiexec", hydra, rank + "; true", nil, "GPU-0"},
		{"from mpiexec, a file of that number", hydra, "exec 9<&0; " + rank + "; true", nil, "GPU-0"},
		{"an mpiexec in a job from mpiexec", hydra, rank + "; true", socket, "GPU-3 50"},
		{"half a set", "LOCAL_RANK=2", rank + "; true", nil, "GPU-0"},
		{"by hand", "LOCAL_RANK=2 LOCAL_WORLD_SIZE=8", "LOCAL_RANK=1 " + rank + "; true", nil, "GPU-1 50"},
		{"no launcher, and the script has ended", "", ended + rank + "; true", nil, "GPU-0"},
		{"from mpirun, and the script has ended", ompi, ended + rank + "; true", nil, unknown},
		{"mpirun and a container with a user namespace", "", "exec 7<${WRAP%% *}; WRAP=\"/proc/self/fd/7 ${WRAP#* }\"; " + ompi +
			" unshare --user --map-root-user " + rank + "; true", nil, "GPU-3 50"},
		{"mpirun without SLURM_JOB_ID", "", "unset SLURM_JOB_ID; " + ompi + " " + rank + "; true", nil, noJob},
		{"the same with a place", ompi, ended + flag("--local-rank=1 --local-size=8"), nil, "GPU-1 50"},
		{"the same with slots", ompi, ended + flag("--slots=4"), nil, "GPU-0"},
		{"a mpiexec's rank on a node without the script", hydra, ended + rank + "; true", socket, "GPU-3 50"},
		{"env -i", "", clean(""), nil, cleaned},
		{"env -i, handed on", "", clean("SLURM_LOCALID=1 SLURM_GTIDS=4,5,6,7,8 SLURM_STEP_ID=0"), nil, "GPU-1"},
		{"env -i with slots", "", clean("SLURM_MPS_SLOTS=4"), nil, "GPU-0"},
	} {
		script := filepath.Join(m.dir, "script")
		must.OK(t, os.WriteFile(script, []byte(c.script), 0o600))
		cmd := exec.Command("/bin/sh", "-c", "exec env SLURM_TASK_PID=$$ "+c.job+" /bin/sh "+script)
		cmd.Env = m.env
		if c.set != nil {
			c.set(cmd)
		}
		out, _ := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); got != c.want {
			t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
		}
	}
}
