// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-mps/slurm-mps/site"
)

// These are the sources of an Activity's percentages.
const (
	FromGPM       = "GPM"                 // the GPU's own counters, on Hopper and newer
	FromProcesses = "process utilization" // what the driver samples of each process
)

// Unknown is a percentage that could not be read.
const Unknown = -1

// Activity is the use of a GPU. The percentages are for the time since the previous call. All other fields are for
// now.
type Activity struct {
	Source   string  // "" if the device has no percentages, as with MIG
	SMUtil   float64 // percent of the time in which a kernel was on the GPU
	SMActive float64 // percent of the SMs that had work; only GPM has this value
	DRAM     float64 // percent of the memory's bandwidth; only GPM has this value
	UsedMiB  int
	// EnergyJ is the energy of the GPU in joules since NewSampler, 0 if the device does not count it, as with MIG.
	EnergyJ int
	Clients map[int]int // MiB of memory by the pid of an MPS client; a dead client is listed while its files are held
}

// Sampler reads the activity of one GPU repeatedly. It changes no setting of the GPU.
type Sampler struct {
	nvml  *NVML
	uuid  site.UUID
	gpm   [2]nvml.GpmSample // the counters at the previous call and at this call; nil without GPM
	since uint64            // microseconds, of the driver's latest sample of a process
	began uint64            // the GPU's count of energy at NewSampler, in mJ, 0 if it has none
}

// NewSampler makes a sampler. The first Read reports the activity since now.
func (n *NVML) NewSampler(uuid site.UUID) (*Sampler, error) {
	s := &Sampler{nvml: n, uuid: uuid, since: uint64(time.Now().UnixMicro())}
	return within(n, "begin to sample "+string(uuid), func() (*Sampler, error) {
		handle, err := n.handle(uuid)
		if err != nil || uuid.MIG() {
			return s, err
		}
		s.began = energyOf(handle)
		if !hasGPM() {
			return s, nil
		}
		if support, ret := handle.GpmQueryDeviceSupport(); ret != nvml.SUCCESS || support.IsSupportedDevice == 0 {
			return s, nil
		}
		return s, s.beginGPM(handle)
	})
}

// energyOf returns the GPU's count of energy since the driver was loaded, in mJ, 0 if it has none.
func energyOf(handle nvml.Device) uint64 {
	millijoules, ret := handle.GetTotalEnergyConsumption()
	if ret != nvml.SUCCESS {
		return 0
	}
	return millijoules
}

// beginGPM reads the counters for the first time. If the GPU refuses, the driver's samples are used instead of GPM.
func (s *Sampler) beginGPM(handle nvml.Device) error {
	var both [2]nvml.GpmSample
	for i := range both {
		sample, ret := s.nvml.library.GpmSampleAlloc()
		if err := because(ret); err != nil {
			return cannotRead("GPM", string(s.uuid), err)
		}
		both[i] = sample
	}
	if handle.GpmSampleGet(both[0]) == nvml.SUCCESS {
		s.gpm = both
	}
	return nil
}

// Read reads the activity since the last Read. GPM needs 100 ms between two Reads (nvml.h).
func (s *Sampler) Read() (Activity, error) {
	return within(s.nvml, "sample "+string(s.uuid), func() (Activity, error) {
		a := Activity{SMUtil: Unknown, SMActive: Unknown, DRAM: Unknown}
		handle, err := s.nvml.handle(s.uuid)
		if err != nil {
			return a, err
		}
		memory, clients, err := memoryOf(handle, s.uuid)
		if err != nil {
			return a, err
		}
		a.UsedMiB, a.Clients = int(memory.Used>>20), clients
		if s.began > 0 {
			if now := energyOf(handle); now > s.began { // a driver that was loaded again counts from 0
				a.EnergyJ = int((now - s.began) / 1000)
			}
		}
		if s.gpm[0] == nil || !s.readGPM(handle, &a) {
			s.readProcesses(handle, &a)
		}
		return a, nil
	})
}

// readGPM reads the counters and compares them with the counters of the previous call.
func (s *Sampler) readGPM(handle nvml.Device, a *Activity) bool {
	if handle.GpmSampleGet(s.gpm[1]) != nvml.SUCCESS {
		return false
	}
	metrics := &nvml.GpmMetricsGetType{NumMetrics: 3, Sample1: s.gpm[0], Sample2: s.gpm[1]}
	values := []*float64{&a.SMUtil, &a.SMActive, &a.DRAM}
	for i, id := range []nvml.GpmMetricId{nvml.GPM_METRIC_GRAPHICS_UTIL, nvml.GPM_METRIC_SM_UTIL, nvml.GPM_METRIC_DRAM_BW_UTIL} {
		metrics.Metrics[i].MetricId = uint32(id)
	}
	if s.nvml.library.GpmMetricsGet(metrics) != nvml.SUCCESS {
		return false
	}
	for i, value := range values {
		if m := metrics.Metrics[i]; nvml.Return(m.NvmlReturn) == nvml.SUCCESS && m.Value >= 0 { // not NaN
			*value = min(m.Value, 100)
		}
	}
	s.gpm[0], s.gpm[1] = s.gpm[1], s.gpm[0]
	a.Source = FromGPM
	return true
}

// readProcesses adds up what the driver has sampled of each process since the previous call. If there is no new
// sample, no process had work.
func (s *Sampler) readProcesses(handle nvml.Device, a *Activity) {
	samples, err := busySince(handle, s.since)
	if err != nil {
		return
	}
	type sum struct{ percent, count float64 }
	sums := map[int]sum{}
	for _, one := range samples {
		of := sums[one.PID]
		sums[one.PID] = sum{of.percent + float64(one.Percent), of.count + 1}
		s.since = max(s.since, one.Micros)
	}
	a.SMUtil, a.Source = 0, FromProcesses
	for _, of := range sums {
		a.SMUtil = min(a.SMUtil+of.percent/of.count, 100)
	}
}
