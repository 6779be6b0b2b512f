// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Origin is the process SLURM_TASK_PID, as this process sees it: the step's task, the batch script or the shell of an
// interactive step. All processes of the task have begun with its environment.
type Origin struct {
	Env slurm.Env // the variables of OriginVariables; empty if they cannot be read
	// Hidden means that this process cannot see its origin, which has another pid or none in a pid namespace, and an
	// environment that the kernel does not show to a user namespace.
	Hidden bool
	// HasPMI means that PMI_FD is an open socket. hydra gives each rank one. An inherited PMI_FD is closed, because
	// slurmstepd closes all descriptors.
	HasPMI bool
}

// OriginVariables returns the variables that an Origin has.
func OriginVariables() []string { return append(launcherVariables(), "SLURM_JOB_ID", "SLURM_TASK_PID") }

// HasLauncher reports whether an environment has a variable of a launcher, inherited or not.
func HasLauncher(env slurm.Env) bool {
	return slices.ContainsFunc(launcherVariables(), func(name string) bool { _, ok := env[name]; return ok })
}

// WithoutInheritedLauncher returns env without the variables of launchers that have not started this process. sbatch,
// salloc and srun hand on the variables of the rank or the shell that calls them, and slurmstepd removes none.
//
// The variables of a launcher inside of the task are not in the origin's environment, or have another value there. A
// launcher's variables are judged together: rank 0 of 2 may have a place like that of the rank that submitted the job,
// but not the same launch. Only a place that a script sets by hand cannot be told from an inherited one with the same
// values; it counts as inherited.
//
// If the origin cannot be read, a launcher's place may be from anywhere, and is refused. In a pid or user namespace it
// is believed, because no process there can see its origin (docs/decisions.md, 49).
func WithoutInheritedLauncher(env slurm.Env, origin Origin) (slurm.Env, error) {
	job, hasJob := env["SLURM_JOB_ID"] // scripts unset it, so that mpirun does not start its daemons by srun
	known := origin.Env["SLURM_TASK_PID"] == env["SLURM_TASK_PID"] && (!hasJob || origin.Env["SLURM_JOB_ID"] == job)
	var kept []string
	for _, l := range launchers {
		_, hasRank := env[l.rank]
		linked := origin.HasPMI && l.hasPMI(env)
		switch {
		case !linked && known && !l.differs(env, origin.Env):
			continue
		case !linked && !known && !origin.Hidden && hasRank:
			why := "has ended or cannot be read"
			if other := origin.Env["SLURM_JOB_ID"]; other != "" && other != job { // as in an salloc inside of a job
				why = "is a process of job " + slurm.Quote(other)
			}
			return nil, fmt.Errorf("cannot read task: it is not known whether %s is from a launcher in this job, "+
				"because SLURM_TASK_PID (%s) %s: unset %[1]s if it is not",
				l.rank, slurm.Quote(env["SLURM_TASK_PID"]), why)
		}
		kept = append(kept, l.variables()...)
	}
	fresh := maps.Clone(env)
	for _, name := range launcherVariables() {
		if !slices.Contains(kept, name) && !namesStep(env, name) {
			delete(fresh, name)
		}
	}
	return fresh, nil
}

// hasPMI reports whether hydra, or a launcher that uses it, has set PMI_FD. Slurm's pmi2 sets it, too.
func (l launcher) hasPMI(env slurm.Env) bool {
	_, hasRank := env[l.rank]
	return hasRank && slices.Contains(l.variables(), "PMI_FD") && !bySlurmsPlugin(env, "PMI_RANK")
}

// differs reports whether a process has a variable of the launcher that its origin has not, or with another value.
func (l launcher) differs(env, origin slurm.Env) bool {
	return slices.ContainsFunc(l.variables(), func(name string) bool {
		value, ok := env[name]
		before, inherited := origin[name]
		return ok && (!inherited || value != before)
	})
}

// namesStep reports whether a variable is Slurm's own name for the launch: that of pmix.
func namesStep(env slurm.Env, name string) bool {
	step, err := slurm.StepOf(env)
	return name == "PMIX_NAMESPACE" && err == nil && step != "" &&
		strings.HasPrefix(env[name], "slurm.pmix.") && strings.HasSuffix(env[name], "."+step)
}

// variables returns the variables that show a launch.
func (l launcher) variables() []string {
	names := append(strings.Fields(l.launch), l.rank, l.size, l.world, l.total)
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

func launcherVariables() []string {
	var names []string
	for _, l := range launchers {
		names = append(names, l.variables()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
