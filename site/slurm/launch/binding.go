// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Binding is Slurm's report of the GPUs of one task. A launcher's ranks inherit the launcher's own step's
// binding.
type Binding struct {
	// GPUs are positions in the node's list, as in Job.GPUs, or nil if Slurm does not report them. If Slurm confines
	// each task of a step to its own devices, they count from 0 within those instead (recorded: 22.05,
	// ConstrainDevices and --gpus-per-task).
	GPUs []int

	AllOfStep   bool // GPUs are all GPUs of the step on this node, so all of its tasks here have the same
	TasksPerGPU int  // maximum number of this step's tasks on this node that share a GPU, 0 if unknown
	GPUsPerTask int  // --gpus-per-task of the job, the sum of all types, 0 if it was not given

	// OwnGPUs is the number of GPUs that the step's own binding gives this task: with --gpus-per-task on srun, or with
	// a mask. It is 0 if the step has no such binding. Slurm 22.05 tells the tasks of srun --gpus-per-task nothing
	// else (recorded).
	OwnGPUs int
	OneTask bool // srun's step has one task on each node, so that no other task can use the step's GPUs
}

// ReadBinding reads the binding from a task's environment. With --gpus-per-task or --gpu-bind, the task has fewer
// GPUs than the step (recorded). CUDA_VISIBLE_DEVICES is not used, because it counts differently under
// ConstrainDevices.
func ReadBinding(env slurm.Env) (binding Binding, err error) {
	if err := slurm.Positions(&binding.GPUs)(env["SLURM_STEP_GPUS"]); err != nil {
		return Binding{}, fmt.Errorf("cannot read binding: SLURM_STEP_GPUS %w", err)
	}
	if value := env["SLURM_NTASKS_PER_GPU"]; value != "" {
		if err := slurm.Count(&binding.TasksPerGPU)(value); err != nil {
			return Binding{}, fmt.Errorf("cannot read binding: SLURM_NTASKS_PER_GPU %w", err)
		}
	}
	if binding.GPUsPerTask, err = perTask(env); err != nil {
		return Binding{}, fmt.Errorf("cannot read binding: SLURM_GPUS_PER_TASK %w", err)
	}
	onNode, _ := strconv.Atoi(env["SLURM_GPUS_ON_NODE"]) // the step's number, whatever is bound to the task (recorded)
	task, _ := bySlurm(Task{}, env, "")                  // ReadTask reports the error
	way, list := bindWay(env["SLURMD_TRES_BIND"])
	if !fits(way, list, task, len(binding.GPUs), onNode) {
		way, list = "", ""
	}
	binding.AllOfStep = onNode > 0 && len(binding.GPUs) == onNode && (way == "" || way == "none" || way == "closest")
	if way == "per_task" || way == "mask_gpu" {
		binding.OwnGPUs = len(binding.GPUs)
	}
	step, _ := slurm.StepOf(env) // ReadTask reports the error
	binding.OneTask = step != "" && onePerNode(env["SLURM_STEP_TASKS_PER_NODE"])
	if tasks := maxPerGPU(way, list, task, onNode); tasks > 0 {
		binding.TasksPerGPU = tasks
	}
	return binding, nil
}

// WithoutGPU reports whether a task of a job with GPUs belongs to a step without GPUs (srun --gres=none). In every
// other step, Slurm sets the number of its GPUs on the node (recorded).
func WithoutGPU(env slurm.Env, task Task) bool {
	return env["SLURM_JOB_GPUS"] != "" && env["SLURM_STEP_GPUS"] == "" && env["SLURM_GPUS_ON_NODE"] == "" && task.StepID != "" && task.BySlurm()
}

// perTask adds up "2" or "a100:1,h200:1". Since 24.11 the variable is SLURM_TRES_PER_TASK, "cpu=4,gres/gpu=2". It
// contains the user's --tres-per-task unchanged: "gres/gpu:1", or a kind without a number, which means 1 (recorded).
func perTask(env slurm.Env) (sum int, err error) {
	if value := env["SLURM_GPUS_PER_TASK"]; value != "" {
		for typed := range strings.SplitSeq(value, ",") {
			var n int
			if err := slurm.Count(&n)(typed[strings.LastIndex(typed, ":")+1:]); err != nil {
				return 0, err
			}
			sum += n
		}
		return sum, nil
	}
	for kind := range strings.SplitSeq(env["SLURM_TRES_PER_TASK"], ",") {
		rest, ok := strings.CutPrefix(kind, "gres/gpu")
		if !ok || rest != "" && rest[0] != ':' && rest[0] != '=' { // gres/gpumem is another kind
			continue
		}
		n, err := slurm.Digits(rest[strings.LastIndexAny(rest, ":=")+1:])
		if err != nil {
			n = 1
		}
		sum += int(n)
	}
	return sum, nil
}

