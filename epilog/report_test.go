// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"golang.org/x/sys/unix"
)

// At most 1,000 reports are kept, for 30 days.
//
// Contract: U2
func TestReportsAreBounded(t *testing.T) {
	needsRoot(t)
	for _, c := range []struct {
		name      string
		of        int           // reports that are there
		age, want time.Duration // of the oldest, and of the oldest that is left
		left      int
	}{
		{"few and new", 3, time.Hour, time.Hour, 4},
		{"one is too old", 3, 30*24*time.Hour + time.Hour, 24 * time.Hour, 3},
		{"one is not too old", 3, 30*24*time.Hour - time.Hour, 30*24*time.Hour - time.Hour, 4},
		{"too many", 1000, 20 * 24 * time.Hour, 24 * time.Hour, 1000},
	} {
		folder := t.TempDir()
		for i := range c.of {
			path, at := filepath.Join(folder, strconv.Itoa(100+i)+".json"), time.Now().Add(-24*time.Hour)
			if i == 0 {
				at = time.Now().Add(-c.age)
			}
			must.OK(t, errors.Join(os.WriteFile(path, nil, 0o640), os.Chtimes(path, at, at)))
		}
		must.OK(t, (Epilog{Reports: folder}).keepReportOf(2001, usage.Report{Job: 7}))
		entries, err := os.ReadDir(folder)
		must.Hold(t, err == nil && len(entries) == c.left, "%s: %d reports are left, %v", c.name, len(entries), err)
		_, err = os.Lstat(filepath.Join(folder, "100.json"))
		if oldest := err == nil; oldest != (c.want == c.age) {
			t.Errorf("%s: the oldest is left: %v", c.name, oldest)
		}
		if _, err := os.Lstat(filepath.Join(folder, "7.json")); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A report is kept only in a folder that no user can change, because root would follow a link of the user's there.
//
// Contract: U2
func TestReportsInAFolderOfAUser(t *testing.T) {
	needsRoot(t)
	for name, prepare := range map[string]func(folder string) error{
		"of a user": func(folder string) error { return errors.Join(os.Mkdir(folder, 0o755), os.Chown(folder, 2001, 2001)) },
		"of all":    func(folder string) error { return errors.Join(os.Mkdir(folder, 0o755), os.Chmod(folder, 0o777)) },
		"a link":    func(folder string) error { return os.Symlink(t.TempDir(), folder) },
	} {
		folder := filepath.Join(t.TempDir(), "reports")
		must.OK(t, prepare(folder))
		if err := (Epilog{Reports: folder}).keepReportOf(2001, usage.Report{Job: 7}); !errors.Is(err, osfile.ErrNotRootOwned) {
			t.Errorf("a folder %s: %v", name, err)
		}
		if entries, _ := os.ReadDir(folder); len(entries) > 0 {
			t.Errorf("a folder %s: %v", name, entries)
		}
	}
}

// The job's user reads a kept report, and no other user does, also none of the same group.
//
// Contract: U2
func TestWhoReadsAKeptReport(t *testing.T) {
	needsRoot(t)
	folder := must.Get(os.MkdirTemp("", "reports"))(t)
	defer os.RemoveAll(folder)
	must.OK(t, errors.Join(os.Chmod(folder, 0o755), (Epilog{Reports: folder}).keepReportOf(2001, usage.Report{Job: 7})))
	path := filepath.Join(folder, "7.json")
	info, err := os.Lstat(path)
	must.Hold(t, err == nil && info.Sys().(*syscall.Stat_t).Uid == 0 && info.Mode()&0o007 == 0, "%v, %v", info, err)
	reads := func(uid, gid uint32) bool {
		cmd := exec.Command("/bin/cat", path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
		return cmd.Run() == nil
	}
	if size, _ := unix.Lgetxattr(path, "system.posix_acl_access", nil); size > 0 && !reads(2001, 2001) {
		t.Error("the job's user cannot read it")
	}
	must.Hold(t, !reads(61050, 2001) && !reads(61050, 61050) && !reads(61050, 0), "another user can read it")
}

func needsRoot(t *testing.T) {
	t.Helper()
	must.Root(t)
}

// A kept report has the guard's counts, even if the recorder missed some.
func TestAKeptReportHasTheGuardsCounts(t *testing.T) {
	r := usage.Report{Totals: usage.Totals{Counts: lease.Counts{ClientsSeen: 4, Pauses: 1}}}
	counts := lease.Counts{ClientsSeen: 5, ClientsPeak: 3, Pauses: 2, PausedMillis: 1300}
	r = finished(r, &lease.GuardState{Counts: counts}, time.Now())
	must.Equal(t, fmt.Sprintf("%+v", r.Totals), r.Counts, counts)
	if r = finished(r, nil, time.Now()); r.Counts != counts {
		t.Errorf("without a state of the guard: %+v", r.Totals)
	}
}

// A job that held its GPUs for a minute without a client has a report, because a site looks for such jobs. A shorter
// one has none.
//
// Contract: U2
func TestTheReportOfAJobWithoutAClient(t *testing.T) {
	needsRoot(t)
	for lasted, want := range map[time.Duration]bool{50 * time.Second: false, 70 * time.Second: true} {
		n := newNode(t)
		n.leased(nil)
		e := n.epilog()
		e.Reports = t.TempDir()
		folder := must.Get(os.Open(n.Store.JobDir(7)))(t)
		defer folder.Close()
		r := usage.Report{Schema: usage.Schema, Job: 7, Begin: time.Now().Add(-lasted), GPUs: make([]usage.GPU, 2)}
		must.OK(t, errors.Join(r.Write(folder, usage.Running, 0), e.Close(t.Context(), 7)))
		got, err := usage.Read(filepath.Join(e.Reports, "7.json"))
		must.Hold(t, (err == nil) == want && (!want || got.ClientsSeen == 0),
			"of a job of %v: %+v, %v, want a report: %v", lasted, got, err, want)
	}
}

// When a job ends, the log has its summary: the guard's own counts, and the clients that the epilog found. A job
// without a guard has no counts.
func TestAnEpilogLogsTheSummary(t *testing.T) {
	counts := map[string]any{"clients_seen": 6.0, "clients_peak": 3.0, "held": 4.0, "outside": 2.0, "pauses": 2.0, "paused_ms": 1300.0}
	for _, guarded := range []bool{true, false} {
		n := newNode(t)
		l := n.leased(nil)
		n.clients = []site.Client{{PID: 1 << 30}, {PID: 1<<30 + 1}}
		if guarded {
			must.OK(t, n.Store.SaveGuard(7, lease.GuardState{Dead: 1, Released: map[string]int{"idle": 3, lease.NoNeighbour: 9},
				Counts: lease.Counts{ClientsSeen: 6, ClientsPeak: 3, Pauses: 2, PausedMillis: 1300, OutsideSeen: 2}}))
		}
		must.Note(t, n.close())
		got := n.logged(SummaryStep)
		for key, want := range map[string]any{"user": l.Job.User, "rule": "mps", "gpus": 2.0, "clients_at_epilog": 2.0,
			"terminated": 2.0, "daemon_gone": false, "closed": true} {
			if got[key] != want {
				t.Errorf("%s is %v, want %v", key, got[key], want)
			}
		}
		for key, want := range counts {
			if !guarded {
				want = nil
			}
			if got[key] != want {
				t.Errorf("guard %v: %s is %v, want %v", guarded, key, got[key], want)
			}
		}
		if seconds, ok := got["seconds"].(float64); !ok || seconds < 0 || seconds > 60 {
			t.Errorf("seconds are %v", got["seconds"])
		}
	}
}

// Clients that end in their grace outlived the job, too, and none of them is terminated.
func TestClientsThatEndInTheirGrace(t *testing.T) {
	n := newNode(t)
	n.leased(func(l *lease.Lease) { l.DrainGrace = lease.Duration(5 * time.Second) })
	n.clients = []site.Client{{PID: 1 << 30}}
	n.leave = true
	must.Note(t, n.close())
	if got := n.logged(SummaryStep); got["clients_at_epilog"] != 1.0 || got["terminated"] != 0.0 {
		t.Errorf("%v: want 1 client at the epilog and none terminated", got)
	}
}
