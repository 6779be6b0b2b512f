package slurm

import (
	"fmt"
	"strings"
)

// Binding is what Slurm says of the GPUs of one task. A launcher's ranks inherit that of the launcher's own step.
type Binding struct {
	GPUs    []int // positions in the node's list, as in Job.GPUs; nil where Slurm does not say
	PerGPU  int   // --ntasks-per-gpu, 0 where it was not given
	PerTask int   // --gpus-per-task, of all types together, 0 where it was not given
}

// ReadBinding reads it from a task's environment. With --gpus-per-task or --gpu-bind the task's GPUs are fewer than the
// step's (recorded); CUDA_VISIBLE_DEVICES is not asked, since it counts in another way under ConstrainDevices.
func ReadBinding(env Environ) (Binding, error) {
	var job Job
	var binding Binding
	if value := env["SLURM_STEP_GPUS"]; value != "" {
		if err := positions(&job, value); err != nil {
			return Binding{}, fmt.Errorf("cannot read binding: SLURM_STEP_GPUS %w", err)
		}
		binding.GPUs = job.GPUs
	}
	if value := env["SLURM_NTASKS_PER_GPU"]; value != "" {
		if err := count(func(*Job) *int { return &binding.PerGPU })(&job, value); err != nil {
			return Binding{}, fmt.Errorf("cannot read binding: SLURM_NTASKS_PER_GPU %w", err)
		}
	}
	if value := env["SLURM_GPUS_PER_TASK"]; value != "" {
		for typed := range strings.SplitSeq(value, ",") { // "2", or "a100:1,h200:1"
			var n int
			if err := count(func(*Job) *int { return &n })(&job, typed[strings.LastIndex(typed, ":")+1:]); err != nil {
				return Binding{}, fmt.Errorf("cannot read binding: SLURM_GPUS_PER_TASK %w", err)
			}
			binding.PerTask += n
		}
	}
	return binding, nil
}

// SourceHand is the Source of a task whose place a person gave.
const SourceHand = "by hand"

// TaskByHand is a task whose place on its node the launcher does not say and a person does; job and step are Slurm's.
func TaskByHand(env Environ, localRank, localSize int) (Task, error) {
	task, err := taskJob(env)
	if err != nil {
		return Task{}, fmt.Errorf("cannot read task: %w", err)
	}
	task.LocalRank, task.LocalSize, task.Source = localRank, localSize, SourceHand
	return task, nil
}
