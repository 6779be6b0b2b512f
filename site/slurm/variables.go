// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Witness is what proves that a variable belongs to the process that has it. sbatch, salloc and srun hand on their
// caller's environment, and --export=NIL keeps the names that begin with SLURM_. So a job inherits each variable that
// Slurm does not overwrite.
type Witness int

const (
	// Wish means that the user sets the variable for us or for CUDA. It may come from a submitter, as the user's PATH
	// does, and never gives more than the ticket allows.
	Wish Witness = iota
	// BySlurmd means that only a prolog or an epilog reads the variable. slurmd builds their environment from nothing.
	// A task's counts nowhere.
	BySlurmd
	// ByTask means that slurmstepd overwrites the variable in each task of a job: batch script, interactive step and
	// srun's task.
	ByTask
	// ByGPUs is ByTask in a task that has GPUs. A job with a ticket has GPUs.
	ByGPUs
	// ByStep means that only srun's tasks have the variable from Slurm. A batch script inherits its submitter's. The
	// control group or the step daemon shows in which step a process is (package witness).
	ByStep
	// ByComponent means that only tasks of a heterogeneous job have the variable from Slurm. It counts if its numbers
	// contain the task's own job: a submitter's do not.
	ByComponent
	// ByOrigin means that a launcher sets the variable for its ranks. It counts if the launcher has started after the
	// task's first process, whose environment has not the same values (package launch).
	ByOrigin
	// ByTicket means that the wrapper and TaskProlog set the variable. It counts if its pipe folder is one of the
	// ticket's.
	ByTicket
	// Unproven means that nothing on the node proves the variable. It may divide what the ticket gives, and never adds
	// to it.
	Unproven
)

// row is a row of the table of variables.
type row struct {
	name    string // a prefix, if it ends in *
	witness Witness
	from    string // who sets it, in which task, of which Slurm
}

