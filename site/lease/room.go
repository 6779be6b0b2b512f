// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Room is what the job's guard tells the job's programs before they start: the GPUs on which they must wait for room.
// No undo reads it.
type Room struct {
	GPUs []FullGPU `json:"gpus,omitempty"`
}

// FullGPU is a GPU on which dead clients take room that a new client may need.
type FullGPU struct {
	Minor int       `json:"minor"` // N of /dev/nvidiaN
	Dead  int       `json:"dead"`  // dead clients whose files are held or are being closed
	Until time.Time `json:"until"` // the guard holds no files longer than this
}

// roomPath is in the job's folder, which is root's.
func (s *Store) roomPath(job uint32) string { return filepath.Join(s.JobDir(job), "room.json") }

// SaveRoom writes a job's room, for all users to read. If no GPU is full, there is no file. A job without folders is
// not an error: its epilog has removed them.
func (s *Store) SaveRoom(job uint32, r Room) error {
	path := s.roomPath(job)
	if len(r.GPUs) == 0 {
		return remove(path)
	}
	content, err := json.Marshal(r)
	if err == nil {
		err = state(content, 0o644).WriteTo(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ReadRoom returns a job's room. Any user may call it.
func (s *Store) ReadRoom(job uint32) (r Room, err error) {
	path := s.roomPath(job)
	content, err := s.readForRanks(path)
	if os.IsNotExist(err) { // at each rank's start, where errors.Is is slower the first time
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	if err != nil {
		return Room{}, fmt.Errorf("cannot read room of job %d: %w", job, err)
	}
	return r, nil
}
