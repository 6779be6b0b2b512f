// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// sampled returns a GPU with a server, which is this process, and a client of 824 MiB.
func sampled(t *testing.T, model node.Model) (node.GPU, *sampler) {
	t.Helper()
	made, opened := opened(t, model)
	gpu := made.Node.GPU(0)
	s := must.Get(opened.NewSampler(uuidOf(t, gpu, "uuid")))(t)
	holdContext(t, gpu, os.Getpid(), "S", 30)
	holdContext(t, gpu, os.Getppid(), "M+C", 824)
	return gpu, s
}

func holdContext(t *testing.T, gpu node.GPU, pid int, kind string, mib int) {
	t.Helper()
	start, _ := node.Start(pid)
	must.OK(t, gpu.AddContext(node.Context{PID: pid, Start: start, Type: kind, MemoryMiB: mib, Instance: node.Whole}))
}

func setGPU(t *testing.T, gpu node.GPU, name, value string) {
	t.Helper()
	must.OK(t, gpu.Set(name, value))
}

// serverSample sets what the driver samples of the server now.
func serverSample(t *testing.T, gpu node.GPU, percent int) {
	t.Helper()
	line := fmt.Sprintf("%d %d\n", time.Now().UnixMicro(), percent)
	must.OK(t, os.WriteFile(filepath.Join(gpu.Dir, "samples", fmt.Sprint(os.Getpid())), []byte(line), 0o644))
}

func read(t *testing.T, s *sampler) Activity {
	t.Helper()
	a := must.Get(s.Read())(t)
	return a
}

func TestSampleByGPM(t *testing.T) {
	gpu, s := sampled(t, node.H200)
	setGPU(t, gpu, "gpm/1", "96")
	setGPU(t, gpu, "gpm/2", "31.5")
	setGPU(t, gpu, "gpm/10", "-1") // this metric fails, the others do not
	a := read(t, s)
	must.Hold(t, a.Source == FromGPM && a.SMUtil == 96 && a.SMActive == 31.5 && a.DRAM == usage.Unknown, "%+v", a)
	must.Hold(t, a.UsedMiB == 854 && maps.Equal(a.Memory, map[int]int{os.Getppid(): 824}),
		"memory %v, clients %v", a.UsedMiB, a.Memory)
	setGPU(t, gpu, "gpm/10", "22")
	if a := read(t, s); a.DRAM != 22 {
		t.Errorf("the second sample: %+v", a)
	}
}

// A metric covers the time since the previous call.
func TestGPMIsOfTheTimeBetween(t *testing.T) {
	gpu, s := sampled(t, node.H200)
	serverSample(t, gpu, 60)
	if a := read(t, s); a.SMUtil != 60 {
		t.Errorf("%+v, want 60 %%", a)
	}
	if a := read(t, s); a.SMUtil != 0 {
		t.Errorf("%+v, want nothing since", a)
	}
}

func TestSampleWithoutGPM(t *testing.T) {
	gpu, s := sampled(t, node.A100SXM80)
	serverSample(t, gpu, 70)
	if a := read(t, s); a.Source != fromProcesses || a.SMUtil != 70 || a.SMActive != usage.Unknown || a.DRAM != usage.Unknown {
		t.Errorf("%+v", a)
	}
	if a := read(t, s); a.Source != fromProcesses || a.SMUtil != 0 {
		t.Errorf("without a new sample: %+v", a)
	}
}

// If the counters of a GPU fail, the driver's samples are used.
func TestSampleWhenGPMFails(t *testing.T) {
	gpu, s := sampled(t, node.H200)
	serverSample(t, gpu, 70)
	must.OK(t, gpu.Fail("nvmlGpmSampleGet", int(nvml.ERROR_UNKNOWN), 1))
	if a := read(t, s); a.Source != fromProcesses || a.SMUtil != 70 {
		t.Errorf("%+v", a)
	}
	if a := read(t, s); a.Source != FromGPM {
		t.Errorf("%+v, want GPM again", a)
	}
}

