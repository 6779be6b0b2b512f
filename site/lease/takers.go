// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// A guard duplicates files in processes of its own, the takers. A user's file system can hold a taker up, and then no
// signal ends it, also after the job. So takers are counted on the node: in one file, in which each has a place. A lock
// on one byte of the file keeps a place. The guard takes the lock, and its taker inherits the lock's descriptor. So the
// kernel frees the place when the taker has ended, and not before, whatever becomes of the guard.

const (
	// maxTakers limits the takers of a node. Each guard has one, and 56 jobs fit on eight GPUs with MIG.
	maxTakers = 256
	// maxTakersLeft limits the takers of one user's jobs whose guards have given them up or have ended. With as many,
	// the user's guards start no others.
	maxTakersLeft = 8
	// takerSize is the maximum number of bytes of a place's record.
	takerSize = 256
)

// ErrTakers means that too many takers are left.
var ErrTakers = errors.New("too many of root's processes hang in file systems of users: see mpsctl status")

// Taker is a process of root's that duplicates files for a guard.
type Taker struct {
	Proc  proc.Process `json:"proc"` // pid 0 until it has started
	Job   uint32       `json:"job"`
	UID   uint32       `json:"uid"` // the job's user
	Guard proc.Process `json:"guard"`
	Left  bool         `json:"left,omitempty"` // its guard has given it up
}

// left reports whether a taker runs and has no guard that uses it.
func (t Taker) left() bool { return t.Proc.Running() && (t.Left || !t.Guard.Running()) }

// TakerPlace is the place of a taker that has not ended. A nil place is of a taker that is not counted.
type TakerPlace struct {
	file  *os.File
	at    int64
	taker Taker
}

func (s *Store) takersPath() string { return filepath.Join(s.dir, "takers") }

// TakerPlace takes a place for a taker. The error is ErrTakers if the node has no place left, or if too many takers of
// the user's jobs are left.
func (s *Store) TakerPlace(t Taker) (*TakerPlace, error) {
	file, err := os.OpenFile(s.takersPath(), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot count takers: %w", osfile.ExplainFull(s.takersPath(), err))
	}
	p := &TakerPlace{file, -1, t}
	left := 0
	for index := int64(0); index < maxTakers; index++ {
		if p.at < 0 && unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, byteLock(index)) == nil {
			p.at = index
			continue
		}
		if other, taken := takerAt(file, index); taken && other.UID == t.UID && other.left() {
			left++
		}
	}
	if p.at < 0 || left >= maxTakersLeft {
		file.Close()
		return nil, ErrTakers
	}
	p.write()
	return p, nil
}

// Descriptor is the file that the taker inherits.
func (p *TakerPlace) Descriptor() *os.File { return p.file }

// Started records the process of the taker.
func (p *TakerPlace) Started(taker proc.Process) {
	if p == nil {
		return
	}
	p.taker.Proc = taker
	p.write()
}

// Leave gives up the taker. It keeps its place until it ends.
func (p *TakerPlace) Leave() error {
	if p == nil {
		return nil
	}
	if p.taker.Proc.PID > 0 {
		p.taker.Left = true
		p.write()
	}
	return p.file.Close()
}

// write writes the place's record. A failure is ignored, because the lock itself counts.
func (p *TakerPlace) write() {
	content, err := json.Marshal(p.taker)
	if err != nil || len(content) > takerSize {
		return
	}
	record := make([]byte, takerSize)
	copy(record, content)
	_, _ = p.file.WriteAt(record, p.at*takerSize)
}

// TakersLeft returns the takers that run and have no guard. Only root may call it.
func (s *Store) TakersLeft() (all []Taker, err error) {
	file, err := os.OpenFile(s.takersPath(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot count takers: %w", err)
	}
	defer file.Close()
	for index := range int64(maxTakers) {
		if t, taken := takerAt(file, index); taken && t.left() {
			all = append(all, t)
		}
	}
	return all, nil
}

// byteLock is the lock of one byte for an open file, and for all processes that have it open.
func byteLock(index int64) *unix.Flock_t {
	return &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: index, Len: 1}
}

// takerAt returns the taker at a place, and whether another open file has the place's lock.
func takerAt(file *os.File, index int64) (t Taker, taken bool) {
	lock := byteLock(index)
	if unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, lock) != nil || lock.Type == unix.F_UNLCK {
		return t, false
	}
	record := make([]byte, takerSize)
	n, _ := file.ReadAt(record, index*takerSize)
	for n > 0 && record[n-1] == 0 {
		n--
	}
	return t, json.Unmarshal(record[:n], &t) == nil
}