// variables are all variables that a program of ours reads from an environment that Slurm, a launcher or a user has
// made. NewEnv drops all others. The releases are those that were recorded: 22.05.8, 24.11.5, 26.05.5.
var variables = []row{
	{"SLURM_SCRIPT_CONTEXT", BySlurmd, "slurmd; in tasks slurmstepd"},
	{"SLURM_CONF", BySlurmd, "slurmd; in tasks the user, if at all"},
	{"SLURM_JOB_UID", BySlurmd, "slurmd"},
	{"SLURM_JOB_GID", BySlurmd, "slurmd"},
	{"SLURM_JOB_USER", BySlurmd, "slurmd"},
	{"SLURM_JOB_SLUID", BySlurmd, "slurmd, since 26.05"},
	{"SLURM_JOB_PARTITION", BySlurmd, "slurmd"},
	{"SLURM_JOB_ACCOUNT", BySlurmd, "slurmd"},
	{"SLURM_JOB_QOS", BySlurmd, "slurmd, since 26.05"},
	{"SLURM_JOB_RESERVATION", BySlurmd, "slurmd"},
	{"SLURM_JOB_COMMENT", BySlurmd, "slurmd: the user's text"},
	{"SLURM_JOB_CONSTRAINTS", BySlurmd, "slurmd: the user's text"},
	{"SLURM_JOB_RESTART_COUNT", BySlurmd, "slurmd"},
	{"SLURM_JOB_NTASKS", BySlurmd, "slurmd"},
	{"SLURM_NODELIST", BySlurmd, "slurmd"},
	{"SLURM_JOB_NODELIST", BySlurmd, "slurmd"},
	{"SPANK_MPS", BySlurmd, "our SPANK plugin, by slurmd: the user's text"},

	{"SLURM_JOB_ID", ByTask, "slurmstepd; slurmd in hooks"},
	{"SLURM_JOB_NAME", ByTask, "slurmstepd: the user's text"},
	{"SLURM_CLUSTER_NAME", ByTask, "slurmstepd"},
	{"SLURM_JOB_NUM_NODES", ByTask, "slurmstepd; slurmd in hooks"},
	{"SLURMD_NODENAME", ByTask, "slurmstepd"},
	{"SLURM_PROCID", ByTask, "slurmstepd; 0 in a batch script"},
	{"SLURM_LOCALID", ByTask, "slurmstepd; 0 in a batch script"},
	{"SLURM_GTIDS", ByTask, "slurmstepd; 0 in a batch script"},
	{"SLURM_NODEID", ByTask, "slurmstepd"},
	{"SLURM_TASK_PID", ByTask, "slurmstepd"},
	{"SLURM_TASKS_PER_NODE", ByTask, "slurmctld in a batch script, srun in its step"},
	{"SLURM_JOB_END_TIME", ByTask, "slurmstepd, since 23.02"},

	{"SLURM_GPUS_ON_NODE", ByGPUs, "slurmstepd; srun --gres=none removes it"},

	{"SLURM_STEP_ID", ByStep, "slurmstepd; 26.05 sets it to -5 in a batch script, all to -6 or 4294967290 in an interactive step"},
	{"SLURM_STEP_TASKS_PER_NODE", ByStep, "srun"},
	{"SLURM_STEP_NUM_TASKS", ByStep, "srun"},
	{"SLURM_STEP_GPUS", ByStep, "slurmstepd"},
	{"SLURMD_TRES_BIND", ByStep, "slurmd, if the step binds GPUs; else a submitter's stays, so the task's GPUs must fit"},
	{"SLURM_CPU_BIND_TYPE", ByStep, "srun, if the node binds processors"},

	{Component + "*", ByComponent, "slurmctld in a batch script, srun in its step"},
	{"SLURM_HET_JOB_ID", ByComponent, "the same, if at all; it is the first component's job"},
	{"SLURM_HET_SIZE", ByComponent, "the same"},

	{"TORCHELASTIC_RUN_ID", ByOrigin, "torchrun"},
	{"TORCHELASTIC_ERROR_FILE", ByOrigin, "torchrun"},
	{"LOCAL_RANK", ByOrigin, "torchrun, scripts"},
	{"LOCAL_WORLD_SIZE", ByOrigin, "torchrun, scripts"},
	{"RANK", ByOrigin, "torchrun, scripts"},
	{"WORLD_SIZE", ByOrigin, "torchrun, scripts"},
	{"OMPI_COMM_WORLD_LOCAL_RANK", ByOrigin, "Open MPI"},
	{"OMPI_COMM_WORLD_LOCAL_SIZE", ByOrigin, "Open MPI"},
	{"OMPI_COMM_WORLD_RANK", ByOrigin, "Open MPI"},
	{"OMPI_MCA_ess_base_jobid", ByOrigin, "Open MPI 4"},
	{"PMIX_NAMESPACE", ByOrigin, "Open MPI 5, PRRTE, Slurm's pmix"},
	{"PMIX_RANK", ByOrigin, "Open MPI 5, PRRTE, Slurm's pmix"},
	{"PMIX_LOCAL_RANK", ByOrigin, "PRRTE"},
	{"MPI_LOCALRANKID", ByOrigin, "hydra"},
	{"MPI_LOCALNRANKS", ByOrigin, "hydra"},
	{"PMI_RANK", ByOrigin, "hydra, Slurm's pmi2"},
	{"PMI_SIZE", ByOrigin, "hydra, Slurm's pmi2"},
	{"PMI_JOBID", ByOrigin, "hydra, Slurm's pmi2"},
	{"PMI_FD", ByOrigin, "hydra, Slurm's pmi2"},
	{"PMI_PORT", ByOrigin, "hydra"},
	{"PMI_LOCAL_SIZE", ByOrigin, "PALS"},
	{"PALS_LOCAL_RANKID", ByOrigin, "PALS"},
	{"PALS_LOCAL_SIZE", ByOrigin, "PALS"},
	{"PALS_RANKID", ByOrigin, "PALS, Slurm's cray_shasta"},
	{"PALS_APID", ByOrigin, "PALS"},
	{"MV2_COMM_WORLD_LOCAL_RANK", ByOrigin, "MVAPICH2"},
	{"MV2_COMM_WORLD_LOCAL_SIZE", ByOrigin, "MVAPICH2"},
	{"MV2_COMM_WORLD_RANK", ByOrigin, "MVAPICH2"},
	{"JSM_NAMESPACE_LOCAL_RANK", ByOrigin, "jsrun"},
	{"JSM_NAMESPACE_LOCAL_SIZE", ByOrigin, "jsrun"},
	{"JSM_NAMESPACE_RANK", ByOrigin, "jsrun"},
	{"HOROVOD_LOCAL_RANK", ByOrigin, "horovodrun"},
	{"HOROVOD_LOCAL_SIZE", ByOrigin, "horovodrun"},
	{"HOROVOD_RANK", ByOrigin, "horovodrun"},
	{"HOROVOD_GLOO_RENDEZVOUS_ADDR", ByOrigin, "horovodrun"},
	{"HOROVOD_GLOO_RENDEZVOUS_PORT", ByOrigin, "horovodrun"},
	{"MPT_LRANK", ByOrigin, "HPE's MPT"},
	{"GASNET_RANK", ByOrigin, "GASNet's spawners"},
	{"MPIRUN_RANK", ByOrigin, "mpirun_rsh"},
	{"MPIRUN_ID", ByOrigin, "mpirun_rsh"},
	{"JAX_PROCESS_ID", ByOrigin, "scripts for JAX"},
	{"JAX_NUM_PROCESSES", ByOrigin, "scripts for JAX"},
	{"FLUX_TASK_LOCAL_ID", ByOrigin, "Flux"},
	{"FLUX_TASK_RANK", ByOrigin, "Flux"},
	{"FLUX_JOB_ID", ByOrigin, "Flux"},
	{"FLUX_JOB_SIZE", ByOrigin, "Flux"},
	{"FLUX_JOB_NNODES", ByOrigin, "Flux"},
	{"_", ByOrigin, "shells: the program that they start"},
	{"IPATH_NO_BACKTRACE", ByOrigin, "mpirun of Open MPI 4, for its srun"},
	{"HFI_NO_BACKTRACE", ByOrigin, "mpirun of Open MPI 4, for its srun"},
	{"PMIX_MCA_mca_base_component_show_load_errors", ByOrigin, "mpirun of Open MPI 4, for its srun"},
	{"OMPI_TOOL_NAME", ByOrigin, "mpirun of Open MPI 5 and 6, for its srun"},
	{"OMPI_VERSION", ByOrigin, "mpirun of Open MPI 5 and 6, for its srun"},
	{"OMPI_MCA_PREFIXES", ByOrigin, "mpirun of Open MPI 5 and 6, for its srun"},

	{"CUDA_MPS_PIPE_DIRECTORY", ByTicket, "TaskProlog, the wrapper, or the user for a daemon of the user's own"},
	{"CUDA_MPS_LOG_DIRECTORY", ByTicket, "the same"},
	{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ByTicket, "the same; slurmstepd in a job of gres/mps"},
	{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ByTicket, "the same"},
	{"CUDA_MPS_CLIENT_PRIORITY", ByTicket, "the same"},

	{"SLURM_JOB_GPUS", Unproven, "slurmd in hooks; slurmstepd in a batch script and its steps, but not in the steps of srun's and salloc's jobs"},
	{"GPU_DEVICE_ORDINAL", Unproven, "slurmstepd in a task with gres/gpu, as CUDA_VISIBLE_DEVICES; none with gres/mps, and none with AutoDetect=nvml"},
	{"SLURM_SHARDS_ON_NODE", Unproven, "slurmstepd in a job with shards; no release removes a submitter's"},
	{"SLURM_ARRAY_JOB_ID", Unproven, "slurmctld in a job array; a prolog has none"},
	{"SLURM_ARRAY_TASK_ID", Unproven, "slurmctld in a job array; a prolog has none"},
	{"SLURM_GPUS_PER_TASK", Unproven, "sbatch and srun, if the option is given; srun takes an inherited one as its option"},
	{"SLURM_TRES_PER_TASK", Unproven, "the same, since 24.11"},
	{"SLURM_NTASKS_PER_GPU", Unproven, "the same"},

	{"CUDA_VISIBLE_DEVICES", Wish, "slurmstepd in a task with GPUs, slurmd in hooks, TaskProlog; then the user"},
	{"CUDA_DEVICE_ORDER", Wish, "the user"},
	{"SLURM_MPS", Wish, "the user"},
	{"SLURM_MPS_*", Wish, "the user; the last of them TaskProlog, SLURM_MPS_TOLD"},
	{"PATH", Wish, "the user"},
	{"LD_LIBRARY_PATH", Wish, "the user"},
}

