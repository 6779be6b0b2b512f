// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/slurm-mps/slurm-mps/site/osfile"
)

// OpenPrivate makes the folders of a user's own store below dir, for the daemon that mpirun-wrap --own starts. Only
// this user can write into dir, so the ticket and the room there are as trustworthy to the user's ranks as root's.
func OpenPrivate(dir, boot string, job uint32) (*Store, error) {
	s := &Store{dir: dir, boot: boot, private: true}
	daemon := s.DaemonDir(job, 0)
	var failed error
	for _, folder := range []string{"tickets", filepath.Join("jobs", strconv.FormatUint(uint64(job), 10), "exchange")} {
		failed = errors.Join(failed, os.MkdirAll(filepath.Join(dir, folder), 0o700))
	}
	failed = errors.Join(failed, os.MkdirAll(filepath.Join(daemon, "pipe"), 0o700), os.MkdirAll(filepath.Join(daemon, "log"), 0o700))
	if failed != nil {
		return nil, fmt.Errorf("cannot make folders below %s: %w", dir, failed)
	}
	return s, nil
}

// ReadPrivate returns a user's own store for reading.
func ReadPrivate(dir, boot string) *Store { return &Store{dir: dir, boot: boot, private: true} }

// readForRanks reads a record that ranks use: root's, or the user's own in a private store.
func (s *Store) readForRanks(path string) ([]byte, error) {
	if s.private {
		return osfile.ReadOwn(path)
	}
	return osfile.ReadRootOwnedInContainer(path)
}
