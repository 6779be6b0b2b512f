// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/slurm-mps/slurm-mps/site"
)

// HasNothingOf reports that nothing of a job is below dir, which was perhaps never made: no lease, no ticket, no folder, and
// no prolog or epilog at work. Of a folder that is not root's own nothing is known.
func HasNothingOf(dir string, job uint32) bool {
	number := strconv.FormatUint(uint64(job), 10)
	for _, place := range []struct{ folder, name string }{
		{"leases", number + ".json"}, {"tickets", number + ".json"}, {"jobs", number}, {"turns", number},
	} {
		folder, err := openBelow(dir, place.folder)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false
		}
		folder.Close()
		if _, err := os.Lstat(filepath.Join(dir, place.folder, place.name)); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// openBelow opens a folder of a folder, both root's own.
func openBelow(dir, name string) (*os.File, error) {
	above, err := site.OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	defer above.Close()
	return site.OpenFolder(filepath.Join(dir, name))
}
