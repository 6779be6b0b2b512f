// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Task is one rank's place on its node, as whoever started it says.
type Task struct {
	JobID uint32 // SLURM_JOB_ID; 0 outside of Slurm

	// JobIDs are the jobs to look for a ticket under, in this order, each once. In a component of a heterogeneous job
	// that is not its first, SLURM_JOB_ID is the leader's number while the prolog ran under the component's own.
	JobIDs []uint32

	StepID    string // SLURM_STEP_ID: digits; "" in a batch script and outside of Slurm
	LocalRank int    // from 0 to LocalSize-1
	LocalSize int    // ranks of this launch on this node, at least 1
	Source    string // who said so: the name of a Launcher, one of the Source constants
}

// BySlurm reports whether srun started the rank, so that what Slurm says of a task is said of this one. A launcher's ranks
// inherit what it says of the launcher.
func (t Task) BySlurm() bool { return t.Source == SourceStepd || t.Source == SourceInherited }

// The values of Task.Source that name no launcher.
const (
	SourceStepd     = "slurmstepd"        // slurmstepd started this very process
	SourceInherited = "slurm, by a shell" // Slurm's variables, inherited: a shell or another program stands between
	SourceSingle    = "alone"             // nobody launched several
)

// Launcher is a row of the table of launchers.
type Launcher struct {
	Name   string
	Marker string // a variable that must be there for the row to count; "" where the rank's own name is telling enough
	Rank   string // variable of the rank on its node
	Size   string // variable of the number of ranks on the node; "" where the launcher has none
	World  string // variable of the rank in all, the sign of the launcher where the others are missing
	Note   string
}

