// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Binding is what Slurm says of the GPUs of one task. A launcher's ranks inherit that of the launcher's own step.
type Binding struct {
	// GPUs are positions in the node's list, as in Job.GPUs; nil where Slurm does not say. Where it confines each task of
	// a step to its own devices they count from 0 in those instead (recorded: 22.05, ConstrainDevices and --gpus-per-task).
	GPUs []int

	AllOfStep   bool // GPUs are all that the step has on this node: each of its tasks here has the same
	TasksPerGPU int  // most tasks of this step and node that are bound to one GPU, 0 where Slurm does not say
	GPUsPerTask int  // --gpus-per-task, of all types together, 0 where it was not given
}

// ReadBinding reads it from a task's environment. With --gpus-per-task or --gpu-bind the task's GPUs are fewer than the
// step's (recorded); CUDA_VISIBLE_DEVICES is not asked, since it counts in another way under ConstrainDevices.
func ReadBinding(env Env) (Binding, error) {
	binding, err := readBinding(env)
	if err != nil {
		return Binding{}, fmt.Errorf("cannot read binding: %w", err)
	}
	return binding, nil
}

func readBinding(env Env) (binding Binding, err error) {
	var job Job
	if value := env["SLURM_STEP_GPUS"]; value != "" {
		if err := positions(&job, value); err != nil {
			return binding, fmt.Errorf("SLURM_STEP_GPUS %w", err)
		}
		binding.GPUs = job.GPUs
	}
	if value := env["SLURM_NTASKS_PER_GPU"]; value != "" {
		if err := count(func(*Job) *int { return &binding.TasksPerGPU })(&job, value); err != nil {
			return binding, fmt.Errorf("SLURM_NTASKS_PER_GPU %w", err)
		}
	}
	if binding.GPUsPerTask, err = perTask(env); err != nil {
		return binding, err
	}
	onNode, _ := strconv.Atoi(env["SLURM_GPUS_ON_NODE"]) // the step's, whatever is bound to the task (recorded)
	way, list := bindWay(env["SLURMD_TRES_BIND"])
	binding.AllOfStep = onNode > 0 && len(binding.GPUs) == onNode && (way == "" || way == "none" || way == "closest")
	if most := maxPerGPU(way, list, taskOf(env), onNode); most > 0 {
		binding.TasksPerGPU = most
	}
	return binding, nil
}

// perTask adds up "2" or "a100:1,h200:1". Since 24.11 that is SLURM_TRES_PER_TASK, "cpu=4,gres/gpu=2", in which what the
// user wrote with --tres-per-task stands as it is: "gres/gpu:1", and a kind without a number is one (recorded).
func perTask(env Env) (sum int, err error) {
	if value := env["SLURM_GPUS_PER_TASK"]; value != "" {
		for typed := range strings.SplitSeq(value, ",") {
			var n int
			if err := count(func(*Job) *int { return &n })(nil, typed[strings.LastIndex(typed, ":")+1:]); err != nil {
				return 0, fmt.Errorf("SLURM_GPUS_PER_TASK %w", err)
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
		n, err := parseDigits(rest[strings.LastIndexAny(rest, ":=")+1:])
		if err != nil {
			n = 1
		}
		sum += int(n)
	}
	return sum, nil
}

// bindWay takes apart what srun made of --gpu-bind, --ntasks-per-gpu and --gpus-per-task: "gpu:single:2", since 24.11
// "gres/gpu:single:2" (recorded), with "verbose," before the way where the user asked for it, and other kinds of devices
// behind a ";".
func bindWay(value string) (way, list string) {
	for kind := range strings.SplitSeq(value, ";") {
		if gpu, ok := strings.CutPrefix(strings.TrimPrefix(kind, "gres/"), "gpu:"); ok {
			way, list, _ = strings.Cut(strings.TrimPrefix(gpu, "verbose,"), ":")
		}
	}
	return way, list
}

// among is a task's place among those of its step on its node.
type among struct{ rank, tasks int }

func taskOf(env Env) among {
	rank, err := parseDigits(env["SLURM_LOCALID"])
	if ids := env["SLURM_GTIDS"]; ids != "" && err == nil {
		return among{int(rank), strings.Count(ids, ",") + 1}
	}
	return among{}
}

// maxPerGPU is how many tasks at most share a GPU with this one; 0 where the way leaves that to the node's wiring, or
// is not understood. Slurm deals by the task's number on the node, and starts anew where its list ends (recorded).
func maxPerGPU(way, list string, task among, gpus int) int {
	if task.tasks == 0 {
		return 0
	}
	switch way {
	case "map_gpu", "mask_gpu":
		return alike(entries(list, way == "mask_gpu"), way == "mask_gpu", task)
	case "single":
		return dealt(list, task.tasks, gpus)
	case "per_task":
		return overflown(list, task, gpus)
	}
	return 0
}

// entries reads "1,0*2" as 1, 0, 0: numbers, decimal or with 0x, or masks, always hexadecimal; nil where it is no list.
func entries(list string, masks bool) []uint64 {
	var all []uint64
	for entry := range strings.SplitSeq(list, ",") {
		value, times, repeated := strings.Cut(entry, "*")
		n := 1
		var err1, err2 error
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

// alike counts the tasks whose entry names a GPU of this one's.
func alike(list []uint64, masks bool, task among) (count int) {
	if len(list) == 0 {
		return 0
	}
	own := list[task.rank%len(list)]
	for rank := range task.tasks {
		entry := list[rank%len(list)]
		if entry == own || masks && entry&own != 0 {
			count++
		}
	}
	return count
}

// dealt: so many to each GPU, and once every GPU has its number, again. Which GPU is served first depends on the wiring,
// so every GPU is taken to be that one.
func dealt(each string, tasks, gpus int) int {
	n, err := strconv.Atoi(each)
	if err != nil || n < 1 || n > localMax || gpus < 1 || gpus > localMax {
		return 0
	}
	return tasks/(n*gpus)*n + min(n, tasks%(n*gpus))
}

// overflown: each task has GPUs of its own, and those for whom none is left are bound to the first.
func overflown(each string, task among, gpus int) int {
	n, err := strconv.Atoi(each)
	if err != nil || n < 1 || gpus < n {
		return 0
	}
	served := gpus / n
	if task.rank > 0 && task.rank < served {
		return 1
	}
	return 1 + max(0, task.tasks-served)
}

// SourceManual is the Source of a task whose place a person gave.
const SourceManual = "by hand"

// ManualTask is a task whose place on its node the launcher does not say and a person does; job and step are Slurm's.
func ManualTask(env Env, localRank, localSize int) (Task, error) {
	task, err := taskJob(env)
	if err != nil {
		return Task{}, fmt.Errorf("cannot read task: %w", err)
	}
	task.LocalRank, task.LocalSize, task.Source = localRank, localSize, SourceManual
	return task, nil
}
