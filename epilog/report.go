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

// keeping is a report that is being stored, while the epilog does its other steps. Its channel is nil if the job has none.
type keeping struct {
	usage.Report
	kept chan error // fs.ErrNotExist if the recorder has left no report
}

// keepReport reads the report that the recorder has left in the job's folder, finishes it, and keeps it. The recorder
// has ended, because the guard ends it and has ended too, or it serves other jobs that share the daemon.
func (e Epilog) keepReport(l lease.Lease, guard *lease.GuardState) keeping {
	ended, kept := time.Now(), make(chan error, 1)
	folder := e.Store.JobDir(cmp.Or(l.Joined, l.Job.ID))
	r, err := usage.Read(filepath.Join(folder, usage.RunningOf(l.Job.ID, l.Joined)))
	if err == nil {
		if l.Joined != 0 {
			endGone(r.Clients, ended)
		}
		r = finished(r, guard, ended)
	}
	if r.ClientsSeen == 0 { // a job without a client has used nothing, and its report would push another one out
		kept <- err
	} else {
		go func() { kept <- e.keepReportOf(l.Job.UID, r) }()
	}
	return keeping{r, kept}
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

// wait waits until a report is kept, and logs a failure.
func (e Epilog) wait(k keeping) {
	if k.kept == nil {
		return
	}
	err := fmt.Errorf("the disk of %s does not take it within %v", e.Reports, reportWait)
	select {
	case err = <-k.kept:
	case <-time.After(reportWait):
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.Log.Warn().Err(err).Msg("the job's report is not kept")
	}
}
