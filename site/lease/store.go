// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// Store is the store of all leases of this node.
type Store struct {
	dir     string
	boot    string
	private bool // a user's own, as mpirun-wrap --own makes it
	// Clearer is the command line of a process that calls Clear with the name that follows it. If it is empty, this
	// process clears file systems of closed jobs itself, and may wait for ever for a user's process.
	Clearer []string
}

// Open makes the store's folders below dir, owned by root. The boot is site.BootID's.
func Open(dir, boot string) (*Store, error) {
	for _, sub := range []string{"", "leases", "tickets", "jobs", "locks", "guards"} {
		path := filepath.Join(dir, sub)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, fmt.Errorf("cannot make state folder: %w", osfile.ExplainFull(path, err))
		}
		if err := ownDir(path); err != nil {
			return nil, err
		}
	}
	return &Store{dir: dir, boot: boot}, nil
}

// ownDir makes sure that only root can write into path, whatever the umask was.
func ownDir(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("cannot make state folder: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("cannot make state folder: %s is not a directory: move it away", path)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 {
		return fmt.Errorf("cannot make state folder: %s is uid %d's: give it to root", path, owner)
	}
	if info.Mode().Perm() == 0o755 {
		return nil
	}
	if err := os.Chmod(path, 0o755); err != nil {
		return fmt.Errorf("cannot make state folder: %w", err)
	}
	return nil
}

func (s *Store) path(folder string, job uint32, ending string) string {
	return filepath.Join(s.dir, folder, strconv.FormatUint(uint64(job), 10)+ending)
}

func (s *Store) leasePath(job uint32) string { return s.path("leases", job, ".json") }

// TicketPath is the path of a job's ticket.
func (s *Store) TicketPath(job uint32) string { return s.path("tickets", job, ".json") }

// JobDir is the folder for the daemons of a job.
func (s *Store) JobDir(job uint32) string { return s.path("jobs", job, "") }

func (s *Store) jobLockPath(job uint32) string { return s.path("locks", job, "") }

// JobLock is the lock of one job's lease. Only one prolog or epilog of a job holds it at a time.
type JobLock struct {
	file  *os.File
	path  string
	lease string // path of the lease
}

// Lock takes a job's lock, and waits until ctx ends. A *BusyError then names the holder.
func (s *Store) Lock(ctx context.Context, job uint32) (*JobLock, error) {
	return s.lock(ctx, s.jobLockPath(job), job)
}

// lock takes a lock and writes this process's pid into its file.
func (s *Store) lock(ctx context.Context, path string, job uint32) (*JobLock, error) {
	file, err := flock(ctx, path)
	if err != nil {
		return nil, err
	}
	jobLock := &JobLock{file, path, s.leasePath(job)}
	jobLock.writeHolder(false)
	return jobLock, nil
}

// holderNote is the content of a lock file: the process that holds the lock.
type holderNote struct {
	proc.Process
	Closing bool `json:"closing,omitempty"`
}

// MarkClosing records that the holder undoes the lease, so a waiting process has no reason to end it.
func (l *JobLock) MarkClosing() { l.writeHolder(true) }

// writeHolder writes this process into the lock file, so that an epilog knows which process it waits for. A failure
// is ignored: on a full file system an epilog must still get the lock, because its removals free space.
func (l *JobLock) writeHolder(closing bool) {
	self, err := proc.Current()
	if err != nil {
		return
	}
	name, err := json.Marshal(holderNote{self, closing})
	if err != nil || l.file.Truncate(0) != nil {
		return
	}
	_, _ = l.file.WriteAt(name, 0)
}

// Release unlocks the job. It removes the lock file before it unlocks, so a waiter notices and makes a new one. It
// keeps the file while a lease exists, because on a full file system the epilog could not make another. If
// DeleteAndUnlock has removed the file, a file at that path belongs to another process.
func (l *JobLock) Release() error {
	if _, err := os.Lstat(l.lease); err == nil || !sameFile(l.file, l.path) {
		return l.file.Close()
	}
	err := remove(l.path)
	return errors.Join(err, l.file.Close())
}

// Read returns the lease of a job. The error is ErrNotFound or ErrStaleBoot, or it wraps ErrCorrupt, ErrSchema,
// osfile.ErrNotRootOwned or an error of the file system.
func (s *Store) Read(job uint32) (Lease, error) {
	var l Lease
	path := s.leasePath(job)
	if err := readRecord(path, s.boot, &l); err != nil {
		return Lease{}, err
	}
	if l.Job.ID != job {
		return Lease{}, fmt.Errorf("cannot read %s: %w: it is job %d's", path, osfile.ErrNotRootOwned, l.Job.ID)
	}
	for _, gpu := range l.GPUs {
		if !gpu.UUID.Valid() {
			return Lease{}, fmt.Errorf("cannot read %s: %w: it names a device %q", path, ErrCorrupt, gpu.UUID)
		}
	}
	return l, nil
}

