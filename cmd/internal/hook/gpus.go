// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
)

// Driver is the GPU driver of this node. It opens NVML at the first call, because opening takes 8 to 15 ms. A job without MPS, and an epilog without a
// mode to restore, do not need NVML.
//
// NVML is not shut down, because that takes up to 12 ms more. The end of the process does the same and takes no
// longer for it (measured on H200s).
type Driver struct {
	library string
	timeout time.Duration // bounds one method
	once    sync.Once
	nvml    *gpu.NVML
	err     error
}

func (l *Driver) open() (*gpu.NVML, error) {
	l.once.Do(func() { l.nvml, l.err = gpu.OpenTimeout(l.library, l.timeout) })
	return l.nvml, l.err
}

// opened opens the driver if it is not open yet, and calls it.
func opened[T any](l *Driver, call func(*gpu.NVML) (T, error)) (none T, err error) {
	nvml, err := l.open()
	if err != nil {
		return none, err
	}
	return call(nvml)
}

func (l *Driver) Devices() ([]site.Device, error) { return opened(l, (*gpu.NVML).Devices) }

func (l *Driver) ByMinor(minor int) (site.Device, error) {
	return opened(l, func(n *gpu.NVML) (site.Device, error) { return n.ByMinor(minor) })
}

func (l *Driver) Find(uuid site.UUID) (site.Device, error) {
	return opened(l, func(n *gpu.NVML) (site.Device, error) { return n.Find(uuid) })
}

func (l *Driver) Index(uuid site.UUID) (int, error) {
	return opened(l, func(n *gpu.NVML) (int, error) { return n.Index(uuid) })
}

func (l *Driver) Capability(uuid site.UUID) (major, minor int, err error) {
	nvml, err := l.open()
	if err != nil {
		return 0, 0, err
	}
	return nvml.Capability(uuid)
}

func (l *Driver) Mode(uuid site.UUID) (site.Mode, error) {
	return opened(l, func(n *gpu.NVML) (site.Mode, error) { return n.Mode(uuid) })
}

func (l *Driver) SetMode(uuid site.UUID, mode site.Mode) error {
	_, err := opened(l, func(n *gpu.NVML) (struct{}, error) { return struct{}{}, n.SetMode(uuid, mode) })
	return err
}

func (l *Driver) Driver() (string, error) { return opened(l, (*gpu.NVML).Driver) }
