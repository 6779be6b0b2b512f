// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/serverlog"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// Only the newest logs of jobs stay.
func TestPrune(t *testing.T) {
	dir := t.TempDir()
	for i := range 7 {
		path := filepath.Join(dir, fmt.Sprint(100-i), "0")
		must.OK(t, os.MkdirAll(path, 0o755))
		at := time.Unix(int64(1000+i), 0)
		must.OK(t, os.Chtimes(filepath.Dir(path), at, at))
	}
	for range 2 {
		must.OK(t, prune(dir, 3, 0, func(string) string { return "" }))
		entries, err := os.ReadDir(dir)
		must.Have(t, err == nil && len(entries) == 3, "%d are left, %v", len(entries), err)
		for i, want := range []string{"94", "95", "96"} {
			must.Equal(t, "left", entries[i].Name(), want)
		}
	}
}

// A user with many jobs pushes out only the user's own entries. Entries that are too old go, also those of other users.
func TestPruneIsFair(t *testing.T) {
	dir := t.TempDir()
	add := func(job int, user string, age time.Duration) {
		path := filepath.Join(dir, fmt.Sprint(job, ".json"))
		at := time.Now().Add(-age)
		content := fmt.Sprintf(`{"schema":1,"job":%d,"node":"\"user\"","user":%q,"begin":"x"}`, job, user)
		must.OK(t, errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chtimes(path, at, at)))
	}
	add(1, "old", 31*24*time.Hour)
	add(2, "few", 29*24*time.Hour)
	add(3, "few", 28*24*time.Hour)
	for job := 10; job < 30; job++ {
		add(job, "many", time.Duration(30-job)*time.Hour)
	}
	for range 2 {
		must.OK(t, prune(dir, 6, maxReportAge, reportOwner))
		left, err := filepath.Glob(filepath.Join(dir, "*"))
		for i := range left {
			left[i] = filepath.Base(left[i])
		}
		if got := fmt.Sprint(left); err != nil || got != "[2.json 26.json 27.json 28.json 29.json 3.json]" {
			t.Errorf("left: %s, %v", got, err)
		}
	}
}

func TestWantsLogs(t *testing.T) {
	for keep, want := range map[string][2]bool{"": {}, "never": {}, "on_failure": {false, true}, "always": {true, true}, "sometimes": {}} {
		l := lease.Lease{Settings: lease.Settings{KeepLogs: keep}}
		must.Equal(t, keep, [2]bool{wantsLogs(l, false), wantsLogs(l, true)}, want)
	}
}

// A job that ran before keeps only the logs of its last run, although the clock was set back. A second epilog of the
// same run finds less, and leaves what the first epilog has kept.
func TestKeepTwice(t *testing.T) {
	must.Root(t)
	from, to := t.TempDir(), t.TempDir()
	l := lease.Lease{Job: lease.Job{ID: 7}, Daemons: []lease.Daemon{{LogDir: filepath.Join(from, "log")}}}
	must.OK(t, os.Mkdir(l.Daemons[0].LogDir, 0o700))
	for i, name := range logNames {
		l.CreatedAt = time.Date(2026, 3, 12, 14-i, 0, 0, 1, time.UTC)
		must.OK(t, os.WriteFile(filepath.Join(l.Daemons[0].LogDir, name), []byte(name), 0o600))
		must.Get(keep(to, l))(t)
		must.OK(t, os.Remove(filepath.Join(l.Daemons[0].LogDir, name)))
		later := time.Now().Add(2 * time.Hour)
		must.OK(t, os.Chtimes(filepath.Join(to, "7"), later, later))
	}
	must.Get(keep(to, l))(t)
	entries, err := os.ReadDir(filepath.Join(to, "7", "0"))
	must.Hold(t, err == nil && len(entries) == 1 && entries[0].Name() == "server.log", "kept: %v, %v", entries, err)
	if all, err := os.ReadDir(to); err != nil || len(all) != 1 {
		t.Errorf("left in the folder: %v, %v", all, err)
	}
}

// Logs are kept on failure if a daemon had to be killed, and not if it quit. They are copied before the folders are
// removed.
func TestLogsOutliveAJobWhoseDaemonWasKilled(t *testing.T) {
	for _, killed := range []bool{false, true} {
		n := newNode(t)
		l := n.leased(func(l *lease.Lease) { l.KeepLogs = "on_failure" })
		path := filepath.Join(l.Daemons[0].LogDir, serverlog.Name)
		must.OK(t, errors.Join(os.WriteFile(path, []byte("it ends"), 0o600), os.Chown(path, int(l.Job.UID), int(l.Job.GID))))
		if killed {
			n.Fail["quit daemon"] = site.ErrNoAnswer
		}
		must.Note(t, n.close())
		n.IsAsBefore()
		content, err := os.ReadFile(filepath.Join(n.logs, "7", "0", serverlog.Name))
		if there := err == nil && string(content) == "it ends"; there != killed {
			t.Errorf("killed %t: the log is %q, %v", killed, content, err)
		}
	}
}

// The logs of a shared daemon are kept for each of its jobs when the job ends, as the rule of all of them grants.
func TestLogsOfASharedDaemon(t *testing.T) {
	must.Root(t)
	for _, c := range []struct {
		keep, want string
		died       bool
	}{{"always", "7/0 8/0", false}, {"never", "", true}, {"on_failure", "", false}, {"on_failure", "7/0 8/0", true}} {
		n := newNode(t)
		n.leave = true
		id := n.sharedLease(7, 8)
		shared := must.Get(n.Store.Read(id))(t)
		shared.KeepLogs = c.keep
		if c.died {
			shared.Daemons[0].Proc.Start++
		}
		must.OK(t, n.Store.Save(shared))
		for job := uint32(7); job <= 8; job++ {
			n.Events = nil
			must.OK(t, n.epilog().Close(t.Context(), job))
		}
		kept, err := filepath.Glob(filepath.Join(n.logs, "*", "0"))
		for i := range kept {
			kept[i], _ = filepath.Rel(n.logs, kept[i])
		}
		if got := strings.Join(kept, " "); err != nil || got != c.want {
			t.Errorf("keep_logs %s, died %t: kept %q, want %q: %s", c.keep, c.died, got, c.want, &n.log)
		}
	}
}
