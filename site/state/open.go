// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// Open makes a reader of this node. If asking is true, it asks the daemons. If the site's file cannot be
// used, every reading of the node reports that.
func Open(paths site.Paths, asking bool) (*Reader, error) {
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot find out which node this is: %w", err)
	}
	config, _ := policyfile.ReadConfig(paths)
	r := &Reader{
		Store: lease.OpenReadOnly(paths.Run(), boot), Run: paths.Run(), Name: name, Paths: paths,
		Clock: time.Now, Root: os.Geteuid() == 0, Driver: opening(config.NVMLLibrary),
		Files: func() (policy, config policyfile.FileStatus) {
			_, policy = policyfile.ReadPolicy(paths)
			_, config = policyfile.ReadConfig(paths)
			return policy, config
		},
	}
	if asking {
		r.Daemons = mps.ControlProgram{Path: config.Control, LibraryPath: config.LibraryPath}
	}
	return r, nil
}

// opening opens NVML at its first use, once, because that takes 8 ms (measured). It does not repeat a call that hung.
func opening(library string) func() (Driver, error) {
	open := sync.OnceValues(func() (*gpu.NVML, error) { return gpu.Open(library) })
	return func() (Driver, error) {
		nvml, err := open()
		if err != nil {
			return nil, err
		}
		return nvml, nil
	}
}
