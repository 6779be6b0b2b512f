// SPDX-License-Identifier: Apache-2.0

package sight

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/node"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
)

// Here makes a reader of this node; asking says whether it asks the daemons. When the site's
// file cannot be used, every look says so.
func Here(paths site.Paths, asking bool) (*Reader, error) {
	boot, err := site.BootID()
	if err != nil {
		return nil, err
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot tell which node this is: %w", err)
	}
	facts, _ := node.ReadFacts(paths)
	r := &Reader{
		Journal: lease.Reader(paths.Run(), boot), Run: paths.Run(), Name: name, Paths: paths,
		Clock: time.Now, Root: os.Geteuid() == 0, Driver: opening(facts.NVMLLibrary),
		Files: func() (policy, facts node.Standing) {
			_, policy = node.ReadPolicy(paths)
			_, facts = node.ReadFacts(paths)
			return policy, facts
		},
	}
	if asking {
		r.Daemons = mps.Control{Path: facts.Control, LibraryPath: facts.LibraryPath}
	}
	return r, nil
}

// opening opens NVML at its first use, once: it takes 8 ms (measured) and a hang is never tried again.
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
