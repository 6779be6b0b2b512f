// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site"
)

// Store is all leases of this node.
type Store struct {
	dir  string
	boot string
}

// Open makes the folders of a journal below dir, root's own, and returns it. The boot is site.BootID's.
func Open(dir, boot string) (*Store, error) {
	for _, sub := range []string{"", "leases", "claims", "tickets", "jobs", "turns", "guards"} {
		path := filepath.Join(dir, sub)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, fmt.Errorf("cannot make journal: %w", err)
		}
		if err := ownDir(path); err != nil {
			return nil, err
		}
	}
	return &Store{dir, boot}, nil
}

// ownDir makes sure that only root can put anything into path, whatever the umask was.
func ownDir(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("cannot make journal: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("cannot make journal: %s is not a directory: move it away", path)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 {
		return fmt.Errorf("cannot make journal: %s is uid %d's: give it to root", path, owner)
	}
	if info.Mode().Perm() == 0o755 {
		return nil
	}
	if err := os.Chmod(path, 0o755); err != nil {
		return fmt.Errorf("cannot make journal: %w", err)
	}
	return nil
}

func (j *Store) path(folder string, job uint32) string {
	return filepath.Join(j.dir, folder, strconv.FormatUint(uint64(job), 10)+".json")
}

func (j *Store) leasePath(job uint32) string { return j.path("leases", job) }

// TicketPath is where the ticket of a job is published.
func (j *Store) TicketPath(job uint32) string { return j.path("tickets", job) }

// JobDir is the folder for the daemons of a job.
func (j *Store) JobDir(job uint32) string {
	return filepath.Join(j.dir, "jobs", strconv.FormatUint(uint64(job), 10))
}

func (j *Store) claimPath(uuid site.UUID) string {
	return filepath.Join(j.dir, "claims", string(uuid))
}

func (j *Store) turnPath(job uint32) string {
	return filepath.Join(j.dir, "turns", strconv.FormatUint(uint64(job), 10))
}

// JobLock is the right to act on one job's lease: prolog and epilog of a job take turns.
type JobLock struct {
	file  *os.File
	path  string
	lease string // path of the lease
}

// Lock takes the turn of a job, waiting until ctx ends; a *BusyError then says who has it.
func (j *Store) Lock(ctx context.Context, job uint32) (*JobLock, error) {
	return j.lock(ctx, j.turnPath(job), job)
}

// lock takes a lock of a job's and signs it.
func (j *Store) lock(ctx context.Context, path string, job uint32) (*JobLock, error) {
	file, err := flock(ctx, path)
	if err != nil {
		return nil, err
	}
	turn := &JobLock{file, path, j.leasePath(job)}
	turn.writeHolder(false)
	return turn, nil
}

// holderNote says who has a turn.
type holderNote struct {
	site.Process
	Closing bool `json:"closing,omitempty"`
}

// MarkClosing says that the turn's process undoes: whoever waits for it has no reason to end it.
func (t *JobLock) MarkClosing() { t.writeHolder(true) }

// writeHolder writes who has the turn, so that an epilog can prove which process it waits for. An epilog on a full file system
// has its turn all the same: what it is about to remove makes room.
func (t *JobLock) writeHolder(closing bool) {
	self, err := site.CurrentProcess()
	if err != nil {
		return
	}
	name, err := json.Marshal(holderNote{self, closing})
	if err != nil || t.file.Truncate(0) != nil {
		return
	}
	_, _ = t.file.WriteAt(name, 0)
}

// Release gives the turn back. The file goes first: whoever waits on it finds out and takes the next one. While there is
// a lease it stays: an epilog needs it, and a job that has filled the file system could deny it another. Where DeleteAndUnlock has
// removed it, what is there by now is another's.
func (t *JobLock) Release() error {
	if _, err := os.Lstat(t.lease); err == nil || !sameFile(t.file, t.path) {
		return t.file.Close()
	}
	err := remove(t.path)
	return errors.Join(err, t.file.Close())
}

// Read returns the lease of a job. The error is ErrNotFound, ErrStaleBoot, or wraps ErrCorrupt, ErrSchema, site.ErrNotRootOwned or what
// the file system said.
func (j *Store) Read(job uint32) (Lease, error) {
	var l Lease
	path := j.leasePath(job)
	if err := readRecord(path, j.boot, &l); err != nil {
		return Lease{}, err
	}
	if l.Job.ID != job {
		return Lease{}, fmt.Errorf("cannot read %s: %w: it is job %d's", path, site.ErrNotRootOwned, l.Job.ID)
	}
	for _, held := range l.Held {
		if !held.UUID.Valid() {
			return Lease{}, fmt.Errorf("cannot read %s: %w: it names a device %q", path, ErrCorrupt, held.UUID)
		}
	}
	return l, nil
}

