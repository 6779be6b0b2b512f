// SPDX-License-Identifier: Apache-2.0

// Package launch reads a rank's place on its node from the variables that its launcher sets. Root's programs do not
// link it.
package launch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Task is one rank's index on its node, as Slurm or a launcher reports it.
type Task struct {
	JobID uint32 // SLURM_JOB_ID; 0 outside of Slurm
	// JobIDs are the jobs whose ticket the rank may use, in this order, each once. In a later component of a
	// heterogeneous job, SLURM_JOB_ID is the leader's ID, but the prolog ran under the component's own ID.
	JobIDs    []uint32
	StepID    string // SLURM_STEP_ID of an srun's step: digits; "" in a batch script, an interactive step and outside of Slurm
	LocalRank int    // from 0 to LocalSize-1
	LocalSize int    // ranks of this launch on this node, at least 1
	Source    string // the source of rank and size: a launcher's name, or one of the Source constants
}

// BySlurm reports whether srun started the rank, so that Slurm's variables describe this rank. A launcher's ranks
// inherit the variables of the launcher's own task.
func (t Task) BySlurm() bool { return t.Source == SourceStepd || t.Source == SourceInherited }

// The values of Task.Source that are not a launcher's name.
const (
	SourceStepd     = "slurmstepd"        // slurmstepd started this process itself
	SourceInherited = "slurm, by a shell" // Slurm's variables are inherited from a shell or another program
	SourceSingle    = "alone"             // no launcher started this process
	SourceSlot      = "slot"              // this process took one of the job's slots
	sourceManual    = "by hand"           // a person gave rank and size
)

// launcher is a row of the table of launchers.
type launcher struct {
	name   string
	marker string // a variable without which the row does not count; "" if the name of rank is specific enough
	rank   string // variable of the rank on its node
	size   string // variable of the number of ranks on the node; "" if the launcher has none
	world  string // variable of the rank in the whole job; it shows the launcher if the others are missing
	launch string // variables, separated by blanks, that two launches have with different values or only one of them has
	total  string // variable of the number of ranks; if there is one, world shows the launcher only with more than 1
}

