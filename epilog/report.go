// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
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
// has ended, because the guard ends it and has ended too.
func (c Epilog) keepReport(l lease.Lease) *keeping {
	k := &keeping{read: make(chan struct{}), kept: make(chan struct{})}
	ended := time.Now()
	go func() {
		defer close(k.kept)
		report, err := usage.Read(filepath.Join(c.Store.JobDir(l.Job.ID), usage.Running))
		if err == nil {
			k.report = finished(report, ended)
		}
		k.err = err
		close(k.read)
		if err == nil {
			k.err = keepReportIn(c.Reports, k.report, l.Job.GID)
		}
	}()
	return k
}

// finished completes the report of an ended job. A client without an end has outlived the job.
func finished(r usage.Report, now time.Time) usage.Report {
	if r.End.IsZero() {
		r.End = now
	}
	for i, c := range r.Clients {
		if c.End.IsZero() {
			r.Clients[i].End, r.Clients[i].Ending = r.End, usage.AtEpilog
		}
	}
	return r
}

func keepReportIn(folder string, r usage.Report, gid uint32) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("cannot keep report: %w", err)
	}
	dir, err := site.OpenFolder(folder)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = r.Write(dir, strconv.FormatUint(uint64(r.Job), 10)+".json", gid)
	return errors.Join(err, prune(folder, maxReports, maxReportAge))
}

// wait waits until the report is kept, and logs a failure. If there is no report, the job of the result is 0.
func (c Epilog) wait(k *keeping) usage.Report {
	if k == nil {
		return usage.Report{}
	}
	select {
	case <-k.kept:
	case <-time.After(reportWait):
		c.Log.Warn().Msg("the job's report is not kept: the disk does not take it")
		return usage.Report{}
	}
	if k.err != nil && !errors.Is(k.err, fs.ErrNotExist) {
		c.Log.Warn().Err(k.err).Msg("the job's report is not kept")
	}
	return k.report
}
