// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/serverlog"
)

// serverSaid is a server's log as r580 writes it. One client has two contexts, one client leaves and comes again,
// there is a fault, and the server is replaced.
const serverSaid = `[2026-11-21 05:26:20.000 Other    829] Startup
[2026-11-21 05:26:21.000 Server   829] Client {PID: 901, Context ID: 0} connected
[2026-11-21 05:26:21.001 Server   829] Client {PID: 901, Context ID: 1} connected
[2026-11-21 05:26:21.002 Server   829] Client {PID: 902, Context ID: 0} connected
[2026-11-21 05:26:22.000 Server   829] Client process 901 disconnected
[2026-11-21 05:26:22.001 Server   829] Client {901, 0} connected
[2026-11-21 05:26:22.002 Server   829] Client {903, 0} connected
[2026-11-21 05:26:29.821 Server   829] Client {PID: 901, Context: 1} encountered a fatal GPU error.
[2026-11-21 05:26:29.822 Server   829] Server is handling a fatal GPU error.
[2026-11-21 05:26:31.000 Server  1000] Client {PID: 904, Context ID: 0} connected
[2026-11-21 05:26:32.000 Server  1000] Client {PID: 905, Context ID: 0} connected
`

const afterwards = `[2026-11-21 05:26:33.000 Server  1000] Client process 904 disconnected
[2026-11-21 05:26:34.000 Server  1000] Client termination succeeded.
[2026-11-21 05:26:34.001 Server  1000] Client process 905 disconnected
`

func TestTally(t *testing.T) {
	long := strings.Repeat("x", 100<<10) + "\n"
	for name, c := range map[string]struct {
		log   string
		began int
		want  [5]int // clients, peak, left, terminated, faults
	}{
		"nothing":                  {"", 0, [5]int{}},
		"the epilog sees two":      {serverSaid + afterwards, len(serverSaid), [5]int{6, 3, 2, 1, 1}},
		"the epilog sees none":     {serverSaid + afterwards, len(serverSaid + afterwards), [5]int{6, 3, 0, 1, 1}},
		"a line that is too long":  {long + serverSaid, len(long + serverSaid), [5]int{6, 3, 2, 0, 1}},
		"what users may write":     {"] ] ]\n[ Server ] Client {x, 0} connected\nClient process 1 disconnected\n\x00\n", 0, [5]int{}},
		"a line that is not whole": {"[2026-11-21 05:26:21.000 Server   829] Client {PID: 901, Context ID: 0} conn", 80, [5]int{}},
	} {
		got := tallyOf(strings.NewReader(c.log), int64(c.began))
		if counted := [5]int{got.clients, got.peak, got.left, got.terminated, got.faults}; counted != c.want {
			t.Errorf("%s: %v, want %v", name, counted, c.want)
		}
	}
}

// The numbers of several daemons are added up. A log that is a link and a folder that is gone add nothing.
func TestSummarise(t *testing.T) {
	dir := t.TempDir()
	l := lease.Lease{Job: lease.Job{UID: uint32(os.Getuid())}, CreatedAt: time.Now().Add(-time.Minute)}
	for n, content := range []string{serverSaid, serverSaid, "link", ""} {
		folder := filepath.Join(dir, string(rune('a'+n)), "log")
		l.Daemons = append(l.Daemons, lease.Daemon{LogDir: folder})
		if content == "" {
			continue
		}
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, serverlog.Name)
		err := os.WriteFile(path, []byte(content), 0o644)
		if content == "link" {
			err = os.Symlink(filepath.Join(dir, "a", "log", serverlog.Name), path+".x")
			_ = os.Rename(path+".x", path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s := summarise(l, logSizes(l))
	if s.Clients != 12 || s.Peak != 6 || s.ClientsAtEpilog != 4 || s.Faults != 2 || s.Terminated != 0 || s.Seconds < 60 || s.Seconds > 3600 {
		t.Errorf("%+v", s)
	}
}

// When a job ends, the log has its summary: what the servers' logs contain, and what the guard has seen.
func TestAnEpilogLogsTheSummary(t *testing.T) {
	n := newNode(t)
	l := n.leased(nil)
	path := filepath.Join(l.Daemons[0].LogDir, serverlog.Name)
	err := errors.Join(os.WriteFile(path, []byte(serverSaid), 0o600), os.Chown(path, int(l.Job.UID), int(l.Job.GID)),
		n.Store.SaveGuard(7, lease.GuardState{Dead: 1, Released: map[string]int{"idle": 3, lease.NoNeighbour: 9},
			OutsideSeen: 2, Pauses: 2, PausedMillis: 1300}))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.close(); err != nil {
		t.Error(err)
	}
	got := n.logged(SummaryStep)
	for key, want := range map[string]any{
		"user": "hpc1", "rule": "mps", "gpus": 2.0, "clients": 6.0, "peak": 3.0, "clients_at_epilog": 2.0, "faults": 1.0, "held": 4.0,
		"outside": 2.0, "pauses": 2.0, "paused_ms": 1300.0, "closed": true,
	} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
}
