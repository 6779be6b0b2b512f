// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"fmt"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// startNVML asks for a mode before it is needed: NVML takes 8 ms to start (measured), and can do that while the
// daemons quit.
func (e Epilog) startNVML(l lease.Lease) {
	for _, held := range l.Held {
		if held.NewMode != "" {
			go e.GPUs.Mode(held.UUID)
			return
		}
	}
}

// restoreModes restores the modes that the record lists. It leaves a device that belongs to another job by now. It
// leaves a mode that is neither the one that was set nor the one before, because an admin has set it since.
func (e Epilog) restoreModes(l lease.Lease) error {
	return site.Each(len(l.Held), func(i int) error {
		if l.Held[i].NewMode == "" {
			return nil
		}
		return e.restoreMode(l.Job.ID, l.Held[i])
	})
}

func (e Epilog) restoreMode(job uint32, held lease.ClaimedGPU) error {
	holder, taken, err := e.Store.Owner(held.UUID)
	if err != nil {
		return err
	}
	log, began := e.Log.With().Str("gpu", string(held.UUID)).Logger(), time.Now()
	if taken && holder != job {
		log.Warn().Uint32("holder", holder).Msg("the GPU belongs to another job now: its mode stays")
		return nil
	}
	mode, err := e.GPUs.Mode(held.UUID)
	if err != nil {
		return err
	}
	if mode == held.OriginalMode {
		return nil
	}
	if mode != held.NewMode {
		log.Warn().Str("mode", string(mode)).Msg("another program changed the compute mode: leaving it")
		return nil
	}
	if err := e.GPUs.SetMode(held.UUID, held.OriginalMode); err != nil {
		return err
	}
	mode, err = e.GPUs.Mode(held.UUID)
	if err != nil {
		return err
	}
	if mode != held.OriginalMode {
		return fmt.Errorf("cannot restore compute mode of %s: set to %s, and it reads %s", held.UUID, held.OriginalMode, mode)
	}
	log.Info().Str("step", "mode restored").Str("mode", string(mode)).Dur("ms", time.Since(began)).Send()
	return nil
}
