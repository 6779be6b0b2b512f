// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"encoding/binary"
	"errors"

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

// Busy is one sample of the driver. The driver takes a sample every 200 ms (measured on an H200).
type Busy struct {
	PID     int
	Percent int    // of the SMs, in the time before Micros
	Micros  uint64 // since 1970
}

// Usage reads the memory of a whole GPU, the memory of its clients, and the samples after since, in microseconds. If
// the driver gives no samples, as with MIG, Busy is empty.
func (n *NVML) Usage(uuid site.UUID, since uint64) (Usage, error) {
	return within(n, "read usage of "+string(uuid), func() (Usage, error) {
		handle, err := n.handle(uuid)
		if err != nil {
			return Usage{}, err
		}
		memory, clients, err := memoryOf(handle, uuid)
		if err != nil {
			return Usage{}, err
		}
		activity, _ := activitySince(handle, since) // without samples, the memory is still useful
		return Usage{TotalMiB: int(memory.Total >> 20), FreeMiB: int(memory.Free >> 20), Clients: clients, Activity: activity}, nil
	})
}

// activitySince returns the driver's samples of a GPU after since. If there is no new sample, it returns none.
func activitySince(handle nvml.Device, since uint64) (all []GPUSample, err error) {
	kind, samples, ret := handle.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, since)
	if err := because(ret); err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	if kind != nvml.VALUE_TYPE_UNSIGNED_INT {
		return nil, nil
	}
	for _, s := range samples {
		if s.TimeStamp > since {
			all = append(all, GPUSample{int(binary.NativeEndian.Uint32(s.SampleValue[:])), s.TimeStamp})
		}
	}
	return all, nil
}

// memoryOf reads the memory of a device, and the MiB of each MPS client by its pid.
func memoryOf(handle nvml.Device, uuid site.UUID) (memory nvml.Memory, clients map[int]int, err error) {
	memory, ret := handle.GetMemoryInfo()
	if err := because(ret); err != nil {
		return memory, nil, cannotRead("memory", string(uuid), err)
	}
	listed, ret := handle.GetMPSComputeRunningProcesses()
	if err := because(ret); err != nil {
		return memory, nil, cannotRead("clients", string(uuid), err)
	}
	clients = map[int]int{}
	for _, client := range listed {
		clients[int(client.Pid)] = mebibytes(client.UsedGpuMemory)
	}
	return memory, clients, nil
}

// busySince returns the driver's samples of processes after since. If there is no new sample, it returns none.
func busySince(handle nvml.Device, since uint64) (all []Busy, err error) {
	samples, ret := handle.GetProcessUtilization(since)
	if err := because(ret); err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	for _, s := range samples {
		if s.TimeStamp > since {
			all = append(all, Busy{int(s.Pid), int(s.SmUtil), s.TimeStamp})
		}
	}
	return all, nil
}
