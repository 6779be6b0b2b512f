// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
func (e Epilog) keepLogs(l lease.Lease) {
	if e.keptFor != nil {
		l.Job, l.CreatedAt = e.keptFor.Job, e.keptFor.CreatedAt
	}
	kept, err := keep(e.Logs, l)
	if err == nil {
		err = prune(e.Logs, maxKeptJobs, 0, logsOwner)
	}
	if err != nil {
		e.Log.Warn().Err(err).Msg("logs are not kept")
		return
	}
	e.Log.Info().Str("step", "logs kept").Int64("bytes", kept).Send()
}

// keepSharedLogs keeps the logs of daemons that go on, for a job that leaves them.
func (e Epilog) keepSharedLogs(l lease.Lease) {
	shared, err := e.Store.Read(l.Joined)
	died := func(d lease.Daemon) bool { return !d.Proc.Running() }
	if err == nil && wantsLogs(shared, slices.ContainsFunc(shared.Daemons, died)) {
		e.keptFor = &l
		e.keepLogs(shared)
	}
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

// madeFile identifies the lease of the logs, and its user. A job that is requeued has another lease, and the clock may
// have gone back since.
const madeFile = "lease-made"

func madeOf(l lease.Lease) string {
	return fmt.Sprintf("%s\n%d\n", l.CreatedAt.Format(time.RFC3339Nano), l.Job.UID)
}

// logsOwner returns the uid of the user whose logs a folder has.
func logsOwner(path string) string {
	made, _ := os.ReadFile(filepath.Join(path, madeFile))
	_, uid, _ := strings.Cut(string(made), "\n")
	return uid
}

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
func copyLog(source, name, target string, job lease.Job, limit int64) (int64, error) {
	log, size, err := serverlog.Open(source, name, job.UID)
	if err != nil {
		return 0, nil
	}
	defer log.Close()
	file, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
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

// keptJob is an entry of a folder with files of ended jobs.
type keptJob struct {
	path, owner string
	at          time.Time
}

// prune removes the entries of a folder that are older than age, if that is not 0. Then it removes entries until the
// maximum is left: always the oldest of the user with the most. So no user pushes out what another one has, as long as
// that one has less. Another epilog may do the same at the same time.
func prune(dir string, limit int, age time.Duration, ownerOf func(path string) string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot prune %s: %w", dir, err)
	}
	var jobs, old []keptJob
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			continue
		}
		job := keptJob{path: filepath.Join(dir, entry.Name()), at: info.ModTime()}
		if age != 0 && time.Since(job.at) > age {
			old = append(old, job)
		} else {
			jobs = append(jobs, job)
		}
	}
	for _, job := range append(old, surplus(jobs, limit, ownerOf)...) {
		if err := os.RemoveAll(job.path); err != nil {
			return fmt.Errorf("cannot prune %s: %w", dir, err)
		}
	}
	return nil
}

// surplus returns the entries above the limit: the oldest of the user with the most, one after the other.
func surplus(jobs []keptJob, limit int, ownerOf func(path string) string) (out []keptJob) {
	if len(jobs) <= limit {
		return nil
	}
	slices.SortFunc(jobs, func(a, b keptJob) int { return a.at.Compare(b.at) })
	has := map[string]int{}
	for i, job := range jobs {
		jobs[i].owner = ownerOf(job.path)
		has[jobs[i].owner]++
	}
	for len(jobs) > limit {
		maximum := slices.Max(slices.Collect(maps.Values(has)))
		i := slices.IndexFunc(jobs, func(job keptJob) bool { return has[job.owner] == maximum })
		has[jobs[i].owner]--
		out, jobs = append(out, jobs[i]), slices.Delete(jobs, i, i+1)
	}
	return out
}
