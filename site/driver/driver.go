// SPDX-License-Identifier: Apache-2.0

// Package driver reads a node's GPUs from the files of NVIDIA's driver in /proc, which any user may read. It needs
// neither NVML nor a program. Package gpu knows more, and links NVML.
package driver

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/osfile"
)

// Node is where a node's files are. Root is put before each path, and is "" outside of tests.
type Node struct{ Root string }

func (n Node) driver(names ...string) string {
	return filepath.Join(append([]string{n.Root, "/proc/driver/nvidia"}, names...)...)
}

// Version returns the version of the driver, "580.159.04", or "" if it cannot be read.
//
// The file begins with one of these lines:
//
//	NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue May …
//	NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build …
func (n Node) Version() string {
	content, err := osfile.ReadAny(n.driver("version"))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(content), "\n")
	for _, word := range strings.Fields(line) {
		if strings.Contains(word, ".") && strings.Trim(word, "0123456789.") == "" {
			return word
		}
	}
	return ""
}

// GPUs returns the GPUs that this process may open, in the order of their PCI bus ids. SMs and memory are those of the
// model. A GPU of an unknown model has 100 SMs, so that a share of it is a percentage, and 0 MiB. None is an error.
func (n Node) GPUs() ([]site.Device, error) {
	folders, err := os.ReadDir(n.driver("gpus"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list GPUs: %w", err)
	}
	var all []site.Device
	for _, folder := range folders {
		device, err := n.gpu(folder.Name())
		if err != nil {
			return nil, err
		}
		if osfile.CanOpen(filepath.Join(n.Root, "/dev", "nvidia"+strconv.Itoa(device.Minor))) {
			all = append(all, device)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("cannot find a GPU: no GPU can be opened: is it a GPU node (nvidia-smi -L), and does a Slurm job ask for GPUs (--gres=gpu:1)?")
	}
	slices.SortFunc(all, func(a, b site.Device) int { return cmp.Compare(a.BusID, b.BusID) })
	return all, nil
}

// gpu reads a GPU's file gpus/0000:3b:00.0/information, which looks like this:
//
//	Model: 		 NVIDIA H200
//	GPU UUID: 	 GPU-5ed1b0a6-2a0c-0f8c-7a77-0c9d3fdc4a6e
//	Bus Location: 	 0000:3b:00.0
//	Device Minor: 	 2
func (n Node) gpu(bus string) (site.Device, error) {
	path := n.driver("gpus", bus, "information")
	content, err := osfile.ReadAny(path)
	if err != nil {
		return site.Device{}, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(line, ":")
		fields[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	uuid := site.UUID(fields["GPU UUID"])
	minor, err := strconv.Atoi(fields["Device Minor"])
	if err != nil || !uuid.Valid() {
		return site.Device{}, fmt.Errorf("cannot read %s: it names no UUID and minor", path)
	}
	device := site.Device{
		UUID: uuid, Name: fields["Model"], Minor: minor, BusID: "0000" + strings.ToUpper(bus),
		SMs: 100, TPC: 1, NUMA: n.numa(bus), MIGMode: n.hasInstances(minor),
	}
	if model, err := policy.FindModel(device.Name); err == nil {
		device.SMs, device.TPC, device.MemoryMiB = model.GPU.SMs, model.GPU.SMsPerTPC, model.MemoryMiB
	}
	return device, nil
}

func (n Node) numa(bus string) int {
	content, _ := osfile.ReadAny(filepath.Join(n.Root, "/sys/bus/pci/devices", bus, "numa_node"))
	if node, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil {
		return node
	}
	return -1
}

// hasInstances reports whether a GPU is divided into MIG instances: each has a folder capabilities/gpu0/mig/gi1.
func (n Node) hasInstances(minor int) bool {
	found, _ := filepath.Glob(n.driver("capabilities", "gpu"+strconv.Itoa(minor), "mig", "gi*"))
	return len(found) > 0
}