// Create writes the lease. The lease is the job's claim on its devices: if another job holds one of them, Create writes
// nothing and returns an error with the repair.
func (s *Store) Create(ctx context.Context, l Lease) error {
	for _, gpu := range l.GPUs {
		if !gpu.UUID.Valid() {
			return fmt.Errorf("cannot begin lease of job %d: %q is not the UUID of a device", l.Job.ID, gpu.UUID)
		}
	}
	lock, err := flock(ctx, filepath.Join(s.dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := s.claimable(l); err != nil {
		return err
	}
	if err := s.Save(l); err != nil {
		return errors.Join(err, s.forget(l.Job.ID))
	}
	return nil
}

// Save writes the lease. It sets the schema and the boot.
func (s *Store) Save(l Lease) error {
	l.Schema, l.Boot = Schema, s.boot
	content, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot write lease of job %d: %w", l.Job.ID, err)
	}
	return record(content, 0o600, 0).WriteTo(s.leasePath(l.Job.ID))
}

// holding is what a lease of this boot holds.
type holding struct {
	job    uint32
	unread bool // the lease cannot be read, and may hold any device
	holds
}

// holds are the fields of a lease that name what it holds. A lease of another schema has them, too.
type holds struct {
	GPUs  []LeasedGPU `json:"gpus"`
	Part  Part        `json:"part"`
	NoMPS bool        `json:"no_mps"`
}

// has reports whether a device is held.
func (h holds) has(uuid site.UUID) bool {
	return !h.NoMPS && slices.ContainsFunc(h.GPUs, func(gpu LeasedGPU) bool { return gpu.UUID == uuid })
}

// holdings returns what the leases hold, except a job's own. A lease that cannot be used still holds the devices that
// it names.
func (s *Store) holdings(but uint32) (all []holding, err error) {
	jobs, err := s.Jobs()
	if err != nil {
		return nil, err
	}
	for _, job := range jobs {
		l, err := s.Read(job)
		h := holding{job, false, holds{l.GPUs, l.Part, l.NoMPS}}
		switch {
		case job == but, errors.Is(err, ErrNotFound), errors.Is(err, ErrStaleBoot):
			continue
		case err != nil:
			content, _ := osfile.ReadRootOwned(s.leasePath(job))
			_ = json.Unmarshal(content, &h.holds)
			h.unread = len(h.GPUs) == 0
		}
		all = append(all, h)
	}
	return all, nil
}

// claimable returns an error if another job holds a device of a lease, unless both share it.
func (s *Store) claimable(l Lease) error {
	others, err := s.holdings(l.Job.ID)
	if err != nil {
		return err
	}
	for _, uuid := range l.UUIDs() {
		for _, h := range others {
			if h.unread || h.has(uuid) && !(h.Part.Shared() && l.Part.Shared()) {
				return s.inUse(uuid, h.job)
			}
		}
	}
	return nil
}

// inUse is the error for a device that another job holds. If that job has ended, every next job would drain the node.
func (s *Store) inUse(uuid site.UUID, holder uint32) error {
	repair := site.Paths{Root: strings.TrimSuffix(s.dir, site.Paths{}.Run())}.IfGone(holder)
	if IsShared(holder) {
		repair = "mpsctl status names the jobs that use it"
	}
	return fmt.Errorf("cannot claim %s: %s holds it: its epilog has not closed it; %s", uuid, Name(holder), repair)
}

// HeldByAnother returns the job that holds a device alone, if it is not this one.
func (s *Store) HeldByAnother(uuid site.UUID, job uint32) (holder uint32, held bool, err error) {
	others, err := s.holdings(job)
	for _, h := range others {
		if h.has(uuid) && !h.Part.Shared() {
			return h.job, true, nil
		}
	}
	return 0, false, err
}

// Others returns how many jobs other than this one share a device by their leases.
func (s *Store) Others(uuid site.UUID, job uint32) (n int) {
	others, _ := s.holdings(job)
	for _, h := range others {
		if h.has(uuid) && h.Part.Shared() && !IsShared(h.job) {
			n++
		}
	}
	return n
}

// leased reports whether a job has a lease of this boot. An unreadable lease counts, and has an error.
func (s *Store) leased(job uint32) (bool, error) {
	var head header
	err := readRecord(s.leasePath(job), s.boot, &head)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrStaleBoot) {
		return false, nil
	}
	return true, err
}

// WriteTicket writes the job's ticket. Its group may read it, and only root may write it.
func (s *Store) WriteTicket(t Ticket) error {
	t.Schema, t.Boot = Schema, s.boot
	content, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot publish ticket of job %d: %w", t.Job.ID, err)
	}
	if err := record(content, 0o640, t.Job.GID).WriteTo(s.TicketPath(t.Job.ID)); err != nil {
		return errors.Join(err, s.RemoveTicket(t.Job.ID)) // the file may be in place, but not on the disk
	}
	return nil
}

