// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

// position is a rank's position on the GPUs. devices are indices into the ticket's devices: one, except for a rank
// with several GPUs. ranks is the number of ranks on each of these devices, and index is this rank's index among
// them. sees are all devices that the rank sees, its own included, or nil if it sees only its own.
type position struct {
	devices []int
	sees    []int
	ranks   int
	index   int
	bounded bool // ranks is an upper bound, and index is that of the last rank
}

// visible returns the devices that the rank sees.
func (p position) visible() []int {
	if p.sees != nil {
		return p.sees
	}
	return p.devices
}

// opener reports whether this process may open nvidiaN. That is unknown if it is nil, or if it may open none of the job's.
type opener func(minor int) bool

// chooseGPU chooses a rank's GPUs. The number of ranks per GPU is exact for cyclic and block placement. With Slurm's
// GPU binding, it is an upper bound, and the rank takes the smallest share. Shares of a GPU never exceed the grant.
//
// A task that requested several GPUs (--gpus-per-task=2) gets that many: the devices are divided into groups of this
// size. The task of a step with one task on each node gets all of the step's GPUs, because no other task can use them.
// For such a step, Slurm 22.05 gives the same variables for --gpus-per-task=2 and for --gres=gpu:2 (recorded).
func chooseGPU(devices []lease.TicketDevice, task launch.Task, binding launch.Binding, choice choice, canOpen opener) position {
	if task.Source == launch.SourceSlot {
		return slotPosition(len(devices), task, choice)
	}
	all := indices(len(devices))
	bound, confined := boundDevices(devices, task, binding, canOpen)
	if binding.AllOfStep || !task.BySlurm() { // the other ranks of the launch have the same devices
		all, confined = bound, false
	}
	if choice == inheritGPUs {
		return inherited(bound, len(all), task, binding)
	}
	if confined {
		choice = autoGPU // the rank can use no other device
	}
	if choice == allGPUs {
		place := cyclic(grouped(all, 1), task)
		place.sees = all
		return place
	}
	each := min(perTask(task, binding), len(all))
	groups := grouped(all, each)
	switch choice {
	case blockGPU:
		return block(groups, task)
	case cyclicGPU:
		return cyclic(groups, task)
	}
	if each == 1 && binding.OneTask && task.BySlurm() && sameDaemon(devices, bound) {
		return position{devices: bound, ranks: 1}
	}
	ranks := ranksPerGPU(len(groups), task, binding)
	if len(bound) == len(all) && ranks <= spread(task.LocalSize, len(groups)) {
		return cyclic(groups, task)
	}
	groups = grouped(bound, min(each, len(bound)))
	return position{devices: groups[task.LocalRank%len(groups)], ranks: ranks, index: ranks - 1, bounded: true}
}

// pinned returns the devices that the user has named in CUDA_VISIBLE_DEVICES in a batch script or a shell, nil if these
// are not some of the job's. A task of srun has the variable from Slurm. A number counts in the job's list, if Slurm's
// numbers are the same.
func (r *Rank) pinned(devices []lease.TicketDevice) (pins []int) {
	names := strings.Split(r.Visible, ",")
	if !byItself(r.Task) || r.Options.GPU != "" && r.Options.GPU != autoGPU || len(names) >= len(devices) {
		return nil
	}
	for _, name := range names {
		i := slices.IndexFunc(devices, func(d lease.TicketDevice) bool {
			return strings.HasPrefix(name, "GPU-") && strings.HasPrefix(string(d.UUID), name) || name == strconv.Itoa(d.Position)
		})
		if i < 0 || name == strconv.Itoa(devices[i].Position) && devices[i].Position != i {
			return nil
		}
		pins = append(pins, i)
	}
	return pins
}

// byItself reports whether a batch script or a shell has started the process, and no launcher or srun.
func byItself(task launch.Task) bool {
	return task.StepID == "" && task.LocalSize == 1 && (task.Source == launch.SourceSingle || task.Source == launch.SourceInherited)
}

