// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-mps/slurm-mps/site"
)

// PersistenceMode reports whether the driver keeps an unused GPU initialised. Otherwise the driver loses the compute
// mode with the GPU's last user, and the next user waits for the initialisation.
func (n *NVML) PersistenceMode(uuid site.UUID) (bool, error) {
	return within(n, "read persistence mode of "+string(uuid), func() (bool, error) {
		handle, err := n.handle(uuid)
		if err != nil {
			return false, err
		}
		state, ret := handle.GetPersistenceMode()
		if err := because(ret); err != nil {
			return false, cannotRead("persistence mode", string(uuid), err)
		}
		return state == nvml.FEATURE_ENABLED, nil
	})
}
