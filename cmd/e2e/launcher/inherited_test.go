// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A rank submits a job. The job's batch script, its steps and its launchers have their own places, and not that rank's.
// The rank is the first of two, as a rank of the job's launchers is.
func TestPlacementsOfAJobFromARank(t *testing.T) {
	s := newLaunchCluster(t, "from-a-rank", lab.Options{SameName: true})
	halves := listed("1 50", "1 50") // the rank's own job has the first GPU
	launches := []launchCase{
		{"a program", "WRAP; true", "", []int{1}, listed("1 -")},
		{"srun", "srun -n2 WRAP", "", []int{2}, halves},
		{"srun, a shell between", "srun -n2 sh -c 'WRAP; true'", "", []int{2}, halves},
		// Open MPI 4.1 itself does not run with a rank's variables. Its place is left.
		{"mpirun", "(unset ${!OMPI_MCA_@} ${!PMIX_@} OMPI_UNIVERSE_SIZE; mpirun.openmpi -np 2 WRAP)",
			"openmpi", []int{2}, halves},
		{"hydra", "mpiexec.hydra -launcher fork -n 2 WRAP", "mpich", []int{2}, halves},
	}
	for _, launcher := range []string{"mpirun.openmpi -np 2", "mpiexec.hydra -launcher fork -n 2"} {
		inner := filepath.Join(s.Top, "inner.sh")
		script := "#!/bin/bash\n" + s.script(launches)
		must.OK(t, os.WriteFile(inner, []byte(script), 0o755))
		id := s.Batch(launcher+` sh -c '[ "$OMPI_COMM_WORLD_RANK$PMI_RANK" = 0 ] || exit 0
			sbatch -W -n2 --gres=gpu:1 --constraint=mps -o $TMPDIR/inner.out `+inner+`'
			cat $TMPDIR/inner.out`, "-n2", "--gres=gpu:1")
		s.Ended(id)
		s.judge(launches, s.Output(id))
	}
}

// Ranks that have lost Slurm's variables, as in a container, are refused. They would each have a whole GPU.
func TestRanksInACleanedEnvironment(t *testing.T) {
	s := newLaunchCluster(t, "cleaned", lab.Options{SameName: true})
	const cleaned = "env -i PATH=$PATH LD_LIBRARY_PATH=$LD_LIBRARY_PATH SLURM_JOB_ID=$SLURM_JOB_ID " +
		"CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES "
	const repair = "hand on SLURM_LOCALID, SLURM_GTIDS and SLURM_STEP_ID, or run the wrapper outside"
	wrap := filepath.Join(s.Top, "mpirun-wrap") + " "
	id := s.Batch("srun -n4 bash -c '"+cleaned+wrap+"true; echo code $?'\n"+
		"srun -n4 bash -c '"+cleaned+"SLURM_LOCALID=$SLURM_LOCALID SLURM_GTIDS=$SLURM_GTIDS SLURM_STEP_ID=$SLURM_STEP_ID "+
		wrap+"--share=even "+s.Client()+" info'", "-n4", "--gres=gpu:1")
	s.Ended(id)
	output := s.Output(id)
	must.Hold(t, strings.Count(output, "code 125") == 4 && strings.Contains(output, repair), "cleaned: %s", output)
	if got := e2e.SMCounts(t, output); len(got) != 4 || got[3] > 34 {
		t.Errorf("handed on: %v SMs\n%s", got, output)
	}
	s.Quiet()
}