// byName has the rows with a whole name.
var byName = func() map[string]Witness {
	all := map[string]Witness{}
	for _, v := range variables {
		all[v.name] = v.witness
	}
	return all
}()

// witnessOf returns the witness of a variable. It is not ok if the table has no row for it.
func witnessOf(name string) (w Witness, ok bool) {
	if w, ok = byName[name]; ok || !strings.HasPrefix(name, "SLURM_") {
		return w, ok
	}
	for _, v := range variables {
		if prefix, is := strings.CutSuffix(v.name, "*"); is && strings.HasPrefix(name, prefix) {
			return v.witness, true
		}
	}
	return 0, false
}

// Names returns the variables that have a witness.
func Names(w Witness) (names []string) {
	for _, v := range variables {
		if v.witness == w {
			names = append(names, v.name)
		}
	}
	return names
}

// Witnessed returns the environment of a task without what its submitter has handed on. The step is the one in which
// the node shows the process: a number, "batch", "interactive" or "extern", or "" if nothing shows it, as in a pid
// namespace. Then the variables of a step are believed, because srun's tasks in containers need them.
func (e Env) Witnessed(step string) Env {
	env := maps.Clone(e)
	env.drop(BySlurmd)
	_, err := Digits(step)
	_, claimed := e["SLURM_STEP_ID"]
	switch {
	case step != "" && err != nil:
		env.drop(ByStep)
	case step != "" && claimed:
		env["SLURM_STEP_ID"] = step
	}
	if !e.ofComponent() {
		env.drop(ByComponent)
	}
	maps.DeleteFunc(env, func(name, _ string) bool { return isComponent(name) && !e.hasComponent(name) })
	if first, is := env[Component+"0"]; is && env["SLURM_HET_JOB_ID"] != first {
		delete(env, "SLURM_HET_JOB_ID")
	}
	return env
}