// Launchers is the table that ReadTask follows, in its order: the innermost first.
func Launchers() []Launcher {
	return []Launcher{
		{"torchrun", "TORCHELASTIC_RUN_ID", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "", "starts its workers inside a rank of the others"},
		{"Open MPI", "", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK", "recorded: 4.1.4"},
		{"hydra", "", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_RANK", "MPICH (recorded: 4.0.2) and Intel MPI; PMI_RANK is Slurm's pmi2 too"},
		{"MVAPICH2", "", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_RANK", "documented"},
		{"PALS", "", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_RANKID", "documented: HPE Cray"},
		{"jsrun", "", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE", "JSM_NAMESPACE_RANK", "documented: IBM Spectrum LSF"},
		{"Flux", "", "FLUX_TASK_LOCAL_ID", "", "FLUX_TASK_RANK", "documented; has no variable for the size"},
		{"PMIx", "", "PMIX_LOCAL_RANK", "", "PMIX_RANK", "documented; no size, and Slurm does not set it"},
		{"LOCAL_RANK", "", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "", "scripts that follow torchrun's names"},
	}
}

// ReadTask reads the place of the rank whose process is pid. Slurm's own word counts first where SLURM_TASK_PID proves
// that slurmstepd started this process: an srun inside an mpirun leaves the mpirun's variables standing. Then the
// launchers count, since under an mpirun Slurm's variables are those of the launcher's own step. Then Slurm's, and
// without any sign of a launch the process is alone. A malformed or half-said place is an error, never a guess. It serves ranks and TaskPrologs; a TaskEpilog sees
// other values (SLURM_GTIDS=0 in every task, measured with Slurm 22.05.8).
func ReadTask(env Env, pid int) (Task, error) {
	task, err := readTask(env, pid)
	if err != nil {
		return Task{}, fmt.Errorf("cannot read task: %w", err)
	}
	return task, nil
}

// WithoutInheritedLauncher is env without what a launcher said to another process: to the task of the step that this process is part of, so
// before the step began. An srun inside an mpirun leaves the mpirun's variables standing, and where a shell stands between
// srun and the rank, SLURM_TASK_PID is no proof any more. The step's task is process SLURM_TASK_PID, task its environment.
func WithoutInheritedLauncher(env, task Env) Env {
	if env["SLURM_STEP_ID"] == "" {
		return env // a batch script, which inherits the variables of whoever submitted it
	}
	fresh := maps.Clone(env)
	for _, name := range LauncherVariables() {
		if value, ok := task[name]; ok && value == env[name] {
			delete(fresh, name)
		}
	}
	return fresh
}

// LauncherVariables are those by which launchers tell a process its place.
func LauncherVariables() []string {
	var names []string
	for _, l := range Launchers() {
		names = append(names, l.Rank, l.Size, l.World)
	}
	return names
}

func readTask(env Env, pid int) (Task, error) {
	task, err := taskJob(env)
	if err != nil {
		return Task{}, err
	}
	for _, say := range []func() (Task, bool, error){
		func() (Task, bool, error) { return bySlurmstepd(task, env, pid) },
		func() (Task, bool, error) { return byLauncher(task, env) },
		func() (Task, bool, error) { return bySlurm(task, env, SourceInherited) },
	} {
		if said, ok, err := say(); ok || err != nil {
			return said, err
		}
	}
	return alone(task, env)
}

// taskJob reads the numbers of the job and of the step.
func taskJob(env Env) (Task, error) {
	var task Task
	for _, name := range jobVariables(env) {
		var id uint32
		if err := number(1, func(*Job) *uint32 { return &id }, "a job's number")(nil, env[name]); err != nil {
			return Task{}, fmt.Errorf("%s %w", name, err)
		}
		if name == "SLURM_JOB_ID" {
			task.JobID = id
		}
		if !slices.Contains(task.JobIDs, id) {
			task.JobIDs = append(task.JobIDs, id)
		}
	}
	step, ok := env["SLURM_STEP_ID"]
	if _, err := parseDigits(step); ok && err != nil {
		return Task{}, fmt.Errorf("SLURM_STEP_ID is %s, want a step's number", quote(step))
	}
	task.StepID = step
	return task, nil
}

// jobVariables lists the variables that name the task's job, in the order of JobIDs: the job, then the components of a
// heterogeneous job (HET_GROUP; PACK_GROUP in the releases before 20.02), then its leader.
func jobVariables(env Env) []string {
	var found []string
	if _, ok := env["SLURM_JOB_ID"]; ok {
		found = append(found, "SLURM_JOB_ID")
	}
	for _, prefix := range []string{"SLURM_JOB_ID_HET_GROUP_", "SLURM_JOB_ID_PACK_GROUP_"} {
		var groups []uint64
		for name := range env {
			rest, ok := strings.CutPrefix(name, prefix)
			if !ok {
				continue // to find that a name is no number takes long
			}
			if n, err := parseDigits(rest); err == nil && strconv.FormatUint(n, 10) == rest {
				groups = append(groups, n)
			}
		}
		slices.Sort(groups)
		for _, n := range groups {
			found = append(found, prefix+strconv.FormatUint(n, 10))
		}
	}
	if _, ok := env["SLURM_HET_JOB_ID"]; ok {
		found = append(found, "SLURM_HET_JOB_ID")
	}
	return found
}

func bySlurmstepd(task Task, env Env, pid int) (Task, bool, error) {
	if env["SLURM_TASK_PID"] != strconv.Itoa(pid) {
		return Task{}, false, nil
	}
	return bySlurm(task, env, SourceStepd)
}

// bySlurm takes the rank from SLURM_LOCALID and the size from the items of SLURM_GTIDS, the ranks of this step on this
// node; SLURM_NTASKS and the like count other nodes or the whole job.
func bySlurm(task Task, env Env, source string) (Task, bool, error) {
	rank, ok := env["SLURM_LOCALID"]
	if !ok {
		return Task{}, false, nil
	}
	ids, ok := env["SLURM_GTIDS"]
	if !ok {
		return Task{}, false, fmt.Errorf("SLURM_LOCALID is set and SLURM_GTIDS is not: do not unset Slurm's variables before the wrapper")
	}
	for _, id := range strings.Split(ids, ",") {
		if _, err := parseDigits(id); err != nil {
			return Task{}, false, fmt.Errorf("SLURM_GTIDS is %s, want the numbers of this node's ranks", quote(ids))
		}
	}
	size := strconv.Itoa(strings.Count(ids, ",") + 1)
	said, err := place(task, source, "SLURM_LOCALID", rank, "the items of SLURM_GTIDS", size)
	return said, err == nil, err
}

// byLauncher takes the first launcher that says both rank and size. One that says the rank alone is held to be there
// all the same: what Slurm says is then the launcher's place and not the rank's.
func byLauncher(task Task, env Env) (Task, bool, error) {
	half := ""
	for _, l := range Launchers() {
		_, marked := env[l.Marker]
		rank, ok := env[l.Rank]
		if !ok || l.Marker != "" && !marked {
			continue
		}
		size, from, ok := launcherSize(env, l)
		if !ok {
			half = cmp.Or(half, l.Rank)
			continue
		}
		said, err := place(task, l.Name, l.Rank, rank, from, size)
		return said, err == nil, err
	}
	if half != "" {
		return Task{}, false, fmt.Errorf("%s is %s, but nothing says how many ranks this node has: export LOCAL_RANK and LOCAL_WORLD_SIZE", half, quote(env[half]))
	}
	return Task{}, false, nil
}

// launcherSize returns the size and the variable that it stands in. Flux has none, but a job of one node has all of its
// ranks there.
func launcherSize(env Env, l Launcher) (size, from string, ok bool) {
	if l.Size != "" {
		size, ok = env[l.Size]
		return size, l.Size, ok
	}
	if l.Name == "Flux" && env["FLUX_JOB_NNODES"] == "1" {
		size, ok = env["FLUX_JOB_SIZE"]
		return size, "FLUX_JOB_SIZE", ok
	}
	return "", "", false
}

// localMax bounds the ranks of a node: beyond it a value is taken for nonsense.
const localMax = 65536

func place(task Task, source, rankName, rank, sizeName, size string) (Task, error) {
	r, err := parseDigits(rank)
	if err != nil {
		return Task{}, fmt.Errorf("%s is %s, want a number from 0", rankName, quote(rank))
	}
	n, err := parseDigits(size)
	if err != nil || n < 1 || n > localMax {
		return Task{}, fmt.Errorf("%s is %s, want a number from 1 to %d", sizeName, quote(size), localMax)
	}
	if r >= n {
		return Task{}, fmt.Errorf("%s is %d, want a rank below %d (%s)", rankName, r, n, sizeName)
	}
	task.LocalRank, task.LocalSize, task.Source = int(r), int(n), source
	return task, nil
}

// alone is for a process that nobody launched, and refuses one that a launcher did: seated as rank 0 of 1, each of its
// ranks would take the whole GPU.
func alone(task Task, env Env) (Task, error) {
	for _, l := range Launchers() {
		if world, ok := env[l.World]; ok && l.World != "" {
			return Task{}, fmt.Errorf("%s is %s, so a launcher started this rank, but nothing says its place on this node: export LOCAL_RANK and LOCAL_WORLD_SIZE", l.World, quote(world))
		}
	}
	task.LocalRank, task.LocalSize, task.Source = 0, 1, SourceSingle
	return task, nil
}
