// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// newNode writes the driver's files for GPUs of these models. GPU n has the minor 7-n.
func newNode(t *testing.T, models ...string) Node {
	t.Helper()
	n := Node{t.TempDir()}
	put := func(path, text string) {
		t.Helper()
		path = filepath.Join(n.Root, path)
		must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
	}
	put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (u@h)\nGCC version:  gcc 12.2.0\n")
	for i, model := range models {
		bus := fmt.Sprintf("0000:%d0:00.0", i+1)
		put("proc/driver/nvidia/gpus/"+bus+"/information",
			fmt.Sprintf("Model: \t\t %s\nIRQ:   \t\t 255\nGPU UUID: \t GPU-%d%d\nBus Location: \t %s\nDevice Minor: \t %d\n", model, i, i, bus, 7-i))
		put("sys/bus/pci/devices/"+bus+"/numa_node", fmt.Sprintf("%d\n", i/2))
		put(fmt.Sprintf("dev/nvidia%d", 7-i), "")
	}
	return n
}

func TestGPUs(t *testing.T) {
	n := newNode(t, "NVIDIA H200", "NVIDIA Unheard 1", "NVIDIA H200")
	if err := os.Remove(filepath.Join(n.Root, "dev/nvidia5")); err != nil { // the third is another job's
		t.Fatal(err)
	}
	must.OK(t, os.MkdirAll(filepath.Join(n.Root, "proc/driver/nvidia/capabilities/gpu6/mig/gi3"), 0o755))
	got, err := n.GPUs()
	want := []site.Device{
		{UUID: "GPU-00", Name: "NVIDIA H200", Minor: 7, BusID: "00000000:10:00.0", SMs: 132, TPC: 2, MemoryMiB: 143771},
		{UUID: "GPU-11", Name: "NVIDIA Unheard 1", Minor: 6, BusID: "00000000:20:00.0", SMs: 100, TPC: 1, MIGMode: true},
	}
	must.Hold(t, fmt.Sprint(got) == fmt.Sprint(want) && err == nil, "%+v, %v; want %+v", got, err, want)
	if version := n.Version(); version != "580.159.04" {
		t.Errorf("version %q", version)
	}
	if _, err := (Node{t.TempDir()}).GPUs(); err == nil {
		t.Errorf("a node without the driver: %v", err)
	}
}