func (e Env) drop(w Witness) {
	maps.DeleteFunc(e, func(name, _ string) bool {
		of, ok := witnessOf(name)
		return ok && of == w
	})
}

// Component begins the names of the variables with the job of each component of a heterogeneous job.
const Component = "SLURM_JOB_ID_HET_GROUP_"

func isComponent(name string) bool { return strings.HasPrefix(name, Component) }

// hasComponent reports whether a variable is that of a component. A job that has fewer components than its submitter's
// inherits the rest.
func (e Env) hasComponent(name string) bool {
	size, err := Digits(e["SLURM_HET_SIZE"])
	if err != nil {
		size = maxComponents
	}
	n, err := Digits(strings.TrimPrefix(name, Component))
	return isComponent(name) && err == nil && n < size
}

// ofComponent reports whether the task's job is one of the heterogeneous job that its environment describes. Slurm
// overwrites the job's number, and no submitter's number is the same.
func (e Env) ofComponent() bool {
	job, inJob := e["SLURM_JOB_ID"]
	if !inJob || e["SLURM_HET_JOB_ID"] == job { // scripts unset it, so that mpirun does not start its daemons by srun
		return true
	}
	for name, value := range e {
		if value == job && e.hasComponent(name) {
			return true
		}
	}
	return false
}

// maxComponents is MAX_HET_JOB_COMPS.
const maxComponents = 128

// StrangersNames returns the variables of MPS that a task has from another job, whose daemon it does not use. Slurm sets
// the percentage itself in a job with gres/mps: a whole number, and no second list of GPUs beside CUDA's.
func StrangersNames(env Env) (names []string) {
	const percent = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	n, err := Digits(env[percent])
	ordinal, listed := env["GPU_DEVICE_ORDINAL"]
	bySlurm := err == nil && n >= 1 && n <= 100 && !(listed && ordinal == env["CUDA_VISIBLE_DEVICES"])
	for _, name := range Names(ByTicket) {
		if _, set := env[name]; set && !(bySlurm && name == percent) {
			names = append(names, name)
		}
	}
	return names
}

// PipesOf returns the job whose daemon has a pipe folder, the prolog's or that of --own. It is not ok for another
// daemon's folder, as of a user's own. Both end in /jobs/JOB/N/pipe, below a folder whose name begins with slurm-mps.
func PipesOf(path string) (job uint32, ok bool) {
	parts := strings.Split(path, "/")
	n := len(parts)
	if n < 6 || parts[n-1] != "pipe" || parts[n-4] != "jobs" ||
		!slices.ContainsFunc(parts[:n-4], func(part string) bool { return strings.HasPrefix(part, "slurm-mps") }) {
		return 0, false
	}
	number, err1 := strconv.ParseUint(parts[n-3], 10, 32)
	_, err2 := Digits(parts[n-2])
	return uint32(number), err1 == nil && err2 == nil
}