func TestSampleOfAnInstance(t *testing.T) {
	made, opened := opened(t, node.H100SXM.Cut(node.H100Slice1))
	s := must.Get(opened.NewSampler(uuidOf(t, made.Node.GPU(0), "mig/0/uuid")))(t)
	if a := read(t, s); a.Source != "" || a.SMUtil != usage.Unknown {
		t.Errorf("%+v, want no percentage", a)
	}
}

func TestSampleOfALostGPU(t *testing.T) {
	gpu, s := sampled(t, node.H200)
	must.OK(t, gpu.Fail("nvmlDeviceGetMemoryInfo", int(nvml.ERROR_GPU_IS_LOST), 1))
	if _, err := s.Read(); err == nil || !strings.HasSuffix(err.Error(), "GPU is lost") {
		t.Errorf("%v, want that the GPU is lost", err)
	}
	if _, err := s.nvml.NewSampler(site.UUID("GPU-00000000-0000-0000-0000-000000000000")); !errors.Is(err, errNotFound) {
		t.Errorf("%v, want %v", err, errNotFound)
	}
}

// The energy is that since NewSampler. A count that has begun again, a refusal and an instance have none.
func TestEnergy(t *testing.T) {
	made, opened := opened(t, node.H200)
	gpu := made.Node.GPU(0)
	uuid := uuidOf(t, gpu, "uuid")
	setGPU(t, gpu, "energy_mj", "5000000")
	s := must.Get(opened.NewSampler(uuid))(t)
	for _, c := range []struct {
		count string
		want  int
	}{{"5000000", 0}, {"5999999", 999}, {"7000000", 2000}, {"1000", 0}} {
		setGPU(t, gpu, "energy_mj", c.count)
		if a := read(t, s); a.EnergyJ != c.want {
			t.Errorf("count %s: %d J, want %d", c.count, a.EnergyJ, c.want)
		}
	}
	setGPU(t, gpu, "energy_mj", "9000000")
	must.OK(t, gpu.Fail("nvmlDeviceGetTotalEnergyConsumption", int(nvml.ERROR_NOT_SUPPORTED), 1))
	if a := read(t, s); a.EnergyJ != 0 {
		t.Errorf("refused: %d J", a.EnergyJ)
	}
}

// The samples of processes are those since the last call. Without work there are none, and that is known. A driver that
// refuses them is not one without work.
func TestUsageOfProcesses(t *testing.T) {
	made, opened := opened(t, node.H200)
	gpu := made.Node.GPU(0)
	holdContext(t, gpu, os.Getpid(), "S", 30)
	holdContext(t, gpu, os.Getppid(), "M+C", 824)
	uuid, seen := uuidOf(t, gpu, "uuid"), Seen{}
	usage := func() Usage {
		t.Helper()
		u, err := opened.Usage(uuid, seen)
		must.Hold(t, err == nil && slices.Equal(u.Processes, []int{os.Getpid()}) && u.Clients[os.Getppid()] == 824,
			"%+v, %v", u, err)
		return u
	}
	if u := usage(); !u.WorkKnown || len(u.Work) > 0 {
		t.Errorf("without a sample: %+v", u)
	}
	serverSample(t, gpu, 60)
	u := usage()
	must.Have(t, u.WorkKnown && len(u.Work) == 1 && len(u.Activity) == 1, "with a sample: %+v", u)
	must.Hold(t, u.Work[0].PID == os.Getpid() && u.Work[0].Percent == 60, "with a sample: %+v", u.Work)
	seen = Seen{Activity: u.Activity[0].Micros, Work: u.Work[0].Micros}
	if u := usage(); !u.WorkKnown || len(u.Work)+len(u.Activity) > 0 {
		t.Errorf("the same samples again: %+v", u)
	}
	for _, failure := range []nvml.Return{nvml.ERROR_NO_PERMISSION, nvml.ERROR_NOT_SUPPORTED} {
		must.OK(t, gpu.Fail("nvmlDeviceGetProcessUtilization", int(failure), 0))
		if u := usage(); u.WorkKnown || len(u.Work) > 0 {
			t.Errorf("with %v: %+v", failure, u)
		}
	}
}
