// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// real reports whether this test program runs with -test.run=TestReal on a machine with NVIDIA's own library.
func real() bool { return os.Getenv("CONFORMANCE_TARGET") == "real" }

// TestRealMachineAgreesWithNvidiaSMI compares this package's answers with nvidia-smi's. It changes nothing.
func TestRealMachineAgreesWithNvidiaSMI(t *testing.T) {
	if !real() {
		t.Skip("runs on a machine with GPUs, with CONFORMANCE_TARGET=real")
	}
	nvml, err := Open("")
	must.OK(t, err)
	defer nvml.Close()
	devices := must.Get(nvml.Devices())(t)
	lines := querySMI(t)
	must.Have(t, len(lines) == len(devices) && len(devices) != 0,
		"%d devices, nvidia-smi lists %d", len(devices), len(lines))
	for i, device := range devices {
		t.Logf("%+v", device)
		mode := must.Get(nvml.Mode(device.UUID))(t)
		if got := describedAsSMI(device, mode); got != lines[i] {
			t.Errorf("device %d\n got %s\nwant %s", i, got, lines[i])
		}
		expectSame(t, nvml, i, device)
	}
	_, err = nvml.byPCI(len(devices))
	refused(t, err, errNotFound, fmt.Sprintf("cannot find GPU at PCI position %d: not found", len(devices)))
	none := site.UUID("GPU-00000000-0000-0000-0000-000000000000")
	_, err = nvml.Find(none)
	refused(t, err, errNotFound, "cannot find "+string(none)+" on this node: not found")
}

// TestRealEnergy compares the energy of two seconds with what a GPU can use.
func TestRealEnergy(t *testing.T) {
	if !real() {
		t.Skip("runs on a machine with GPUs, with CONFORMANCE_TARGET=real")
	}
	nvml := must.Get(Open(""))(t)
	defer nvml.Close()
	devices := must.Get(nvml.Devices())(t)
	for _, device := range devices {
		s := must.Get(nvml.NewSampler(device.UUID))(t)
		time.Sleep(2 * time.Second)
		a := must.Get(s.Read())(t)
		if t.Logf("%s: %d J in 2 s", device.UUID, a.EnergyJ); a.EnergyJ < 10 || a.EnergyJ > 4000 {
			t.Errorf("%s: %d J in 2 s, want 10 to 4000", device.UUID, a.EnergyJ)
		}
	}
}

// expectSame checks that every function finds the same device, and that its other values can be read.
func expectSame(t *testing.T, nvml *NVML, position int, device site.Device) {
	t.Helper()
	byUUID := must.Get(nvml.Find(device.UUID))(t)
	byPCI := must.Get(nvml.byPCI(position))(t)
	byMinor := must.Get(nvml.ByMinor(device.Minor))(t)
	must.Hold(t, byUUID == device && byPCI == device && byMinor == device,
		"by UUID %+v\nby PCI %+v\nby minor %+v\nwant %+v", byUUID, byPCI, byMinor, device)
	processes := must.Get(nvml.Processes(device.UUID))(t)
	major, minor, err := nvml.Capability(device.UUID)
	must.OK(t, err)
	t.Logf("capability %d.%d, processes %v", major, minor, processes)
}

func querySMI(t *testing.T) []string {
	t.Helper()
	answer, err := exec.Command("nvidia-smi",
		"--query-gpu=uuid,name,pci.bus_id,memory.total,compute_mode,mig.mode.current", "--format=csv,noheader,nounits").Output()
	must.OK(t, err)
	return strings.Split(strings.TrimSpace(string(answer)), "\n")
}

// describedAsSMI formats a device as nvidia-smi prints it.
func describedAsSMI(device site.Device, mode site.Mode) string {
	words := map[site.Mode]string{
		site.ModeDefault: "Default", site.ModeProhibited: "Prohibited", site.ModeExclusiveProcess: "Exclusive_Process",
	}
	mig := map[bool]string{true: "Enabled", false: "Disabled"}
	return fmt.Sprintf("%s, %s, %s, %d, %s, %s",
		device.UUID, device.Name, device.BusID, device.MemoryMiB, words[mode], mig[device.MIGMode])
}
