// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"

	"github.com/slurm-mps/slurm-mps/site"
)

// Sight is a device as it is now. Err is what of it could not be read: the rest stands.
type Sight struct {
	Index     int // NVML's and nvidia-smi's number; -1 for a MIG instance, which has none of its own
	Device    site.Device
	Mode      site.Mode // "" for a MIG instance, whose mode is nobody's to set
	Processes []Process
	Err       error
}

// Survey looks at every whole GPU of the node. Unlike Devices it goes past a GPU that cannot be read: whoever looks wants
// to see the others, and that one named.
func (n *NVML) Survey() ([]Sight, error) {
	count, err := within(n, "count GPUs", n.count)
	if err != nil {
		return nil, err
	}
	all := make([]Sight, count)
	for position := range all {
		device, err := n.ByPCI(position)
		all[position] = Sight{Index: position, Device: device, Err: err}
		if device.UUID != "" {
			n.look(&all[position])
		}
	}
	return all, nil
}

// Instance looks at one MIG instance.
func (n *NVML) Instance(uuid site.UUID) Sight {
	device, err := n.Find(uuid)
	seen := Sight{Index: -1, Device: device, Err: err}
	if err == nil {
		seen.Processes, seen.Err = n.Processes(uuid)
	}
	return seen
}

// look adds what changes.
func (n *NVML) look(seen *Sight) {
	var unread [2]error
	seen.Mode, unread[0] = n.Mode(seen.Device.UUID)
	seen.Processes, unread[1] = n.Processes(seen.Device.UUID)
	seen.Err = errors.Join(seen.Err, unread[0], unread[1])
}