// HasTicket reports whether a job has a ticket.
func (s *Store) HasTicket(job uint32) bool {
	_, err := os.Lstat(s.TicketPath(job))
	return err == nil
}

// ReadTicket returns the ticket of a job. Its errors are those of Read.
func (s *Store) ReadTicket(job uint32) (t Ticket, err error) {
	path := s.TicketPath(job)
	content, err := found(s.readForRanks(path))
	if err != nil {
		return t, err
	}
	torn := json.Unmarshal(content, &t)
	err = header{t.Schema, t.Boot}.check(path, s.boot)
	switch {
	case torn != nil && (err == nil || t.Boot == ""):
		err = fmt.Errorf("cannot read %s: %w: %w", path, ErrCorrupt, torn)
	case err == nil && t.Job.ID != job:
		err = fmt.Errorf("cannot read %s: %w: it is job %d's", path, osfile.ErrNotRootOwned, t.Job.ID)
	}
	if err != nil {
		t = Ticket{}
	}
	return t, err
}

// OpenReadOnly returns a store for reading only. It makes no folders, because the wrapper does not run as root.
func OpenReadOnly(dir, boot string) *Store { return &Store{dir: dir, boot: boot} }

// RemoveTicket removes a job's ticket.
func (s *Store) RemoveTicket(job uint32) error {
	path := s.TicketPath(job)
	return errors.Join(remove(osfile.Temporary(path)), remove(path))
}

// Delete removes a job's lease. It is the last step of an undo.
func (s *Store) Delete(ctx context.Context, l Lease) error { return s.end(ctx, l) }

// DeleteAndUnlock is Delete, and also removes the job's lock file before the lease. So a process that is killed in
// between leaves no file without a lease. A prolog that may start again calls Delete, because a lock whose file is
// removed excludes no other process.
func (s *Store) DeleteAndUnlock(ctx context.Context, l Lease) error {
	return s.end(ctx, l, s.jobLockPath(l.Job.ID))
}

func (s *Store) end(ctx context.Context, l Lease, others ...string) error {
	lock, err := flock(ctx, filepath.Join(s.dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	for _, uuid := range l.UUIDs() { // the version before had a file with the job for each device
		claim := filepath.Join(s.dir, "claims", string(uuid))
		others = append(others, claim, fmt.Sprint(claim, ".", l.Job.ID))
	}
	return s.forget(l.Job.ID, others...)
}

// forget removes a job's temporary files, the other named files, and then its lease.
func (s *Store) forget(job uint32, others ...string) error {
	path, guard := s.leasePath(job), s.guardStatePath(job)
	own := []string{osfile.Temporary(path), osfile.Temporary(guard), guard, s.guardPath(job)}
	for _, stale := range slices.Concat(own, others, []string{path}) {
		if err := remove(stale); err != nil {
			return err
		}
	}
	return osfile.SyncFolder(filepath.Dir(path))
}

// PurgeStale removes the files that an earlier boot or a killed writer left of a job. No process and no mode of the
// job is left, so there is nothing else to undo. No record is left that names the job's shared lease, so unused shared
// leases go, too.
func (s *Store) PurgeStale(ctx context.Context, job uint32) error {
	if !IsShared(job) {
		if err := s.purgeShared(ctx); err != nil {
			return err
		}
	}
	lock, err := flock(ctx, filepath.Join(s.dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := s.RemoveTicket(job); err != nil {
		return err
	}
	if err := s.RemoveDirs(Job{ID: job}); err != nil {
		return err
	}
	return s.forget(job)
}

// OpenPrivate makes the folders of a user's own store below dir, for the daemon that mpirun-wrap --own starts. Only
// this user can write into dir, so the ticket and the room there are as trustworthy to the user's ranks as root's.
func OpenPrivate(dir, boot string, job uint32) (*Store, error) {
	s := &Store{dir: dir, boot: boot, private: true}
	daemon := s.DaemonDir(job, 0)
	var failed error
	for _, folder := range []string{"tickets", filepath.Join("jobs", strconv.FormatUint(uint64(job), 10), "exchange")} {
		failed = errors.Join(failed, os.MkdirAll(filepath.Join(dir, folder), 0o700))
	}
	failed = errors.Join(failed, os.MkdirAll(filepath.Join(daemon, "pipe"), 0o700), os.MkdirAll(filepath.Join(daemon, "log"), 0o700))
	if failed != nil {
		return nil, fmt.Errorf("cannot make folders below %s: %w", dir, failed)
	}
	return s, nil
}

// ReadPrivate returns a user's own store for reading.
func ReadPrivate(dir, boot string) *Store { return &Store{dir: dir, boot: boot, private: true} }

// readForRanks reads a record that ranks use: root's, or the user's own in a private store.
func (s *Store) readForRanks(path string) ([]byte, error) {
	if s.private {
		return osfile.ReadOwn(path, uint32(os.Geteuid()))
	}
	return osfile.ReadRootOwnedInContainer(path)
}
