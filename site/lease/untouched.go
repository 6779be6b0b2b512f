// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/slurm-mps/slurm-mps/site/osfile"
)

// HasNothingOf reports whether nothing of a job is below dir, which may not exist: no lease, no ticket, no folder,
// and no prolog or epilog at work. It returns false if a folder is not root's own, because its content then proves
// nothing.
func HasNothingOf(dir string, job uint32) bool {
	number := strconv.FormatUint(uint64(job), 10)
	for _, place := range []struct{ folder, name string }{
		{"leases", number + ".json"}, {"tickets", number + ".json"}, {"jobs", number}, {"locks", number},
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

// openBelow opens a folder in a folder. Both must be root's own.
func openBelow(dir, name string) (*os.File, error) {
	above, err := osfile.OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	defer above.Close()
	return osfile.OpenFolder(filepath.Join(dir, name))
}