// bindWay parses srun's form of --gpu-bind, --ntasks-per-gpu and --gpus-per-task: "gpu:single:2", since 24.11
// "gres/gpu:single:2" (recorded). "verbose," precedes the way if the user asked for it. Other kinds of devices follow
// a ";".
func bindWay(value string) (way, list string) {
	for kind := range strings.SplitSeq(value, ";") {
		if gpu, ok := strings.CutPrefix(strings.TrimPrefix(kind, "gres/"), "gpu:"); ok {
			way, list, _ = strings.Cut(strings.TrimPrefix(gpu, "verbose,"), ":")
		}
	}
	return way, list
}

// fits reports whether a task's GPUs are as many as a way to bind gives it. If a step binds none, its tasks have the
// variable of the process that has submitted the job (22.05.8).
func fits(way, list string, task Task, gpus, onNode int) bool {
	switch {
	case gpus == 0: // Slurm does not report them
	case way == "single", way == "map_gpu":
		return gpus == 1
	case way == "mask_gpu":
		masks := entries(list, true)
		return len(masks) == 0 || gpus <= bits.OnesCount64(masks[task.LocalRank%len(masks)])
	case way == "per_task":
		n, err := strconv.Atoi(list)
		return err != nil || n == gpus || n > 0 && gpus == 1 && task.LocalRank >= onNode/n
	}
	return true
}

// maxPerGPU returns the maximum number of tasks that share a GPU with this one. It returns 0 if that depends on the
// node's topology, or if the way is unknown. Slurm assigns by the task's number on the node, and begins again at the
// end of its list (recorded).
func maxPerGPU(way, list string, task Task, gpus int) int {
	if task.LocalSize == 0 {
		return 0
	}
	switch way {
	case "map_gpu", "mask_gpu":
		return sameEntry(entries(list, way == "mask_gpu"), way == "mask_gpu", task)
	case "single":
		return maxSingle(list, task.LocalSize, gpus)
	case "per_task":
		return maxPerTask(list, task, gpus)
	}
	return 0
}

// entries parses "1,0*2" as 1, 0, 0. Entries are numbers, decimal or with 0x, or masks, always hexadecimal. It
// returns nil if the text is not such a list.
func entries(list string, masks bool) []uint64 {
	var all []uint64
	for entry := range strings.SplitSeq(list, ",") {
		value, times, repeated := strings.Cut(entry, "*")
		n := 1
		var err1 error
		if repeated {
			n, err1 = strconv.Atoi(times)
		}
		hex, isHex := strings.CutPrefix(strings.ToLower(value), "0x")
		base := 10
		if isHex || masks {
			base = 16
		}
		v, err2 := strconv.ParseUint(hex, base, 64)
		if err1 != nil || err2 != nil || n < 1 || n > localMax-len(all) {
			return nil
		}
		all = append(all, slices.Repeat([]uint64{v}, n)...)
	}
	return all
}

// sameEntry counts the tasks whose entry names one of this task's GPUs.
func sameEntry(list []uint64, masks bool, task Task) (count int) {
	if len(list) == 0 {
		return 0
	}
	mine := list[task.LocalRank%len(list)]
	for rank := range task.LocalSize {
		entry := list[rank%len(list)]
		if entry == mine || masks && entry&mine != 0 {
			count++
		}
	}
	return count
}

// maxSingle is for --gpu-bind=single:n. Slurm binds n tasks to each GPU, and begins again when every GPU has n. The
// first GPU depends on the topology, so the result is that of the first GPU.
func maxSingle(count string, tasks, gpus int) int {
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || n > localMax || gpus < 1 || gpus > localMax {
		return 0
	}
	return tasks/(n*gpus)*n + min(n, tasks%(n*gpus))
}

// maxPerTask is for per_task. Each task has its own GPUs, and tasks for which none is left are bound to the first.
func maxPerTask(count string, task Task, gpus int) int {
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || gpus < n {
		return 0
	}
	served := gpus / n
	if task.LocalRank > 0 && task.LocalRank < served {
		return 1
	}
	return 1 + max(0, task.LocalSize-served)
}
