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
	// Activity are the samples of the whole GPU since the last call. A GPU without work has samples of 0. The driver's
	// samples of processes are not used here, because they cease in some states without work (docs/decisions/037).
	Activity []GPUSample
}

// GPUSample is the part of a time in which a kernel was on the GPU. The driver takes a sample every 200 ms (measured on
// an H200).
type GPUSample struct {
	Percent int
	Micros  uint64 // the end of the time, in microseconds since 1970
}

// Usage reads the memory of a whole GPU, the memory of its clients, and the samples after since, in microseconds. If
// the driver gives no samples, as with MIG, Activity is empty.
func (n *NVML) Usage(uuid site.UUID, since uint64) (Usage, error) {
	return on(n, "read usage of", uuid, func(d device) (Usage, error) {
		memory, clients, err := d.memory()
		if err != nil {
			return Usage{}, err
		}
		return Usage{
			TotalMiB: int(memory.Total >> 20), FreeMiB: int(memory.Free >> 20), Clients: clients, Activity: d.activity(since),
		}, nil
	})
}

// activity returns the driver's samples of a GPU after since. If there is no new sample, it returns none.
func (d device) activity(since uint64) (all []GPUSample) {
	kind, samples, ret := d.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, since)
	if ret != nvml.SUCCESS || kind != nvml.VALUE_TYPE_UNSIGNED_INT {
		return nil
	}
	for _, s := range samples {
		if s.TimeStamp > since {
			all = append(all, GPUSample{int(binary.NativeEndian.Uint32(s.SampleValue[:])), s.TimeStamp})
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