// Create writes the intent: the lease, then a claim on each of its devices. Where a device is another job's, nothing of
// it stays and the error is a *InUseError.
func (j *Store) Create(ctx context.Context, l Lease) error {
	for _, held := range l.Held {
		if !held.UUID.Valid() {
			return fmt.Errorf("cannot begin lease of job %d: %q is not the UUID of a device", l.Job.ID, held.UUID)
		}
	}
	lock, err := flock(ctx, filepath.Join(j.dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	err = j.Save(l)
	if err == nil {
		err = j.claim(l)
	}
	if err != nil {
		return errors.Join(err, j.forget(l.Job.ID, uuids(l)))
	}
	return nil
}

// Save writes the lease as it is now. Schema and boot are the journal's to say.
func (j *Store) Save(l Lease) error {
	l.Schema, l.Boot = Schema, j.boot
	content, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot write lease of job %d: %w", l.Job.ID, err)
	}
	return writeWhole(j.leasePath(l.Job.ID), append(content, '\n'), 0o600, -1)
}

// claim is the content of a file in claims/.
type claim struct {
	header
	Job uint32 `json:"job"`
}

// claim links one complete file to the name of every device, so that a claim is exclusive and never empty.
func (j *Store) claim(l Lease) error {
	content, err := json.Marshal(claim{header{Schema, j.boot}, l.Job.ID})
	if err != nil {
		return fmt.Errorf("cannot claim devices of job %d: %w", l.Job.ID, err)
	}
	temporary := j.claimTemporary(l.Job.ID)
	if err := writeFile(temporary, content, 0o600, -1, true); err != nil {
		return fmt.Errorf("cannot claim devices of job %d: %w", l.Job.ID, err)
	}
	for _, held := range l.Held {
		if err := j.claimOne(temporary, held.UUID, l.Job.ID); err != nil {
			return err
		}
	}
	if err := remove(temporary); err != nil {
		return err
	}
	return syncDir(filepath.Join(j.dir, "claims"))
}

func (j *Store) claimTemporary(job uint32) string {
	return filepath.Join(j.dir, "claims", fmt.Sprintf(".%d.new", job))
}

func (j *Store) claimOne(complete string, uuid site.UUID, job uint32) error {
	path := j.claimPath(uuid)
	err := os.Link(complete, path)
	if !errors.Is(err, fs.ErrExist) {
		if err != nil {
			return fmt.Errorf("cannot claim %s: %w", uuid, err)
		}
		return nil
	}
	holder, held, err := j.Owner(uuid)
	if err != nil {
		return err
	}
	if held && holder != job {
		return &InUseError{uuid, holder}
	}
	// What is there is a claim of an earlier boot, of a job without a lease, or our own of before.
	if err := remove(path); err != nil {
		return err
	}
	if err := os.Link(complete, path); err != nil {
		return fmt.Errorf("cannot claim %s: %w", uuid, err)
	}
	return nil
}

// Owner returns the job that holds a device. A claim of another boot, or of a job that has no lease, holds nothing.
func (j *Store) Owner(uuid site.UUID) (job uint32, held bool, err error) {
	var c claim
	err = readRecord(j.claimPath(uuid), j.boot, &c)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrStaleBoot) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	var head header
	err = readRecord(j.leasePath(c.Job), j.boot, &head)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrStaleBoot) {
		return 0, false, nil
	}
	return c.Job, true, nil // a lease that cannot be read holds its devices all the same
}

// WriteTicket gives the job its ticket: readable by its group, writable by root alone.
func (j *Store) WriteTicket(t Ticket) error {
	t.Schema, t.Boot = Schema, j.boot
	content, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot publish ticket of job %d: %w", t.Job.ID, err)
	}
	if err := writeWhole(j.TicketPath(t.Job.ID), append(content, '\n'), 0o640, int(t.Job.GID)); err != nil {
		return errors.Join(err, j.RemoveTicket(t.Job.ID)) // it may be in place and not on the disk
	}
	return nil
}

