// SPDX-License-Identifier: Apache-2.0

// Package visible lists the devices that a CUDA process sees: the GPUs of the node that CUDA_VISIBLE_DEVICES selects.
package visible

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// Device is a whole GPU or a MIG instance as CUDA shows it.
type Device struct {
	GPU       node.GPU
	Instance  int // K of mig/K, or node.Whole
	UUID      string
	Name      string
	BusID     string // of the GPU, 00000000:00:06.0
	SMs       int
	TPC       int // SMs in a TPC
	MemoryMiB int // as NVML counts it
}

// Devices returns the devices of n that list selects, in the order of the list. list is the value of
// CUDA_VISIBLE_DEVICES, and ok is false if it is not set. An entry is an index in PCI order, a UUID, or the beginning
// of a UUID if only one device has this beginning. As in CUDA, the first entry that names no device ends the list,
// and a device named twice makes the list empty.
func Devices(n node.Node, list string, ok bool) ([]Device, error) {
	wholes, instances, err := all(n)
	if err != nil || !ok {
		return wholes, err
	}
	var seen []Device
	for _, entry := range strings.Split(list, ",") {
		device, found := pick(strings.TrimSpace(entry), wholes, instances)
		if !found {
			break
		}
		for _, other := range seen {
			if other.UUID == device.UUID {
				return nil, nil
			}
		}
		seen = append(seen, device)
	}
	return seen, nil
}

// all returns the devices by index, and all instances. A GPU in MIG mode has its first instance in the list by index,
// because CUDA shows only one instance.
func all(n node.Node) (wholes, instances []Device, err error) {
	gpus, err := n.GPUs()
	if err != nil {
		return nil, nil, err
	}
	for _, gpu := range gpus {
		whole, err := read(gpu, node.Whole)
		if err != nil {
			return nil, nil, err
		}
		own, err := cut(gpu)
		if err != nil {
			return nil, nil, err
		}
		if len(own) > 0 {
			whole = own[0]
		}
		wholes, instances = append(wholes, whole), append(instances, own...)
	}
	return wholes, instances, nil
}

// cut returns the instances of a GPU. It returns none if the GPU is not in MIG mode.
func cut(gpu node.GPU) ([]Device, error) {
	mode, err := gpu.Number("mig_mode")
	if err != nil || mode == 0 {
		return nil, err
	}
	numbers, err := gpu.Instances()
	if err != nil {
		return nil, err
	}
	var own []Device
	for _, k := range numbers {
		instance, err := read(gpu, k)
		if err != nil {
			return nil, err
		}
		own = append(own, instance)
	}
	return own, nil
}

func read(gpu node.GPU, instance int) (Device, error) {
	d := Device{GPU: gpu, Instance: instance}
	part := ""
	if instance != node.Whole {
		part = filepath.Join("mig", strconv.Itoa(instance))
	}
	var errs [6]error
	d.UUID, errs[0] = gpu.Text(filepath.Join(part, "uuid"))
	d.SMs, errs[1] = gpu.Number(filepath.Join(part, "sms"))
	d.MemoryMiB, errs[2] = gpu.Number(filepath.Join(part, "memory_mib"))
	d.Name, errs[3] = gpu.Text("name")
	d.BusID, errs[4] = gpu.Text("bus_id")
	d.TPC, errs[5] = gpu.Number("tpc")
	if err := errors.Join(errs[:]...); err != nil {
		return Device{}, fmt.Errorf("cannot read device of simulated node: %w", err)
	}
	return d, nil
}

func pick(entry string, wholes, instances []Device) (Device, bool) {
	if index, err := strconv.Atoi(entry); err == nil {
		if index < 0 || index >= len(wholes) {
			return Device{}, false
		}
		return wholes[index], true
	}
	var fits []Device
	for _, device := range append(append([]Device{}, wholes...), instances...) {
		if strings.HasPrefix(device.UUID, entry) && !has(fits, device.UUID) {
			fits = append(fits, device)
		}
	}
	if len(fits) != 1 || len(entry) <= len("GPU-") {
		return Device{}, false
	}
	return fits[0], true
}

func has(devices []Device, uuid string) bool {
	for _, device := range devices {
		if device.UUID == uuid {
			return true
		}
	}
	return false
}
