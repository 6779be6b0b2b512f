// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// lane is a GPU and the CPUs that its ranks use. Values that are compared are measured in one lane. Several lanes
// work through the plan at the same time.
type lane struct {
	*bench
	minor int
	uuid  site.UUID
	cpus  []int
}

// openLanes divides the CPUs among the GPUs.
func (b *bench) openLanes() error {
	cpus, err := ownCPUs()
	if err != nil {
		return err
	}
	find := b.simulated
	if b.real {
		find = b.found
	}
	uuids, err := find()
	for minor, uuid := range uuids {
		b.lanes = append(b.lanes, &lane{bench: b, minor: minor, uuid: uuid, cpus: cpus[minor*len(cpus)/len(uuids) : (minor+1)*len(cpus)/len(uuids)]})
	}
	return err
}

// found returns the machine's GPUs and sets their shape. All GPUs must have the same shape, because they are measured
// at the same time.
func (b *bench) found() (uuids []site.UUID, err error) {
	nvml, err := gpu.Open(testnode.RealNVML())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nvml.Close()) }()
	minors := testnode.RealMinors()
	if b.gpus > 0 {
		minors = minors[:min(b.gpus, len(minors))]
	}
	for i, minor := range minors {
		device, err := nvml.ByMinor(minor)
		if err != nil {
			return nil, err
		}
		shape := policy.GPU{SMs: device.SMs, SMsPerTPC: device.TPC}
		if i > 0 && shape != b.gpu {
			return nil, fmt.Errorf("cannot measure /dev/nvidia%d beside the first GPU: it is another model: give -gpus 1",
				minor)
		}
		uuids, b.gpu = append(uuids, device.UUID), shape
	}
	return uuids, nil
}

// simulated returns the GPUs of the simulated node.
func (b *bench) simulated() (uuids []site.UUID, err error) {
	gpus, err := b.nodes["simulated"].Sim.Node.GPUs()
	for _, g := range gpus {
		uuid, e := g.Text("uuid")
		uuids, err = append(uuids, site.UUID(uuid)), errors.Join(err, e)
	}
	return uuids, err
}

// ownCPUs returns the CPUs that this process may run on.
func ownCPUs() (cpus []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// bound returns a command line that runs on the lane's CPUs.
func (l *lane) bound(line ...string) []string {
	return append([]string{"taskset", "--cpu-list", strings.Trim(strings.Join(strings.Fields(fmt.Sprint(l.cpus)), ","), "[]")}, line...)
}

// sideBySide does each piece of work in a free lane, in order, and returns when all pieces are done. After an error a
// lane takes no more work.
func sideBySide[W any](b *bench, work []W, do func(*lane, W) error) error {
	todo := make(chan W, len(work))
	for _, piece := range work {
		todo <- piece
	}
	close(todo)
	errs := make([]error, len(b.lanes))
	var all sync.WaitGroup
	for i, l := range b.lanes {
		all.Go(func() {
			for piece := range todo {
				if errs[i] = do(l, piece); errs[i] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
