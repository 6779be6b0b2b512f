// SPDX-License-Identifier: Apache-2.0

package own

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// state is what a keeper leaves to the one that is started when it was killed: records in a file without a name, which
// no one can remove. The supervisor has it, too.
type state struct{ file *os.File }

// record is an entry of a state. One of its fields is set.
type record struct {
	Rank    *rank         `json:",omitempty"`
	Daemon  *proc.Process `json:",omitempty"` // the daemon that was started last
	Refusal string        `json:",omitempty"` // why no keeper can serve this step
}

// rank is a process of a step that the kernel has named at its connection.
type rank struct {
	proc.Process
	Launcher int  // its parent if that is a launcher, else 0
	Hidden   bool // it has printed that its program cannot be guarded
}

// newState makes an empty state.
func newState() (state, error) {
	fd, err := unix.MemfdCreate("slurm-mps-own", unix.MFD_CLOEXEC)
	if err != nil {
		return state{}, fmt.Errorf("cannot make the keeper's state: %w", err)
	}
	return state{os.NewFile(uintptr(fd), "state")}, nil
}

// refuse records why no keeper can serve a step. It returns the null device, in place of the step's folder.
func (s state) refuse(why error) (*os.File, error) {
	s.add(record{Refusal: why.Error()})
	return os.Open(os.DevNull)
}

// add appends a record. Without memory for it, only the next keeper knows less.
func (s state) add(r record) {
	if content, err := json.Marshal(r); err == nil && (r.Rank == nil || s.size() < maxState) {
		_, _ = s.file.WriteAt(append([]byte{'\n'}, content...), s.size()) // not behind what a killed keeper has not ended
	}
}

// maxState limits a state: some ten thousand ranks. Later ones are known to the keeper that they have met.
const maxState = 1 << 20

func (s state) size() int64 {
	info, err := s.file.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// read returns the records.
func (s state) read() (all []record) {
	content := make([]byte, s.size())
	n, _ := s.file.ReadAt(content, 0)
	for line := range bytes.Lines(content[:n]) {
		var r record
		if json.Unmarshal(line, &r) == nil {
			all = append(all, r)
		}
	}
	return all
}
