// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"slices"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// position is where a rank comes to sit: indices into the ticket's devices, one but for a rank with several GPUs, how many
// ranks share each of them, and which of those this one is.
type position struct {
	devices []int
	beside  int
	index   int
}

// HostInfo is what the node says of the process itself.
type HostInfo struct {
	NUMA    int                  // the node of all of its CPUs, -1 where they are of several or it is not known
	CanOpen func(minor int) bool // whether it may open nvidiaN; nil, or none of the job's, where that is not known
}

// chooseGPU seats a rank. What the ranks beside it do is known exactly for ranks that go round all of the job's GPUs or
// take them in blocks. Where Slurm bound GPUs to single tasks, or NUMA nodes decide, it is bounded from above, and the
// rank takes the smallest of the shares: together they are never more than was meant.
//
// A task that asked for several GPUs (--gpus-per-task=2) gets that many: the devices are dealt in groups of so many.
func chooseGPU(devices []lease.TicketDevice, task slurm.Task, binding slurm.Binding, choice Choice, at HostInfo) position {
	all := make([]int, len(devices))
	for i := range devices {
		all[i] = i
	}
	bound, confined := ownDevices(devices, all, task, binding, at)
	if binding.AllOfStep || !task.BySlurm() { // the others of the launch have these as well, and no more
		all, confined = bound, false
	}
	if choice == Inherit {
		return inherited(bound, len(all), task, binding)
	}
	if confined {
		choice = Auto // there is no other device to choose
	}
	each := min(max(binding.GPUsPerTask, 1), len(all))
	groups := grouped(all, each)
	switch choice {
	case Block:
		return block(groups, task)
	case Cyclic:
		return cyclic(groups, task)
	case Nearest:
		near := slices.DeleteFunc(slices.Clone(all), func(i int) bool { return at.NUMA < 0 || devices[i].NUMA != at.NUMA })
		if len(near) < each || len(near) == len(all) {
			return cyclic(groups, task)
		}
		return bounded(grouped(near, each), task, spread(task.LocalSize, len(groups)))
	}
	beside := besideOn(len(groups), task, binding)
	if len(bound) == len(all) && beside <= spread(task.LocalSize, len(groups)) {
		return cyclic(groups, task)
	}
	return bounded(grouped(bound, min(each, len(bound))), task, beside)
}

// besideOn is how many ranks at most share a GPU with this one.
func besideOn(groups int, task slurm.Task, binding slurm.Binding) int {
	if binding.TasksPerGPU > 0 && !binding.AllOfStep && task.BySlurm() {
		return min(binding.TasksPerGPU, task.LocalSize)
	}
	return spread(task.LocalSize, groups)
}

// ownDevices are the devices that the rank is to use, and whether it is confined to them, while others of the launch may
// have others. What the process may open counts first: Slurm's numbers of a task that is confined to its own devices say
// nothing (recorded). Next are Slurm's numbers, where all of them name devices of the job. Those of a launcher's rank are
// the launcher's daemon's, which a request for GPUs per task makes fewer than the ranks may open.
func ownDevices(devices []lease.TicketDevice, all []int, task slurm.Task, binding slurm.Binding, at HostInfo) (own []int, confined bool) {
	open := slices.DeleteFunc(slices.Clone(all), func(i int) bool { return at.CanOpen == nil || !at.CanOpen(devices[i].Minor) })
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

// inherited: all that Slurm bound to the task. Where that is all of the job's, every rank of the node has them all.
func inherited(bound []int, all int, task slurm.Task, binding slurm.Binding) position {
	switch {
	case len(bound) == all:
		return position{bound, task.LocalSize, task.LocalRank}
	case binding.TasksPerGPU > 0:
		beside := min(binding.TasksPerGPU, task.LocalSize)
		return position{bound, beside, beside - 1}
	}
	beside := spread(task.LocalSize*len(bound), all)
	return position{bound, beside, beside - 1}
}

// grouped deals devices in groups of n; what is left over is no group.
func grouped(devices []int, n int) [][]int {
	var groups [][]int
	for group := range slices.Chunk(devices, n) {
		if len(group) == n {
			groups = append(groups, group)
		}
	}
	return groups
}

// cyclic: rank r sits on group r mod n.
func cyclic(groups [][]int, task slurm.Task) position {
	n := len(groups)
	own := task.LocalRank % n
	return position{groups[own], (task.LocalSize - own + n - 1) / n, task.LocalRank / n}
}

// block: the first ranks sit on the first group; what does not divide goes one each to the first groups.
func block(groups [][]int, task slurm.Task) position {
	least, more := task.LocalSize/len(groups), task.LocalSize%len(groups)
	first := 0
	for i, group := range groups {
		beside := least
		if i < more {
			beside++
		}
		if task.LocalRank < first+beside {
			return position{group, beside, task.LocalRank - first}
		}
		first += beside
	}
	return cyclic(groups, task)
}

// bounded: round the groups given, with at most beside ranks on each, of which this is taken to be the last.
func bounded(groups [][]int, task slurm.Task, beside int) position {
	return position{groups[task.LocalRank%len(groups)], beside, beside - 1}
}

// spread is how many ranks each of n has at most when they are spread evenly.
func spread(ranks, n int) int { return (ranks + n - 1) / n }
