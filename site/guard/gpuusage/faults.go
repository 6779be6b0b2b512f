// SPDX-License-Identifier: Apache-2.0

package gpuusage

import (
	"bytes"
	"io"
	"time"

	"github.com/slurm-mps/slurm-mps/site/serverlog"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// maxLogPiece bounds the part of a log that one sample reads, because the job's user can fill the log.
const maxLogPiece = 1 << 20

// log is the log of one daemon's servers. It knows how much of the log has been read.
type log struct {
	dir    string
	uid    uint32
	offset int64
	failed int // the process that a server has named for the next fault
	ended  int // the process that disconnected last
	endAt  time.Time
}

// fault is a fatal error in a log.
type fault struct {
	at  time.Time
	pid int // the client that caused the error, 0 if not known
}

// read reads the new part of the log.
func (l *log) read() (faults []fault) {
	file, size, err := serverlog.Open(l.dir, serverlog.Name, l.uid)
	if err != nil {
		return nil
	}
	defer file.Close()
	if size < l.offset {
		l.offset = 0
	}
	piece, err := io.ReadAll(io.NewSectionReader(file, l.offset, maxLogPiece))
	if err != nil {
		return nil
	}
	whole := bytes.LastIndexByte(piece, '\n') + 1
	if whole == 0 && len(piece) == maxLogPiece {
		whole = len(piece) // no server writes such a line
	}
	l.offset += int64(whole)
	for line := range bytes.Lines(piece[:whole]) {
		if f, ok := l.line(line); ok {
			faults = append(faults, f)
		}
	}
	return faults
}

// line reads one line. If a client is killed while a kernel runs, it disconnects first, and then the server names a
// neighbour of this client (measured on an H200). So a client that has just disconnected is the cause.
func (l *log) line(line []byte) (f fault, ok bool) {
	entry, ok := serverlog.Parse(line)
	if !ok {
		return f, false
	}
	if pid, ok := entry.Disconnected(); ok {
		l.ended, l.endAt = pid, entry.At()
	}
	if pid, ok := entry.Failed(); ok {
		l.failed = pid
	}
	if !entry.Fault() {
		return f, false
	}
	f = fault{at: entry.At(), pid: l.failed}
	if l.ended != 0 && f.at.Sub(l.endAt) < usage.HarmTime {
		f.pid = l.ended
	}
	l.failed = 0
	return f, !f.at.IsZero()
}