// ReadTicket returns the ticket of a job. Errors as of Read.
func (j *Store) ReadTicket(job uint32) (Ticket, error) {
	path := j.TicketPath(job)
	content, err := readOwned(path)
	if err != nil {
		return Ticket{}, err
	}
	t, torn := parseTicket(content)
	if torn != nil && t.Boot == "" {
		return Ticket{}, fmt.Errorf("cannot read %s: %w: %w", path, ErrCorrupt, torn)
	}
	if err := (header{t.Schema, t.Boot}).check(path, j.boot); err != nil {
		return Ticket{}, err
	}
	if torn != nil {
		return Ticket{}, fmt.Errorf("cannot read %s: %w: %w", path, ErrCorrupt, torn)
	}
	if t.Job.ID != job {
		return Ticket{}, fmt.Errorf("cannot read %s: %w: it is job %d's", path, site.ErrNotRootOwned, t.Job.ID)
	}
	return t, nil
}

// OpenReadOnly is a journal for reading only: the wrapper, which is no root, makes no folders.
func OpenReadOnly(dir, boot string) *Store { return &Store{dir, boot} }

// RemoveTicket takes the ticket back.
func (j *Store) RemoveTicket(job uint32) error {
	path := j.TicketPath(job)
	return errors.Join(remove(temporaryOf(path)), remove(path))
}

// Delete removes what is left of a job here: its claims, then its lease. It is the last act of an undo. The devices are
// the lease's; claims that are another job's by now stay.
func (j *Store) Delete(ctx context.Context, l Lease) error { return j.end(ctx, l) }

// DeleteAndUnlock is Delete as the last act of who has the job's turn. The turn's file goes before the lease, so that one that is
// killed leaves nothing that no lease tells of. A prolog, which may go on and begin anew, calls Delete: without its file a
// turn keeps nobody out.
func (j *Store) DeleteAndUnlock(ctx context.Context, l Lease) error {
	return j.end(ctx, l, j.turnPath(l.Job.ID))
}

func (j *Store) end(ctx context.Context, l Lease, others ...string) error {
	lock, err := flock(ctx, filepath.Join(j.dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	return j.forget(l.Job.ID, uuids(l), others...)
}

// forget removes the claims of a job, its temporary files, the others that are named, and its lease.
func (j *Store) forget(job uint32, devices []site.UUID, others ...string) error {
	for _, uuid := range devices {
		if err := j.unclaim(uuid, job); err != nil {
			return err
		}
	}
	path := j.leasePath(job)
	for _, stale := range slices.Concat([]string{j.claimTemporary(job), temporaryOf(path)}, j.guardFiles(job), others, []string{path}) {
		if err := remove(stale); err != nil {
			return err
		}
	}
	return syncDir(filepath.Dir(path))
}

func (j *Store) unclaim(uuid site.UUID, job uint32) error {
	var c claim
	err := readRecord(j.claimPath(uuid), j.boot, &c)
	if errors.Is(err, ErrNotFound) || err == nil && c.Job != job {
		return nil
	}
	if err != nil && !errors.Is(err, ErrStaleBoot) {
		return err
	}
	return remove(j.claimPath(uuid))
}

// PurgeStale removes what an earlier boot, or a killed writer, left of a job: no process and no mode of it is there any more,
// so there is nothing else to undo.
func (j *Store) PurgeStale(ctx context.Context, job uint32) error {
	lock, err := flock(ctx, filepath.Join(j.dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := j.RemoveTicket(job); err != nil {
		return err
	}
	if err := j.RemoveDirs(job); err != nil {
		return err
	}
	claimed, err := j.claimedBy(job)
	if err != nil {
		return err
	}
	return j.forget(job, claimed)
}

// claimedBy lists the devices whose claim names job, of whatever boot.
func (j *Store) claimedBy(job uint32) ([]site.UUID, error) {
	entries, err := os.ReadDir(filepath.Join(j.dir, "claims"))
	if err != nil {
		return nil, fmt.Errorf("cannot list claims: %w", err)
	}
	var claimed []site.UUID
	for _, entry := range entries {
		uuid := site.UUID(entry.Name())
		if !uuid.Valid() {
			continue
		}
		content, err := site.ReadRootOwned(j.claimPath(uuid))
		if err != nil {
			return nil, err
		}
		var c claim
		if json.Unmarshal(content, &c) == nil && c.Job == job {
			claimed = append(claimed, uuid)
		}
	}
	return claimed, nil
}

func uuids(l Lease) []site.UUID {
	list := make([]site.UUID, len(l.Held))
	for i, held := range l.Held {
		list[i] = held.UUID
	}
	return list
}
