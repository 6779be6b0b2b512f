// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"path/filepath"
	"slices"
	"strings"
)

// IsLauncherStep reports whether a step's task is no rank but a daemon of mpirun or mpiexec, started by the srun that these
// run in an allocation (recorded: Open MPI 4.1.4 and MPICH 4.0.2 under Slurm 22.05.8). Slurm tells a TaskProlog nothing of
// the step's command, and slurmstepd's /proc is root's, so it is known by what such a launcher leaves in the environment
// of its srun: Open MPI sets three variables for itself, and a shell leaves the launcher's path in "_", which any srun of
// the shell's own would have replaced. Such a step has one task on each node. A rank of the launcher can run srun as well:
// it has its own place in the environment.
//
// What is not known: MPICH's mpiexec started by a program that sets no "_", such as a Python script.
func IsLauncherStep(env Env) bool {
	if strings.Trim(env["SLURM_GTIDS"], "0123456789") != "" || !onePerNode(env["SLURM_STEP_TASKS_PER_NODE"]) {
		return false
	}
	for _, l := range Launchers() {
		if _, isRank := env[l.Rank]; isRank {
			return false
		}
	}
	return bySrunOf(env["_"]) || byOpenMPI(env)
}

// onePerNode reads Slurm's "1(x3)".
func onePerNode(tasks string) bool {
	return tasks == "1" || strings.HasPrefix(tasks, "1(x") && !strings.Contains(tasks, ",")
}

// launcherPrograms are the names under which the launchers are installed, Debian's among them.
var launcherPrograms = []string{"mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich",
	"mpiexec.mpich", "mpirun_rsh", "orterun", "prterun", "prun"}

func bySrunOf(program string) bool { return slices.Contains(launcherPrograms, filepath.Base(program)) }

// byOpenMPI: each of the three may be set by hand, all of them with an srun that binds nothing are mpirun's.
func byOpenMPI(env Env) bool {
	for _, name := range []string{"IPATH_NO_BACKTRACE", "HFI_NO_BACKTRACE", "PMIX_MCA_mca_base_component_show_load_errors"} {
		if _, ok := env[name]; !ok {
			return false
		}
	}
	return env["SLURM_CPU_BIND_TYPE"] == "none"
}
