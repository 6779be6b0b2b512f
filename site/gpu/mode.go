// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-mps/slurm-mps/site"
)

// Process is a process that holds a compute context on a device.
type Process struct {
	PID int
	MPS bool // a client of an MPS server; false for the server itself, and for a process without MPS
	MiB int  // how much of the device's memory the process uses
}

// modes are the compute modes by NVML's number.
var modes = map[nvml.ComputeMode]site.Mode{
	nvml.COMPUTEMODE_DEFAULT:           site.ModeDefault,
	nvml.COMPUTEMODE_EXCLUSIVE_THREAD:  site.ModeExclusiveThread,
	nvml.COMPUTEMODE_PROHIBITED:        site.ModeProhibited,
	nvml.COMPUTEMODE_EXCLUSIVE_PROCESS: site.ModeExclusiveProcess,
}

// Mode returns the present compute mode of a device.
func (n *NVML) Mode(uuid site.UUID) (site.Mode, error) {
	return within(n, "read compute mode of "+string(uuid), func() (site.Mode, error) {
		handle, err := n.handle(uuid)
		if err != nil {
			return "", err
		}
		number, ret := handle.GetComputeMode()
		if err := because(ret); err != nil {
			return "", cannotRead("compute mode", string(uuid), err)
		}
		mode, known := modes[number]
		if !known {
			return "", cannotRead("compute mode", string(uuid), fmt.Errorf("NVML answers %d, which is not a mode", number))
		}
		return mode, nil
	})
}

// SetMode sets the compute mode of a whole GPU, which needs root. It does not read the mode back. The error is
// ErrNotSupported for a GPU in MIG mode, and ErrPermission without root.
func (n *NVML) SetMode(uuid site.UUID, mode site.Mode) error {
	_, err := within(n, "set compute mode of "+string(uuid), func() (struct{}, error) { return struct{}{}, n.setMode(uuid, mode) })
	return err
}

// Processes returns the processes that hold a compute context on a device, including an MPS server and its clients.
func (n *NVML) Processes(uuid site.UUID) ([]Process, error) {
	return within(n, "read processes of "+string(uuid), func() ([]Process, error) { return n.processes(uuid) })
}

func (n *NVML) setMode(uuid site.UUID, mode site.Mode) error {
	number, err := numberOf(mode)
	if err != nil {
		return fmt.Errorf("cannot set compute mode of %s: %w", uuid, err)
	}
	handle, err := n.handle(uuid)
	if err != nil {
		return err
	}
	if err := because(handle.SetComputeMode(number)); err != nil {
		return fmt.Errorf("cannot set compute mode of %s to %s: %w", uuid, mode, err)
	}
	return nil
}

func numberOf(mode site.Mode) (nvml.ComputeMode, error) {
	for number, known := range modes {
		if known == mode {
			return number, nil
		}
	}
	return 0, fmt.Errorf("%q is not a compute mode", mode)
}

func (n *NVML) processes(uuid site.UUID) ([]Process, error) {
	handle, err := n.handle(uuid)
	if err != nil {
		return nil, err
	}
	clients, ret := handle.GetMPSComputeRunningProcesses()
	if err := because(ret); err != nil {
		return nil, cannotRead("MPS clients", string(uuid), err)
	}
	others, ret := handle.GetComputeRunningProcesses()
	if err := because(ret); err != nil {
		return nil, cannotRead("processes", string(uuid), err)
	}
	return joined(clients, others), nil
}

// joined lists each pid once. A pid in both lists is a client.
func joined(clients, others []nvml.ProcessInfo) []Process {
	var all []Process
	seen := map[uint32]bool{}
	for _, client := range clients {
		seen[client.Pid] = true
		all = append(all, Process{PID: int(client.Pid), MPS: true, MiB: mebibytes(client.UsedGpuMemory)})
	}
	for _, other := range others {
		if !seen[other.Pid] {
			all = append(all, Process{PID: int(other.Pid), MiB: mebibytes(other.UsedGpuMemory)})
		}
	}
	return all
}

// mebibytes returns 0 if NVML does not know the number, as with MIG.
func mebibytes(bytes uint64) int {
	if bytes == math.MaxUint64 {
		return 0
	}
	return int(bytes >> 20)
}
