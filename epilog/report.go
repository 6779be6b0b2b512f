// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// The bounds of the reports that are kept on a node.
const (
	maxReports   = 1000
	maxReportAge = 30 * 24 * time.Hour
	// reportWait is how long the epilog waits for a slow disk to store the report.
	reportWait = 200 * time.Millisecond
)

// keeping is a report that is being stored, while the epilog does its other steps.
type keeping struct {
	read, kept chan struct{} // closed when the report is read, and when it is kept
	report     usage.Report  // valid after read is closed
	err        error         // valid after kept is closed; fs.ErrNotExist if there is no report
}

// keepReport reads the report that the recorder has left in the job's folder, finishes it, and keeps it. The recorder
// has ended, because the guard ends it and has ended too, or it serves other jobs that share the daemon.
func (e Epilog) keepReport(l lease.Lease, guard *lease.GuardState) *keeping {
	ended := time.Now()
	k := &keeping{read: make(chan struct{}), kept: make(chan struct{})}
	go func() {
		defer close(k.kept)
		folder := e.Store.JobDir(cmp.Or(l.Joined, l.Job.ID))
		report, err := usage.Read(filepath.Join(folder, usage.RunningOf(l.Job.ID, l.Joined)))
		if err == nil {
			if l.Joined != 0 {
				endGone(report.Clients, ended)
			}
			k.report = finished(report, guard, ended)
		}
		k.err = err
		close(k.read)
		switch {
		case err != nil:
		case k.report.ClientsSeen == 0:
			k.err = fs.ErrNotExist // a job without a client has used nothing, and its report would push another one out
		default:
			k.err = e.keepReportOf(l.Job.UID, k.report)
		}
	}()
	return k
}

// endGone sets the end of clients that are gone. The recorder of a shared daemon has not been told that the job ends.
func endGone(clients []usage.Client, now time.Time) {
	for i, c := range clients {
		if c.End.IsZero() && !proc.Exists(c.PID) {
			clients[i].End = now
		}
	}
}

// finished completes the report of an ended job. A client without an end has outlived the job. The guard's counts are
// complete, also if the recorder has ended early.
func finished(r usage.Report, guard *lease.GuardState, now time.Time) usage.Report {
	if guard != nil {
		r.Counts = guard.Counts
	}
	if r.End.IsZero() {
		r.End = now
		r.ScaleEnergy(now)
	}
	for i, c := range r.Clients {
		if c.End.IsZero() {
			r.Clients[i].End, r.Clients[i].Ending = r.End, usage.AtEpilog
		}
	}
	return r
}

func (e Epilog) keepReportOf(uid uint32, r usage.Report) error {
	if err := os.MkdirAll(e.Reports, 0o755); err != nil {
		return fmt.Errorf("cannot keep report: %w", osfile.ExplainFull(e.Reports, err))
	}
	dir, err := osfile.OpenFolder(e.Reports)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = r.Write(dir, strconv.FormatUint(uint64(r.Job), 10)+".json", uid)
	return errors.Join(err, prune(e.Reports, maxReports, maxReportAge, reportOwner))
}

// reportOwner returns the user of a kept report. It reads the beginning only, because a node has many reports.
func reportOwner(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	fields := json.NewDecoder(io.LimitReader(file, 1024))
	for {
		token, err := fields.Token()
		if err != nil {
			return ""
		}
		if token == "user" {
			user, _ := fields.Token()
			name, _ := user.(string)
			return name
		}
	}
}

// wait waits until the report is kept, and logs a failure. If there is no report, the job of the result is 0.
func (e Epilog) wait(l lease.Lease, k *keeping) usage.Report {
	if k == nil {
		return usage.Report{}
	}
	select {
	case <-k.kept:
	case <-time.After(reportWait):
		e.lose(fmt.Errorf("the disk of %s does not take it within %v", e.Reports, reportWait))
		return usage.Report{}
	}
	if k.err != nil && !errors.Is(k.err, fs.ErrNotExist) {
		e.lose(k.err)
	}
	return k.report
}

// lose logs that a job's report is not kept.
func (e Epilog) lose(why error) { e.Log.Warn().Err(why).Msg("the job's report is not kept") }