// perTask returns how many GPUs Slurm gives each task. The step's binding comes before the job's request: the
// variables of the request are inherited from the batch script.
func perTask(task launch.Task, binding launch.Binding) int {
	if task.BySlurm() && binding.OwnGPUs > 0 {
		return binding.OwnGPUs
	}
	return max(binding.GPUsPerTask, 1)
}

// sameDaemon reports whether some devices have one daemon, because a process can use only one (measured).
func sameDaemon(devices []lease.TicketDevice, some []int) bool {
	return !slices.ContainsFunc(some, func(i int) bool { return devices[i].Daemon != devices[some[0]].Daemon })
}

// ranksPerGPU returns the maximum number of ranks that share a GPU with this one.
func ranksPerGPU(groups int, task launch.Task, binding launch.Binding) int {
	if binding.TasksPerGPU > 0 && !binding.AllOfStep && task.BySlurm() {
		return min(binding.TasksPerGPU, task.LocalSize)
	}
	return spread(task.LocalSize, groups)
}

// boundDevices returns the devices for the rank, and whether it can open no others while other ranks of the launch may.
// The devices that the process may open count first, because Slurm's positions are meaningless for a task that is
// confined to its own devices (recorded). Next count Slurm's positions, if all of them are devices of the job. A
// launcher's rank has the positions of the launcher's daemon. With GPUs per task, these are fewer than the rank may
// open.
func boundDevices(devices []lease.TicketDevice, task launch.Task, binding launch.Binding, canOpen opener) (bound []int, confined bool) {
	all := indices(len(devices))
	open := slices.DeleteFunc(slices.Clone(all), func(i int) bool { return canOpen == nil || !canOpen(devices[i].Minor) })
	named := slices.DeleteFunc(slices.Clone(all), func(i int) bool { return !slices.Contains(binding.GPUs, devices[i].Position) })
	switch {
	case len(open) > 0 && len(open) < len(all):
		return open, true
	case len(open) > 0 && !task.BySlurm() && !binding.AllOfStep:
		return open, false
	case len(named) > 0 && len(named) == len(binding.GPUs):
		return named, false
	}
	return all, false
}

// inherited returns all GPUs that Slurm bound to the task. If these are all of the job's, every rank of the node has
// all.
func inherited(bound []int, all int, task launch.Task, binding launch.Binding) position {
	if len(bound) == all {
		return position{devices: bound, ranks: task.LocalSize, index: task.LocalRank}
	}
	ranks := spread(task.LocalSize*len(bound), all)
	if binding.TasksPerGPU > 0 {
		ranks = min(binding.TasksPerGPU, task.LocalSize)
	}
	return position{devices: bound, ranks: ranks, index: ranks - 1, bounded: true}
}

// indices returns 0 to n-1.
func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// grouped divides devices into groups of n. It drops an incomplete group.
func grouped(devices []int, n int) [][]int {
	var groups [][]int
	for group := range slices.Chunk(devices, n) {
		if len(group) == n {
			groups = append(groups, group)
		}
	}
	return groups
}

// cyclic places rank r on group r mod n.
func cyclic(groups [][]int, task launch.Task) position {
	n := len(groups)
	i := task.LocalRank % n
	return position{devices: groups[i], ranks: spread(task.LocalSize-i, n), index: task.LocalRank / n}
}

// block places the first ranks on the first group. If the ranks do not divide evenly, the first groups get one more
// each.
func block(groups [][]int, task launch.Task) position {
	first := 0
	for i, group := range groups {
		ranks := spread(task.LocalSize-i, len(groups))
		if task.LocalRank < first+ranks {
			return position{devices: group, ranks: ranks, index: task.LocalRank - first}
		}
		first += ranks
	}
	return cyclic(groups, task)
}

// spread returns the maximum number of ranks on each of n when they are spread evenly.
func spread(ranks, n int) int { return (ranks + n - 1) / n }
