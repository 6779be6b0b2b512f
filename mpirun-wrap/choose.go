package mpirunwrap

import (
	"slices"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// place is where a rank comes to sit: an index into the ticket's devices, how many ranks share that device, and which of
// them this one is.
type place struct {
	device int
	beside int
	index  int
}

// Whereabouts is what the node says of the process itself.
type Whereabouts struct {
	NUMA int // the node of all of its CPUs, -1 where they are of several or it is not known
}

// choose seats a rank. What the ranks beside it do is known exactly for ranks that go round all of the job's GPUs or
// take them in blocks. Where Slurm bound GPUs to single tasks, or NUMA nodes decide, it is bounded from above, and the
// rank takes the smallest of the shares: together they are never more than was meant.
func choose(devices []lease.TicketDevice, task slurm.Task, binding slurm.Binding, choice Choice, at Whereabouts) place {
	all := make([]int, len(devices))
	for i := range devices {
		all[i] = i
	}
	switch choice {
	case Block:
		return block(task, len(devices))
	case Cyclic:
		return cyclic(task, len(devices))
	case Nearest:
		near := slices.DeleteFunc(slices.Clone(all), func(i int) bool { return at.NUMA < 0 || devices[i].NUMA != at.NUMA })
		if len(near) == 0 || len(near) == len(all) {
			return cyclic(task, len(devices))
		}
		return bounded(near, task, spread(task, len(devices)))
	}
	bound := slices.DeleteFunc(slices.Clone(all), func(i int) bool { return !slices.Contains(binding.GPUs, devices[i].Position) })
	if len(bound) == 0 || len(bound) == len(all) {
		return cyclic(task, len(devices))
	}
	beside := spread(task, len(devices))
	if binding.PerGPU > 0 {
		beside = binding.PerGPU
	}
	return bounded(bound, task, beside)
}

// cyclic: rank r sits on device r mod n.
func cyclic(task slurm.Task, n int) place {
	own := task.LocalRank % n
	return place{own, (task.LocalSize - own + n - 1) / n, task.LocalRank / n}
}

// block: the first ranks sit on the first device; what does not divide goes one each to the first devices.
func block(task slurm.Task, n int) place {
	least, more := task.LocalSize/n, task.LocalSize%n
	first := 0
	for device := range n {
		beside := least
		if device < more {
			beside++
		}
		if task.LocalRank < first+beside {
			return place{device, beside, task.LocalRank - first}
		}
		first += beside
	}
	return cyclic(task, n)
}

// bounded: round the devices given, with at most beside ranks on each, of which this is taken to be the last.
func bounded(devices []int, task slurm.Task, beside int) place {
	return place{devices[task.LocalRank%len(devices)], beside, beside - 1}
}

// spread is how many ranks a device has at most when all of them are spread evenly.
func spread(task slurm.Task, n int) int { return (task.LocalSize + n - 1) / n }
