// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// A lost GPU is reported with its error, and the others are listed with their positions.
func TestListGoesPastALostGPU(t *testing.T) {
	made, nvml := opened(t, node.H200, node.H200, node.L4)
	must.OK(t, made.Node.GPU(1).Fail("nvmlDeviceGetUUID", 15, 0))
	must.OK(t, made.Node.GPU(2).SetMode(node.ExclusiveProcess))
	pid := sleeper(t)
	start, _ := node.Start(pid)
	must.OK(t, made.Node.GPU(2).AddContext(node.Context{PID: pid, Start: start, Type: node.Compute, MemoryMiB: 100, Instance: node.Whole}))
	seen := must.Get(nvml.List())(t)
	must.Have(t, len(seen) == 3, "%d GPUs are seen, want 3", len(seen))
	refused(t, seen[1].Err, nil, "cannot read UUID of GPU at PCI position 1: GPU is lost")
	for i, want := range map[int]site.Mode{0: site.ModeDefault, 2: site.ModeExclusiveProcess} {
		if s := seen[i]; s.Err != nil || s.Index != i || s.Mode != want || s.Device.UUID != uuidOf(t, made.Node.GPU(i), "uuid") {
			t.Errorf("GPU %d is seen as %+v", i, s)
		}
	}
	if p := seen[2].Processes; len(p) != 1 || p[0] != (Process{PID: pid, MiB: 100}) || len(seen[0].Processes) != 0 {
		t.Errorf("processes %v and %v", seen[0].Processes, p)
	}
}

// If one property cannot be read, the properties that were read are kept.
func TestListKeepsWhatItRead(t *testing.T) {
	made, nvml := opened(t, node.H200)
	must.OK(t, made.Node.GPU(0).Fail("nvmlDeviceGetComputeMode", 4, 0))
	seen := must.Get(nvml.List())(t)
	if s := seen[0]; s.Err == nil || s.Device.SMs != 132 || s.Mode != "" {
		t.Errorf("seen %+v", s)
	}
}

func TestListOfAnInstance(t *testing.T) {
	made, nvml := opened(t, node.H100SXM.Cut(node.H100Slice3, node.H100Slice1))
	uuid := uuidOf(t, made.Node.GPU(0), "mig/0/uuid")
	pid := sleeper(t)
	start, _ := node.Start(pid)
	must.OK(t, made.Node.GPU(0).AddContext(node.Context{PID: pid, Start: start, Type: node.Client, MemoryMiB: 100, Instance: 0}))
	s := nvml.Instance(uuid)
	if s.Err != nil || s.Index != -1 || s.Device.SMs == 0 || s.Mode != "" || len(s.Processes) != 1 || s.Processes[0].PID != pid || !s.Processes[0].MPS {
		t.Errorf("seen %+v", s)
	}
	refused(t, nvml.Instance("MIG-00000000").Err, errNotFound, "cannot find MIG-00000000 on this node: not found")
}
