// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"math"
	"slices"

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
	return on(n, "read compute mode of", uuid, func(d device) (site.Mode, error) {
		number, ret := d.GetComputeMode()
		if err := d.cannotRead("compute mode", ret); err != nil {
			return "", err
		}
		mode, known := modes[number]
		if !known {
			return "", fmt.Errorf("cannot read compute mode of %s: NVML answers %d, which is not a mode", uuid, number)
		}
		return mode, nil
	})
}

// SetMode sets the compute mode of a whole GPU that is not in MIG mode, which needs root. It does not read the mode back.
func (n *NVML) SetMode(uuid site.UUID, mode site.Mode) error {
	for number, known := range modes {
		if known != mode {
			continue
		}
		_, err := on(n, "set compute mode of", uuid, func(d device) (none struct{}, err error) {
			return none, cannot(fmt.Sprintf("set compute mode of %s to %s", uuid, mode), because(d.SetComputeMode(number)))
		})
		return err
	}
	return fmt.Errorf("cannot set compute mode of %s: %q is not a compute mode", uuid, mode)
}

// Processes returns the processes that hold a compute context on a device, including an MPS server and its clients.
func (n *NVML) Processes(uuid site.UUID) ([]Process, error) {
	return on(n, "read processes of", uuid, func(d device) ([]Process, error) {
		p := &properties{device: d}
		clients := get(p, "MPS clients", d.GetMPSComputeRunningProcesses)
		others := get(p, "processes", d.GetComputeRunningProcesses)
		if p.err != nil {
			return nil, p.err
		}
		return joined(clients, others), nil
	})
}

// PersistenceMode reports whether the driver keeps an unused GPU initialised. Otherwise the driver loses the compute
// mode with the GPU's last user, and the next user waits for the initialisation.
func (n *NVML) PersistenceMode(uuid site.UUID) (bool, error) {
	return on(n, "read persistence mode of", uuid, func(d device) (bool, error) {
		state, ret := d.GetPersistenceMode()
		return state == nvml.FEATURE_ENABLED, d.cannotRead("persistence mode", ret)
	})
}

// joined lists each pid once. A pid in both lists is a client.
func joined(clients, others []nvml.ProcessInfo) (all []Process) {
	for _, client := range clients {
		all = append(all, Process{PID: int(client.Pid), MPS: true, MiB: mebibytes(client.UsedGpuMemory)})
	}
	for _, other := range others {
		if !slices.ContainsFunc(all, func(p Process) bool { return p.PID == int(other.Pid) }) {
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
