// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"fmt"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// startNVML asks for a mode before it is needed: NVML takes 8 ms to start (measured), and can do that while the
// daemons quit.
func (e Epilog) startNVML(l lease.Lease) {
	for _, gpu := range l.GPUs {
		if gpu.NewMode != "" {
			go e.GPUs.Mode(gpu.UUID)
			return
		}
	}
}

// restoreModes restores the modes that the record lists. It leaves a device that belongs to another job by now. It
// leaves a mode that is neither the one that was set nor the one before, because an admin has set it since.
func (e Epilog) restoreModes(l lease.Lease) error {
	return wait.Each(len(l.GPUs), func(i int) error {
		if l.GPUs[i].NewMode == "" {
			return nil
		}
		return e.restoreMode(l.Job.ID, l.GPUs[i])
	})
}

func (e Epilog) restoreMode(job uint32, gpu lease.LeasedGPU) error {
	holder, taken, err := e.Store.HeldByAnother(gpu.UUID, job)
	if err != nil {
		return err
	}
	log, began := e.Log.With().Str("gpu", string(gpu.UUID)).Logger(), time.Now()
	if taken {
		log.Warn().Uint32("holder", holder).Msg("the GPU belongs to another job now: its mode stays")
		return nil
	}
	mode, err := e.GPUs.Mode(gpu.UUID)
	if err != nil {
		return err
	}
	if mode == gpu.OriginalMode {
		return nil
	}
	if mode != gpu.NewMode {
		log.Warn().Str("mode", string(mode)).Msg("another program changed the compute mode: leaving it")
		return nil
	}
	if err := e.GPUs.SetMode(gpu.UUID, gpu.OriginalMode); err != nil {
		return err
	}
	mode, err = e.GPUs.Mode(gpu.UUID)
	if err != nil {
		return err
	}
	if mode != gpu.OriginalMode {
		return fmt.Errorf("cannot restore compute mode of %s: set to %s, and it reads %s", gpu.UUID, gpu.OriginalMode, mode)
	}
	log.Info().Str("step", "mode restored").Str("mode", string(mode)).Dur("ms", time.Since(began)).Send()
	return nil
}
