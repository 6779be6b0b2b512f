// SPDX-License-Identifier: Apache-2.0

package frame

import (
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
)

// Driver is the GPU driver of this node. It opens NVML at the first call, because opening takes 8 to 15 ms. A job
// without MPS, and an epilog without a mode to restore, do not need NVML.
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

func (d *Driver) opened() (*gpu.NVML, error) {
	d.once.Do(func() { d.nvml, d.err = gpu.OpenTimeout(d.library, d.timeout) })
	return d.nvml, d.err
}

// ask opens the driver if it is not open yet, and calls it.
func ask[T any](d *Driver, call func(*gpu.NVML) (T, error)) (none T, err error) {
	nvml, err := d.opened()
	if err != nil {
		return none, err
	}
	return call(nvml)
}

func (d *Driver) Devices() ([]site.Device, error) { return ask(d, (*gpu.NVML).Devices) }

func (d *Driver) ByMinor(minor int) (site.Device, error) {
	return ask(d, func(n *gpu.NVML) (site.Device, error) { return n.ByMinor(minor) })
}

func (d *Driver) Find(uuid site.UUID) (site.Device, error) {
	return ask(d, func(n *gpu.NVML) (site.Device, error) { return n.Find(uuid) })
}

func (d *Driver) Index(uuid site.UUID) (int, error) {
	return ask(d, func(n *gpu.NVML) (int, error) { return n.Index(uuid) })
}

func (d *Driver) Capability(uuid site.UUID) (major, minor int, err error) {
	nvml, err := d.opened()
	if err != nil {
		return 0, 0, err
	}
	return nvml.Capability(uuid)
}

func (d *Driver) Mode(uuid site.UUID) (site.Mode, error) {
	return ask(d, func(n *gpu.NVML) (site.Mode, error) { return n.Mode(uuid) })
}

func (d *Driver) SetMode(uuid site.UUID, mode site.Mode) error {
	_, err := ask(d, func(n *gpu.NVML) (struct{}, error) { return struct{}{}, n.SetMode(uuid, mode) })
	return err
}

func (d *Driver) Driver() (string, error) { return ask(d, (*gpu.NVML).Driver) }
