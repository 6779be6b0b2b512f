// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"

	"github.com/slurm-mps/slurm-mps/site"
)

// Status is the present state of a device. Err lists the values that could not be read, and the other fields are valid.
type Status struct {
	Index     int // the number in NVML and nvidia-smi; -1 for a MIG instance, which has no number
	Device    site.Device
	Mode      site.Mode // "" for a MIG instance, which has no mode
	Processes []Process
	Err       error
}

// List reads every whole GPU of the node. Unlike Devices it continues after a GPU that cannot be read, and reports that
// GPU with its error.
func (n *NVML) List() ([]Status, error) {
	count, err := within(n, "count GPUs", n.count)
	if err != nil {
		return nil, err
	}
	all := make([]Status, count)
	for position := range all {
		device, err := n.byPCI(position)
		all[position] = Status{Index: position, Device: device, Err: err}
		if device.UUID != "" {
			all[position].read(n)
		}
	}
	return all, nil
}

// Instance reads one MIG instance.
func (n *NVML) Instance(uuid site.UUID) Status {
	device, err := n.Find(uuid)
	seen := Status{Index: -1, Device: device, Err: err}
	if err == nil {
		seen.Processes, seen.Err = n.Processes(uuid)
	}
	return seen
}

// read reads the mode and the processes.
func (s *Status) read(n *NVML) {
	var mode, processes error
	s.Mode, mode = n.Mode(s.Device.UUID)
	s.Processes, processes = n.Processes(s.Device.UUID)
	s.Err = errors.Join(s.Err, mode, processes)
}
