// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/serverlog"
	"golang.org/x/sys/unix"
)

// The logs that a control daemon and its server write, and the bounds of what is kept on a node: the end of each
// file, a maximum for each job, and the latest jobs.
const (
	maxKeptFile = 4 << 20
	maxKeptJob  = 16 << 20
	maxKeptJobs = 100
)

var logNames = []string{"control.log", serverlog.Name}

// wantsLogs reports whether a lease's logs outlive it. Failed is any fault: the prolog did not open the lease, a
// daemon died, or a daemon did not end by itself.
func wantsLogs(l lease.Lease, failed bool) bool {
	return l.KeepLogs == "always" || l.KeepLogs == "on_failure" && failed
}

// keepLogs keeps a job's logs. They are not part of the undo: a failure is logged, and has no other effect.
func (c Epilog) keepLogs(l lease.Lease) {
	kept, err := keep(c.Logs, l)
	if err == nil {
		err = prune(c.Logs, maxKeptJobs, 0)
	}
	if err != nil {
		c.Log.Warn().Err(err).Msg("logs are not kept")
		return
	}
	c.Log.Info().Str("step", "logs kept").Int64("bytes", kept).Send()
}

// keep copies the logs to a folder of the job below dir. Root owns it, and the job's group can read it, as with the
// ticket. The folder is whole or absent, and replaces the folder of an earlier run of the job.
func keep(dir string, l lease.Lease) (int64, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, fmt.Errorf("cannot keep logs: %w", err)
	}
	name := strconv.FormatUint(uint64(l.Job.ID), 10)
	whole, fresh := filepath.Join(dir, name), filepath.Join(dir, "."+name+".new")
	if made, err := os.ReadFile(filepath.Join(whole, madeFile)); err == nil && string(made) == madeOf(l) {
		return 0, nil // an earlier epilog, which was killed, has kept them; fewer logs are left now
	}
	if err := os.RemoveAll(fresh); err != nil {
		return 0, fmt.Errorf("cannot keep logs: %w", err)
	}
	kept, err := copyAll(fresh, l)
	if err != nil {
		return 0, errors.Join(fmt.Errorf("cannot keep logs: %w", err), os.RemoveAll(fresh))
	}
	err = os.RemoveAll(whole)
	if err == nil {
		err = os.Rename(fresh, whole)
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("cannot keep logs: %w", err), os.RemoveAll(fresh))
	}
	return kept, nil
}

// madeFile identifies the lease of the logs. A job that is requeued has another lease, and the clock may have gone
// back since.
const madeFile = "lease-made"

func madeOf(l lease.Lease) string { return l.CreatedAt.Format(time.RFC3339Nano) + "\n" }

func copyAll(dir string, l lease.Lease) (kept int64, err error) {
	if err := groupDir(dir, l.Job.GID); err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(dir, madeFile), []byte(madeOf(l)), 0o600); err != nil {
		return 0, err
	}
	for n, daemon := range l.Daemons {
		into := filepath.Join(dir, strconv.Itoa(n))
		if err := groupDir(into, l.Job.GID); err != nil {
			return kept, err
		}
		for _, name := range logNames {
			size, err := copyLog(daemon.LogDir, name, filepath.Join(into, name), l.Job, min(maxKeptFile, maxKeptJob-kept))
			if err != nil {
				return kept, err
			}
			kept += size
		}
	}
	return kept, nil
}

func groupDir(path string, gid uint32) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return errors.Join(os.Chown(path, 0, int(gid)), os.Chmod(path, 0o750))
}

// copyLog copies the end of a log. It skips a log that does not exist, or that is not a regular file of the user.
func copyLog(from, name, to string, job lease.Job, limit int64) (int64, error) {
	log, size, err := serverlog.Open(from, name, job.UID)
	if err != nil {
		return 0, nil
	}
	defer log.Close()
	file, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if err := errors.Join(file.Chown(0, int(job.GID)), file.Chmod(0o640)); err != nil {
		return 0, err
	}
	if left := size - limit; left > 0 {
		if _, err := fmt.Fprintf(file, "(%d bytes before this are not kept)\n", left); err != nil {
			return 0, err
		}
		if _, err := log.Seek(left, io.SeekStart); err != nil {
			return 0, err
		}
	}
	return io.Copy(file, io.LimitReader(log, limit))
}

// prune removes the oldest entries of a folder until the maximum is left, and those that are older than age, if that
// is not 0. Another epilog may do the same at the same time.
func prune(dir string, limit int, age time.Duration) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot prune %s: %w", dir, err)
	}
	type job struct {
		name string
		at   int64
	}
	var jobs []job
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			jobs = append(jobs, job{entry.Name(), info.ModTime().UnixNano()})
		}
	}
	slices.SortFunc(jobs, func(a, b job) int { return int(min(max(a.at-b.at, -1), 1)) })
	surplus := max(len(jobs)-limit, 0)
	oldest := time.Now().Add(-age).UnixNano()
	for n, old := range jobs {
		if n >= surplus && (age == 0 || old.at >= oldest) {
			break
		}
		if err := os.RemoveAll(filepath.Join(dir, old.name)); err != nil {
			return fmt.Errorf("cannot prune %s: %w", dir, err)
		}
	}
	return nil
}
