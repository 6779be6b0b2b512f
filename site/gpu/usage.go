// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-mps/slurm-mps/site"
)

// Usage is the free memory of a whole GPU, and the memory and activity of its processes.
type Usage struct {
	TotalMiB int
	FreeMiB  int
	Clients  map[int]int // MiB of memory by the pid of an MPS client; a dead client is listed while its files are held
	// Activity are the samples of the whole GPU since the last call. A GPU without work has samples of 0.
	Activity []gpuSample
	// Processes are the processes on the GPU that are not clients of an MPS server: servers, and programs without MPS.
	Processes []int
	// Work are the samples of processes since the last call, one for each process that had work: its clients' work is a
	// server's. Of several servers that compute, the driver samples one at a time (measured on an H100). Without work
	// they cease. WorkKnown is false if the driver gives none, as with MIG or without permission.
	Work      []processSample
	WorkKnown bool
}

// processSample is the part of the time since the last call in which a process had a kernel on the GPU.
type processSample struct {
	PID, Percent int
	Micros       uint64 // the time of its latest sample, in microseconds since 1970
}

// Seen is up to when the samples of a GPU and of its processes have been read, in microseconds since 1970.
type Seen struct{ Activity, Work uint64 }

// gpuSample is the part of a time in which a kernel was on the GPU. The driver takes a sample every 200 ms (measured on
// an H200).
type gpuSample struct {
	Percent int
	Micros  uint64 // the end of the time, in microseconds since 1970
}

// Usage reads the memory of a whole GPU, the memory of its clients, its processes, and the samples that have not been
// seen. If the driver gives no samples, as with MIG, Activity is empty.
func (n *NVML) Usage(uuid site.UUID, seen Seen) (Usage, error) {
	return on(n, "read usage of", uuid, func(d device) (Usage, error) {
		processes, ret := d.GetComputeRunningProcesses() // first, so that a client which has just started is known as one
		memory, clients, err := d.memory()
		if err != nil {
			return Usage{}, err
		}
		u := Usage{
			TotalMiB: int(memory.Total >> 20), FreeMiB: int(memory.Free >> 20), Clients: clients,
			Activity: d.activity(seen.Activity),
		}
		for _, p := range processes {
			if _, client := clients[int(p.Pid)]; !client { // the driver lists clients, too (measured on an H100)
				u.Processes = append(u.Processes, int(p.Pid))
			}
		}
		if ret == nvml.SUCCESS {
			u.Work, u.WorkKnown = d.work(seen.Work)
		}
		return u, nil
	})
}

// work returns the driver's samples of processes after since. Processes may come between the two calls of which one
// reading consists.
func (d device) work(since uint64) (all []processSample, known bool) {
	samples, ret := d.GetProcessUtilization(since)
	for again := 0; ret == nvml.ERROR_INSUFFICIENT_SIZE && again < 3; again++ {
		samples, ret = d.GetProcessUtilization(since)
	}
	if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_FOUND {
		return nil, false
	}
	for _, s := range samples {
		if s.TimeStamp > since && s.Pid != 0 {
			all = append(all, processSample{int(s.Pid), int(s.SmUtil), s.TimeStamp})
		}
	}
	return all, true
}

// activity returns the driver's samples of a GPU after since. If there is no new sample, it returns none.
func (d device) activity(since uint64) (all []gpuSample) {
	kind, samples, ret := d.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, since)
	if ret != nvml.SUCCESS || kind != nvml.VALUE_TYPE_UNSIGNED_INT {
		return nil
	}
	for _, s := range samples {
		if s.TimeStamp > since {
			all = append(all, gpuSample{int(binary.NativeEndian.Uint32(s.SampleValue[:])), s.TimeStamp})
		}
	}
	return all
}

// memory reads the memory of a device, and the MiB of each MPS client by its pid.
func (d device) memory() (memory nvml.Memory, clients map[int]int, err error) {
	p := &properties{device: d}
	memory = get(p, "memory", d.GetMemoryInfo)
	clients = map[int]int{}
	for _, client := range get(p, "clients", d.GetMPSComputeRunningProcesses) {
		clients[int(client.Pid)] = mebibytes(client.UsedGpuMemory)
	}
	return memory, clients, p.err
}
