// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-mps/slurm-mps/site"
)

// Usage is the free memory of a whole GPU, and the memory and activity of its processes.
type Usage struct {
	TotalMiB int
	FreeMiB  int
	Clients  map[int]int // MiB of memory by the pid of an MPS client; a dead client is listed while its files are held
	// Busy is each process's part of the SMs, in the samples since the last call. A server's sample is that of all of
	// its clients; a client has none (measured on an H200: docs/measurements/12-h200).
	Busy []Busy
}

// Busy is one sample of the driver, which takes one every 200 ms (measured on an H200).
type Busy struct {
	PID     int
	Percent int    // of the SMs, in the time before Micros
	Micros  uint64 // since 1970
}

// Usage reads the memory of a whole GPU, the memory of its clients, and the samples after since, in microseconds. If
// the driver gives no samples, as with MIG, there are none.
func (n *NVML) Usage(uuid site.UUID, since uint64) (Usage, error) {
	return within(n, "read usage of "+string(uuid), func() (Usage, error) {
		handle, err := n.handle(uuid)
		if err != nil {
			return Usage{}, err
		}
		memory, ret := handle.GetMemoryInfo()
		if err := because(ret); err != nil {
			return Usage{}, cannotRead("memory", string(uuid), err)
		}
		clients, ret := handle.GetMPSComputeRunningProcesses()
		if err := because(ret); err != nil {
			return Usage{}, cannotRead("clients", string(uuid), err)
		}
		u := Usage{TotalMiB: int(memory.Total >> 20), FreeMiB: int(memory.Free >> 20), Clients: map[int]int{}}
		for _, client := range clients {
			u.Clients[int(client.Pid)] = mebibytes(client.UsedGpuMemory)
		}
		u.Busy = busySince(handle, since)
		return u, nil
	})
}

func busySince(handle nvml.Device, since uint64) (all []Busy) {
	samples, ret := handle.GetProcessUtilization(since)
	if err := because(ret); err != nil {
		return nil // NVML says "not found" when there is no new sample
	}
	for _, s := range samples {
		if s.TimeStamp > since {
			all = append(all, Busy{int(s.Pid), int(s.SmUtil), s.TimeStamp})
		}
	}
	return all
}
