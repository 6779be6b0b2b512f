// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// IsLauncherStep reports whether a step's task is a daemon of mpirun or mpiexec, and not a rank. In an allocation,
// these launchers start their daemons by srun (recorded: Open MPI 4.1.4 and MPICH 4.0.2 under Slurm 22.05.8). Such a
// step has one task on each node. A rank of the launcher may also run srun, but has the launcher's rank variables in
// its environment.
//
// A TaskProlog does not get the step's command from Slurm, and only root can read slurmstepd's /proc. So the step is
// recognised by variables that the launcher leaves in its srun's environment. Open MPI sets three variables for itself. A shell
// leaves the launcher's path in "_", which an srun of the shell's own would have replaced.
//
// A daemon of MPICH's mpiexec is not recognised if a program started mpiexec that sets no "_", such as a Python
// script.
func IsLauncherStep(env slurm.Env) bool {
	if strings.Trim(env["SLURM_GTIDS"], "0123456789") != "" || !onePerNode(env["SLURM_STEP_TASKS_PER_NODE"]) {
		return false
	}
	for _, l := range launchers {
		if _, isRank := env[l.rank]; isRank {
			return false
		}
	}
	return slices.Contains(launcherPrograms, filepath.Base(env["_"])) || byOpenMPI(env)
}

// onePerNode recognises Slurm's "1(x3)".
func onePerNode(tasks string) bool {
	return tasks == "1" || strings.HasPrefix(tasks, "1(x") && !strings.Contains(tasks, ",")
}

// launcherPrograms are the launchers' file names, with Debian's.
var launcherPrograms = []string{"mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich",
	"mpiexec.mpich", "mpirun_rsh", "orterun", "prterun", "prun"}

// ofOpenMPI are the variables that mpirun sets for itself: Open MPI 4.1 (recorded), and 5 and 6 (seen with a stand-in
// for srun, 5.0.7 and 6.0.0rc2).
var ofOpenMPI = [][]string{
	{"IPATH_NO_BACKTRACE", "HFI_NO_BACKTRACE", "PMIX_MCA_mca_base_component_show_load_errors"},
	{"OMPI_TOOL_NAME", "OMPI_VERSION", "OMPI_MCA_PREFIXES"},
}

// byOpenMPI recognises mpirun's srun. A user may set each of a release's variables, but only mpirun has all of them
// and an srun that binds nothing.
func byOpenMPI(env slurm.Env) bool {
	all := func(names []string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { _, ok := env[name]; return !ok })
	}
	return slices.ContainsFunc(ofOpenMPI, all) && env["SLURM_CPU_BIND_TYPE"] == "none"
}
