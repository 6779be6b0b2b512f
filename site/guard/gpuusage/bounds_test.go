// SPDX-License-Identifier: Apache-2.0

package gpuusage

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/serverlog"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// serverLog makes the folder of a daemon's log.
func serverLog(t *testing.T, content []byte) *log {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "log")
	path := filepath.Join(dir, serverlog.Name)
	must.OK(t, errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(path, content, 0o600)))
	return &log{dir: dir, uid: uint32(os.Getuid())}
}

// A report has at most 64 faults, because the job's user can write the server's log.
//
// Contract: U2
func TestFaultsAreBounded(t *testing.T) {
	const line = "[2026-11-21 05:26:29.822 Server   829] Server is handling a fatal GPU error.\n"
	ticket := lease.Ticket{Devices: []lease.TicketDevice{{Device: site.Device{UUID: "GPU-1"}}}}
	r := newRecorder(options{ticket: ticket, read: nothing, interval: time.Second})
	r.logs = []*log{serverLog(t, bytes.Repeat([]byte(line), 3*usage.MaxFaults))}
	r.readLogs()
	if len(r.report.Faults) != usage.MaxFaults || usage.MaxFaults != 64 {
		t.Errorf("%d faults, want %d", len(r.report.Faults), usage.MaxFaults)
	}
}

// A sample reads a piece of the log, also if the job's user has filled the log with one line.
//
// Contract: U1
func TestAPieceOfTheLog(t *testing.T) {
	lines := serverLog(t, bytes.Repeat([]byte("a line\n"), 3<<20/7))
	one := serverLog(t, bytes.Repeat([]byte{'x'}, 3<<20))
	for range 2 {
		for name, l := range map[string]*log{"lines": lines, "one line": one} {
			before := l.offset
			if l.read(); l.offset-before > 1<<20 || l.offset == before {
				t.Errorf("%s: %d bytes are read at once", name, l.offset-before)
			}
		}
	}
}
