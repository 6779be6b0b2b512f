// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// These are the sources of an Activity's percentages.
const (
	FromGPM       = "GPM"                 // the GPU's own counters, on Hopper and newer
	fromProcesses = "process utilization" // what the driver samples of each process
)

// Activity is the use of a GPU. The percentages are for the time since the previous call. All other fields are for
// now.
type Activity struct {
	usage.Sample        // without its time and its clients
	Source       string // "" if the device has no percentages, as with MIG
	// EnergyJ is the energy of the GPU in joules since NewSampler, 0 if the device does not count it, as with MIG.
	EnergyJ int
	Memory  map[int]int // MiB by the pid of an MPS client; a dead client is listed while its files are held
}

// sampler reads the activity of one GPU repeatedly. It changes no setting of the GPU.
type sampler struct {
	nvml  *NVML
	uuid  site.UUID
	gpm   [2]nvml.GpmSample // the counters at the previous call and at this call; nil without GPM
	since uint64            // microseconds, of the driver's latest sample of a process
	began uint64            // the GPU's count of energy at NewSampler, in mJ, 0 if it has none
}

// NewSampler makes a sampler. The first Read reports the activity since now.
func (n *NVML) NewSampler(uuid site.UUID) (*sampler, error) {
	s := &sampler{nvml: n, uuid: uuid, since: uint64(time.Now().UnixMicro())}
	return on(n, "begin to sample", uuid, func(d device) (*sampler, error) {
		if d.instance {
			return s, nil
		}
		s.began = energyOf(d)
		if !hasGPM() {
			return s, nil
		}
		if support, ret := d.GpmQueryDeviceSupport(); ret != nvml.SUCCESS || support.IsSupportedDevice == 0 {
			return s, nil
		}
		return s, s.beginGPM(d)
	})
}

// energyOf returns the GPU's count of energy since the driver was loaded, in mJ, 0 if it has none.
func energyOf(d device) uint64 {
	millijoules, ret := d.GetTotalEnergyConsumption()
	if ret != nvml.SUCCESS {
		return 0
	}
	return millijoules
}

// beginGPM reads the counters for the first time. If the GPU refuses, the driver's samples are used instead of GPM.
func (s *sampler) beginGPM(d device) error {
	p := &properties{device: d}
	both := [2]nvml.GpmSample{get(p, "GPM", s.nvml.library.GpmSampleAlloc), get(p, "GPM", s.nvml.library.GpmSampleAlloc)}
	if p.err == nil && d.GpmSampleGet(both[0]) == nvml.SUCCESS {
		s.gpm = both
	}
	return p.err
}

// Read reads the activity since the last Read. GPM needs 100 ms between two Reads (nvml.h).
func (s *sampler) Read() (Activity, error) {
	return on(s.nvml, "sample", s.uuid, func(d device) (Activity, error) {
		a := Activity{Sample: usage.NoSample(time.Time{})}
		memory, clients, err := d.memory()
		if err != nil {
			return a, err
		}
		a.UsedMiB, a.Memory = float64(memory.Used>>20), clients
		if now := energyOf(d); s.began > 0 && now > s.began { // a driver that was loaded again counts from 0
			a.EnergyJ = int((now - s.began) / 1000)
		}
		if s.gpm[0] == nil || !s.readGPM(d, &a) {
			s.readProcesses(d, &a)
		}
		return a, nil
	})
}

// readGPM reads the counters and compares them with the counters of the previous call.
func (s *sampler) readGPM(d device, a *Activity) bool {
	if d.GpmSampleGet(s.gpm[1]) != nvml.SUCCESS {
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

// readProcesses adds up the utilisation of each process that the driver has sampled since the previous call. If there
// is no new sample, no process had work. A driver that takes no samples, as with MIG, leaves the percentages unknown.
func (s *sampler) readProcesses(d device, a *Activity) {
	samples, known := d.work(s.since)
	if !known {
		return
	}
	type sum struct{ percent, count float64 }
	sums := map[int]sum{}
	for _, one := range samples {
		before := sums[one.PID]
		sums[one.PID] = sum{before.percent + float64(one.Percent), before.count + 1}
		s.since = max(s.since, one.Micros)
	}
	a.SMUtil, a.Source = 0, fromProcesses
	for _, process := range sums {
		a.SMUtil = min(a.SMUtil+process.percent/process.count, 100)
	}
}