// launchers is the table that ReadTask follows, in its order: the innermost launcher first. torchrun starts its workers
// inside a rank of the others. Recorded are Open MPI (4.1.4, 5.0.7, 6.0.0rc2) and MPICH (4.0.2, 4.2.1, 5.0.2), whose
// variables Intel MPI has, too. The others are documented: PALS by HPE Cray (the second row by scripts for its machines), jsrun by IBM Spectrum LSF. Slurm's pmi2
// sets PMI_RANK, too, and its pmix PMIX_RANK, and prun sets no more. The row LOCAL_RANK is for scripts with torchrun's names. The rows
// behind it are for launchers and scripts that tell a rank no place on its node, by their documents.
var launchers = []launcher{
	{"torchrun", "TORCHELASTIC_RUN_ID", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "",
		"TORCHELASTIC_RUN_ID TORCHELASTIC_ERROR_FILE", ""},
	{"Open MPI", "", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK",
		"OMPI_MCA_ess_base_jobid PMIX_NAMESPACE", ""},
	{"hydra", "", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_RANK", "PMI_FD PMI_PORT", ""},
	{"MVAPICH2", "", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_RANK", "PMI_FD PMI_PORT", ""},
	{"PALS", "", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_RANKID", "PALS_APID", ""},
	{"PALS", "", "PALS_LOCAL_RANKID", "PMI_LOCAL_SIZE", "", "PALS_APID", ""},
	{"jsrun", "", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE", "JSM_NAMESPACE_RANK", "PMIX_NAMESPACE", ""},
	{"Horovod", "", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_RANK", "HOROVOD_GLOO_RENDEZVOUS_ADDR HOROVOD_GLOO_RENDEZVOUS_PORT", ""},
	{"Flux", "", "FLUX_TASK_LOCAL_ID", "", "FLUX_TASK_RANK", "FLUX_JOB_ID FLUX_JOB_SIZE FLUX_JOB_NNODES", ""},
	{"PMIx", "", "PMIX_LOCAL_RANK", "", "PMIX_RANK", "PMIX_NAMESPACE", ""},
	{"LOCAL_RANK", "", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "", "", ""},
	{"MPT", "", "MPT_LRANK", "", "", "", ""},
	{"GASNet", "", "", "", "GASNET_RANK", "", ""},
	{"mpirun_rsh", "", "", "", "MPIRUN_RANK", "MPIRUN_ID", ""},
	{"JAX", "", "", "", "JAX_PROCESS_ID", "", "JAX_NUM_PROCESSES"},
	{"RANK", "", "", "", "RANK", "", "WORLD_SIZE"},
}

// ReadTask reads the index on its node of the rank with process pid, in this order:
//
//  1. Slurm's variables, if SLURM_TASK_PID proves that slurmstepd started this process. An srun inside of an mpirun
//     does not remove mpirun's variables.
//  2. The launchers' variables, because under an mpirun Slurm's variables are those of the launcher's own step.
//  3. Slurm's variables.
//  4. Outside of a job, the process is rank 0 of 1. In a job, each process has Slurm's variables, so one without them
//     is refused: its environment was cleaned, and each rank would be rank 0 of 1.
//
// A process has Slurm's variables of the task to which it belongs (recorded: 22.05.8, 24.11.5, 26.05.5):
//
//	process           SLURM_STEP_ID              SLURM_LOCALID, SLURM_GTIDS  SLURM_TASK_PID
//	srun's task       the step's number          its own place               itself, or its shell
//	batch script      absent; -5 with 26.05      0 of 1                      the script
//	interactive step  4294967290; -6 with 26.05  0 of 1                      the shell
//	launcher's rank   those of the task that started it: the batch script, an srun's task that runs the launcher,
//	                  or the launcher's daemon. That is 0 of 1 in every rank
//
// So a launcher's rank whose launcher tells no place looks like rank 0 of 1 in Slurm's variables. It is refused: each
// rank would take the whole GPU. A launcher is known by its variable of the rank in the world, if the variable is not
// from Slurm's own MPI plugins.
//
// A malformed or incomplete index is an error. ReadTask is for ranks and TaskPrologs. A TaskEpilog has other values
// (SLURM_GTIDS=0 in every task, measured with Slurm 22.05.8).
func ReadTask(env slurm.Env, pid int) (Task, error) {
	task, err := readTask(env, pid)
	if err != nil {
		return Task{}, fmt.Errorf("cannot read task: %w", err)
	}
	return task, nil
}

// ManualTask is a task whose rank and size on its node a person gives. Its job and step are Slurm's.
func ManualTask(env slurm.Env, localRank, localSize int) (Task, error) {
	task, err := taskJob(env)
	if err != nil {
		return Task{}, fmt.Errorf("cannot read task: %w", err)
	}
	task.LocalRank, task.LocalSize, task.Source = localRank, localSize, sourceManual
	return task, nil
}

// errCleaned refuses a process that has lost its place. The shell of an salloc on the submit host never had one.
var errCleaned = errors.New("SLURM_JOB_ID is set and SLURM_LOCALID is not, so Slurm's variables are missing: " +
	"put srun before it; in a container, hand on SLURM_LOCALID, SLURM_GTIDS and SLURM_STEP_ID, or run the wrapper outside of it")

func readTask(env slurm.Env, pid int) (Task, error) {
	task, err := taskJob(env)
	if err != nil {
		return Task{}, err
	}
	_, inTask := env["SLURM_LOCALID"]
	if inTask && env["SLURM_TASK_PID"] == strconv.Itoa(pid) {
		return bySlurm(task, env, SourceStepd)
	}
	found, ok, err := byLauncher(task, env)
	switch {
	case ok || err != nil:
		return found, err
	case inTask:
		return bySlurm(task, env, SourceInherited)
	case len(task.JobIDs) > 0:
		return Task{}, errCleaned
	}
	task.LocalRank, task.LocalSize, task.Source = 0, 1, SourceSingle
	return task, nil
}

// taskJob reads the IDs of the job and of the step.
func taskJob(env slurm.Env) (Task, error) {
	var task Task
	for _, name := range jobVariables(env) {
		var id uint32
		if err := slurm.Number(&id, 1, "a job's number")(env[name]); err != nil {
			return Task{}, fmt.Errorf("%s %w", name, err)
		}
		if name == "SLURM_JOB_ID" {
			task.JobID = id
		}
		if !slices.Contains(task.JobIDs, id) {
			task.JobIDs = append(task.JobIDs, id)
		}
	}
	var err error
	task.StepID, err = slurm.StepOf(env)
	return task, err
}

// jobVariables lists the variables with the task's job IDs, in the order of JobIDs. First is the job, then the
// components of a heterogeneous job, then its leader.
func jobVariables(env slurm.Env) []string {
	var found []string
	if _, ok := env["SLURM_JOB_ID"]; ok {
		found = append(found, "SLURM_JOB_ID")
	}
	const prefix = slurm.Component
	var groups []uint64
	for name := range env {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue // skipped first, because parsing every name is slow
		}
		if n, err := slurm.Digits(rest); err == nil && strconv.FormatUint(n, 10) == rest {
			groups = append(groups, n)
		}
	}
	slices.Sort(groups)
	for _, n := range groups {
		found = append(found, prefix+strconv.FormatUint(n, 10))
	}
	if _, ok := env["SLURM_HET_JOB_ID"]; ok {
		found = append(found, "SLURM_HET_JOB_ID")
	}
	return found
}

// bySlurm takes the rank from SLURM_LOCALID and the size from the items of SLURM_GTIDS, the ranks of this step on
// this node. SLURM_NTASKS and similar variables count other nodes or the whole job.
func bySlurm(task Task, env slurm.Env, source string) (Task, error) {
	ids, ok := env["SLURM_GTIDS"]
	if !ok {
		return Task{}, fmt.Errorf("SLURM_LOCALID is set and SLURM_GTIDS is not: do not unset Slurm's variables before the wrapper")
	}
	size := 0
	for id := range strings.SplitSeq(ids, ",") {
		if _, err := slurm.Digits(id); err != nil {
			return Task{}, fmt.Errorf("SLURM_GTIDS is %s, want the numbers of this node's ranks", slurm.Quote(ids))
		}
		size++
	}
	return parsePlace(task, source, "SLURM_LOCALID", env["SLURM_LOCALID"], "the items of SLURM_GTIDS", strconv.Itoa(size))
}

// byLauncher uses the first launcher that sets both rank and size. If a launcher sets only the rank, byLauncher
// fails, because Slurm's variables then describe the launcher and not the rank.
func byLauncher(task Task, env slurm.Env) (Task, bool, error) {
	half := ""
	for _, l := range launchers {
		_, marked := env[l.marker]
		rank, ok := env[l.rank]
		if !ok || l.marker != "" && !marked {
			continue
		}
		size, source, ok := launcherSize(env, l)
		if !ok {
			half = cmp.Or(half, l.rank)
			continue
		}
		found, err := parsePlace(task, l.name, l.rank, rank, source, size)
		return found, err == nil, err
	}
	if half != "" {
		return Task{}, false, fmt.Errorf("%s is %s, but no variable has the number of ranks on this node: export "+
			"LOCAL_RANK and LOCAL_WORLD_SIZE, or unset %[1]s if no launcher has set it", half, slurm.Quote(env[half]))
	}
	for _, l := range launchers {
		if _, ok := env[l.world]; ok && l.several(env) && !bySlurmsPlugin(env, l.world) {
			return Task{}, false, withoutPlace(l)
		}
	}
	return Task{}, false, nil
}

// bySlurmsPlugin reports whether one of Slurm's MPI plugins set this variable of the rank in the world: pmix, pmi2 or
// cray_shasta. pmi2 and cray_shasta number a job as JOB.STEP, and give each task of a step its own rank (recorded: pmix
// and pmi2; cray_shasta by its source). Without Slurm's own variables, the rank is a launcher's all the same.
func bySlurmsPlugin(env slurm.Env, world string) bool {
	if _, inTask := env["SLURM_LOCALID"]; !inTask {
		return false
	}
	switch world {
	case "PMIX_RANK":
		return strings.HasPrefix(env["PMIX_NAMESPACE"], "slurm.pmix.")
	case "PMI_RANK", "PALS_RANKID":
		job, step, _ := strings.Cut(env["PMI_JOBID"], ".")
		if job != "" && step != "" && strings.Trim(job+step, "0123456789") == "" {
			return true
		}
		size := env["PMI_SIZE"]
		return size != "" && size == env["SLURM_STEP_NUM_TASKS"] && env[world] == env["SLURM_PROCID"]
	}
	return false
}

// several reports whether a launcher has started more ranks than this one, as far as it tells. A script may copy Slurm's
// own numbers of a step: these are no launcher's.
func (l launcher) several(env slurm.Env) bool {
	if l.total == "" {
		return true
	}
	ranks, err := slurm.Digits(env[l.total])
	copied := env[l.world] == env["SLURM_PROCID"] && env[l.total] == env["SLURM_STEP_NUM_TASKS"]
	return err == nil && ranks > 1 && !copied
}

// withoutPlace is the error for a rank whose launcher tells it no place on its node. It is the same for all ranks, so
// that one of them can print it.
func withoutPlace(l launcher) error {
	repair := "export LOCAL_RANK and LOCAL_WORLD_SIZE"
	if l.world == "PMIX_RANK" { // PRRTE's own personality has no place; that of Open MPI has (run with PRRTE of 5.0.7)
		repair = "give prun or prterun --personality ompi, or " + repair
	}
	return fmt.Errorf("%s is set, so a launcher started this rank, but no variable has its place on this node: %s, "+
		"or unset %[1]s if no launcher has set it", l.world, repair)
}

// launcherSize returns the size and its variable. Flux has none, but in a job of one node all ranks are on that node.
func launcherSize(env slurm.Env, l launcher) (size, source string, ok bool) {
	if l.size != "" {
		size, ok = env[l.size]
		return size, l.size, ok
	}
	if l.name == "Flux" && env["FLUX_JOB_NNODES"] == "1" {
		size, ok = env["FLUX_JOB_SIZE"]
		return size, "FLUX_JOB_SIZE", ok
	}
	return "", "", false
}

// localMax limits the ranks of a node. A larger value is invalid.
const localMax = 65536

func parsePlace(task Task, source, rankName, rank, sizeName, size string) (Task, error) {
	r, err := slurm.Digits(rank)
	if err != nil {
		return Task{}, fmt.Errorf("%s is %s, want a number from 0", rankName, slurm.Quote(rank))
	}
	n, err := slurm.Digits(size)
	if err != nil || n < 1 || n > localMax {
		return Task{}, fmt.Errorf("%s is %s, want a number from 1 to %d", sizeName, slurm.Quote(size), localMax)
	}
	if r >= n {
		return Task{}, fmt.Errorf("%s is %d, want a rank below %d (%s)", rankName, r, n, sizeName)
	}
	task.LocalRank, task.LocalSize, task.Source = int(r), int(n), source
	return task, nil
}

// TasksOnNode returns the number of the job's tasks on this node, by SLURM_TASKS_PER_NODE ("4(x2),1") and
// SLURM_NODEID. In a step, these are the step's tasks.
func TasksOnNode(env slurm.Env) (int, error) {
	value := env["SLURM_TASKS_PER_NODE"]
	node, _ := strconv.Atoi(env["SLURM_NODEID"])
	for group := range strings.SplitSeq(value, ",") {
		tasks, times, repeated := strings.Cut(strings.TrimSuffix(group, ")"), "(x")
		n, err := slurm.Digits(tasks)
		nodes := uint64(1)
		if err == nil && repeated {
			nodes, err = slurm.Digits(times)
		}
		if err != nil || n < 1 || n > localMax {
			break
		}
		if node -= int(min(nodes, localMax)); node < 0 {
			return int(n), nil
		}
	}
	return 0, fmt.Errorf("cannot count the job's tasks on this node: SLURM_TASKS_PER_NODE is %s", slurm.Quote(value))
}
