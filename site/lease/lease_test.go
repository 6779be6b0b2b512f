// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

const (
	gpuA = site.UUID("GPU-aaaaaaaa-0000-0000-0000-000000000001")
	gpuB = site.UUID("GPU-bbbbbbbb-0000-0000-0000-000000000002")
)

func newStore(t *testing.T) *Store {
	t.Helper()
	must.Root(t)
	j := must.Get(Open(filepath.Join(t.TempDir(), "run"), "boot-1"))(t)
	t.Cleanup(func() { // a job may have its own file system, which must be unmounted first
		jobs, err := j.Dirs()
		for _, job := range jobs {
			err = errors.Join(err, j.RemoveDirs(Job{ID: job}))
		}
		must.Note(t, err)
	})
	return j
}

func leaseOf(job uint32, devices ...site.UUID) Lease {
	l := Lease{Job: Job{ID: job, UID: 2001, GID: 2001, User: "hpc1"}, Phase: Opening, Settings: Settings{DrainGrace: Duration(10 * time.Second)}}
	for _, d := range devices {
		l.GPUs = append(l.GPUs, LeasedGPU{UUID: d, OriginalMode: site.ModeDefault, NewMode: site.ModeExclusiveProcess})
	}
	return l
}

func deadline(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// everything lists the files of a store, to show what is left.
func everything(t *testing.T, j *Store) string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(j.dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			name, _ := filepath.Rel(j.dir, path)
			list = append(list, name)
		}
		return err
	})
	must.OK(t, err)
	return strings.Join(list, " ")
}

// Contract: R1
func TestALeaseFromIntentToOblivion(t *testing.T) {
	j := newStore(t)
	ctx := deadline(t, 5*time.Second)
	l := leaseOf(7, gpuA, gpuB)
	must.OK(t, j.Create(ctx, l))
	if got, want := everything(t, j), "leases/7.json lock"; got != want {
		t.Errorf("after Begin: %s, want %s", got, want)
	}
	read, err := j.Read(7)
	if err != nil || read.Phase != Opening || len(read.GPUs) != 2 || read.GPUs[0] != l.GPUs[0] || time.Duration(read.DrainGrace) != 10*time.Second {
		t.Errorf("read %+v, %v", read, err)
	}
	must.OK(t, j.WriteTicket(Ticket{Job: l.Job, Rule: "mps"}))
	info, err := os.Stat(j.TicketPath(7))
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("ticket: mode %v, %v", info.Mode(), err)
	}
	if err := errors.Join(j.RemoveTicket(7), j.RemoveTicket(7), j.Delete(ctx, l), j.Delete(ctx, l)); err != nil {
		t.Errorf("forgetting twice: %v", err)
	}
	if got := everything(t, j); got != "lock" {
		t.Errorf("left behind: %s", got)
	}
	if _, err := j.Read(7); !errors.Is(err, ErrNotFound) {
		t.Errorf("a forgotten lease reads %v", err)
	}
}

// Contract: R6
func TestADeviceHasOneHolder(t *testing.T) {
	j := newStore(t)
	ctx := deadline(t, 5*time.Second)
	must.OK(t, j.Create(ctx, leaseOf(7, gpuA)))
	err := j.Create(ctx, leaseOf(8, gpuB, gpuA))
	const repair = "; if squeue -j 7 shows that the job is gone: mpsctl reap --job 7"
	if !inUse(err, gpuA, "job 7") || !strings.Contains(err.Error(), repair) {
		t.Fatalf("a second holder: %v", err)
	}
	if got, want := everything(t, j), "leases/7.json lock"; got != want {
		t.Errorf("the refused job left: %s, want %s", got, want)
	}
	if err := j.Create(ctx, leaseOf(7, gpuA)); err != nil {
		t.Errorf("the holder itself again: %v", err)
	}
}

func TestOfManyAtOnceOneGetsTheDevice(t *testing.T) {
	j := newStore(t)
	ctx := deadline(t, 20*time.Second)
	var wg sync.WaitGroup
	results := make([]error, 32)
	for i := range results {
		wg.Go(func() { results[i] = j.Create(ctx, leaseOf(uint32(100+i), gpuA)) })
	}
	wg.Wait()
	won := 0
	for i, err := range results {
		switch {
		case err == nil:
			won++
		case !inUse(err, gpuA, "job 1"):
			t.Errorf("job %d: %v", 100+i, err)
		}
	}
	if jobs, err := j.Jobs(); won != 1 || len(jobs) != 1 || err != nil {
		t.Errorf("%d won, leases of %v, %v", won, jobs, err)
	}
}

// A reader sees the old lease or the new one while a lease is written.
//
// Contract: R3
func TestARecordIsWholeOrAbsent(t *testing.T) {
	j, l := newStore(t), leaseOf(7)
	written := make(chan error, 1)
	must.OK(t, j.Save(l))
	go func() {
		var failed error
		for i := range 200 {
			l.Rule = strings.Repeat("x", i*100)
			failed = errors.Join(failed, j.Save(l))
		}
		written <- failed
	}()
	for reads := 0; ; reads++ {
		select {
		case err := <-written:
			if err != nil || reads < 100 {
				t.Errorf("%d reads, %v", reads, err)
			}
			return
		default:
		}
		if _, err := j.Read(7); err != nil {
			t.Fatalf("read %d: %v", reads, err)
		}
	}
}

// Each state in which a record cannot be used has one result.
//
// Contract: R4, R5
func TestBadRecords(t *testing.T) {
	good := `{"schema":3,"boot":"boot-1","job":{"id":7},"phase":"open"}`
	for _, c := range []struct {
		name   string
		damage func(path string) error
		is     error
		says   string
	}{
		{"empty", write("", 0o600), ErrCorrupt, "torn record: unexpected end of JSON input"},
		{"cut", write(good[:40], 0o600), ErrCorrupt, "torn record"},
		{"of another form", write(`{"schema":3,"boot":"boot-1","job":7}`, 0o600), ErrCorrupt, "torn record"},
		{"with a path for a device", write(`{"schema":3,"boot":"boot-1","job":{"id":7},"gpus":[{"uuid":"../../etc/passwd"}]}`, 0o600), ErrCorrupt, `torn record: it names a device "../../etc/passwd"`},
		{"without a boot", write(`{"schema":3}`, 0o600), ErrCorrupt, "torn record: it names no boot"},
		{"of a newer schema", write(`{"schema":4,"boot":"boot-1","job":"x"}`, 0o600), errSchema, "record of an unknown schema: 4, and this program knows 3"},
		{"of another boot", write(`{"schema":9,"boot":"boot-0"}`, 0o600), ErrStaleBoot, "record of another boot"},
		{"of another job", write(strings.Replace(good, `"id":7`, `"id":8`, 1), 0o600), osfile.ErrNotRootOwned, "not root's own: it is job 8's"},
		{"writable by others", write(good, 0o666), osfile.ErrNotRootOwned, "not root's own: its mode 0666 lets others write"},
		{"of another owner", func(path string) error {
			return errors.Join(write(good, 0o600)(path), os.Chown(path, 2001, 2001))
		}, osfile.ErrNotRootOwned, "not root's own: its owner is uid 2001"},
		{"a link", func(path string) error {
			return errors.Join(write(good, 0o600)(path+".x"), os.Symlink(path+".x", path))
		}, osfile.ErrNotRootOwned, "not root's own: it is a symbolic link"},
		{"a folder", func(path string) error { return os.Mkdir(path, 0o700) }, osfile.ErrNotRootOwned, "not root's own: it is not a regular file"},
		{"not there", func(string) error { return nil }, ErrNotFound, "no record"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newStore(t)
			must.OK(t, c.damage(j.leasePath(7)))
			_, err := j.Read(7)
			if !errors.Is(err, c.is) || !strings.HasSuffix(strings.SplitN(err.Error(), "\n", 2)[0], c.says) && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
}

func write(content string, mode fs.FileMode) func(string) error {
	return func(path string) error {
		return errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, mode))
	}
}

// Contract: R4, R6
func TestALeaseOfAnEarlierBootHoldsNothing(t *testing.T) {
	j := newStore(t)
	ctx := deadline(t, 5*time.Second)
	must.OK(t, j.Create(ctx, leaseOf(7, gpuA)))
	later := must.Get(Open(j.dir, "boot-2"))(t)
	if err := later.Create(ctx, leaseOf(8, gpuA)); err != nil {
		t.Fatalf("a device that a job of an earlier boot held: %v", err)
	}
	must.OK(t, later.PurgeStale(ctx, 7))
	if got, want := everything(t, j), "leases/8.json lock"; got != want {
		t.Errorf("left: %s, want %s", got, want)
	}
}

// A lease that cannot be used holds the devices that it names, and one that names none that can be read holds any.
//
// Contract: R6
func TestALeaseThatCannotBeReadHoldsItsDevices(t *testing.T) {
	for content, blocked := range map[string][]site.UUID{
		"":                                       {gpuA, gpuB},
		"{":                                      {gpuA, gpuB},
		`{"schema":4,"boot":"boot-1","job":"x"}`: {gpuA, gpuB},
		`{"schema":4,"boot":"boot-1","job":"x","gpus":[{"uuid":"` + string(gpuA) + `"}]}`:                         {gpuA},
		`{"schema":4,"boot":"boot-1","gpus":[{"uuid":"` + string(gpuA) + `"}],"part":{"gres":"mps","count":100}}`: {gpuA},
	} {
		j := newStore(t)
		ctx := deadline(t, 5*time.Second)
		must.OK(t, os.WriteFile(j.leasePath(7), []byte(content), 0o600))
		for _, uuid := range []site.UUID{gpuA, gpuB} {
			err := j.Create(ctx, leaseOf(8, uuid))
			if taken := slices.Contains(blocked, uuid); taken && !inUse(err, uuid, "job 7 holds") || !taken && err != nil {
				t.Errorf("%s beside %q: %v", uuid, content, err)
			}
		}
		_, held, err := j.HeldByAnother(gpuB, 9)
		if held != (len(blocked) == 1) || err != nil { // an epilog restores a mode beside a torn lease
			t.Errorf("beside %q GPU b is held: %v, %v", content, held, err)
		}
	}
}

// A job that runs while the node gets this version has claims in files. Its devices are held, and nothing is left of it.
func TestALeaseOfTheVersionBefore(t *testing.T) {
	for _, part := range []string{"", `"part":{"gres":"mps","count":100},`} {
		j := newStore(t)
		ctx := deadline(t, 5*time.Second)
		lease := fmt.Sprintf(`{"schema":3,"boot":"boot-1","job":{"id":7,"uid":2001,"gid":2001,"user":"hpc1"},"phase":"open","rule":"mps",%s"gpus":[{"uuid":%q,"minor":0}]}`, part, gpuA)
		claim := map[bool]string{true: string(gpuA), false: string(gpuA) + ".7"}[part == ""]
		must.OK(t, errors.Join(os.Mkdir(filepath.Join(j.dir, "claims"), 0o755), os.WriteFile(j.leasePath(7), []byte(lease), 0o600),
			os.WriteFile(filepath.Join(j.dir, "claims", claim), []byte(`{"schema":3,"boot":"boot-1","job":7}`), 0o600)))
		if err := j.Create(ctx, leaseOf(8, gpuA)); !inUse(err, gpuA, "job 7 holds") {
			t.Errorf("a job with the whole GPU: %v", err)
		}
		l, err := j.Read(7)
		must.OK(t, errors.Join(err, j.Delete(ctx, l)))
		if got := everything(t, j); got != "lock" {
			t.Errorf("left behind: %s", got)
		}
	}
}

// Only a lease with MPS holds devices. Jobs hold one together if each has a part of it.
//
// Contract: R6
func TestWhatALeaseHolds(t *testing.T) {
	whole, part := leaseOf(7, gpuA), leaseOf(7, gpuA)
	part.Part = Part{Gres: GresMPS, Count: 100}
	recorded := whole
	recorded.NoMPS = true
	for _, c := range []struct {
		name        string
		first, then Lease
		refused     bool
		others      int // of the first, beside the second
	}{
		{"two whole", whole, whole, true, 0},
		{"a part after a whole", whole, part, true, 0},
		{"a whole after a part", part, whole, true, 1},
		{"two parts", part, part, false, 1},
		{"a whole beside a recorded job", recorded, whole, false, 0},
	} {
		j := newStore(t)
		ctx := deadline(t, 5*time.Second)
		c.then.Job.ID = 8
		must.OK(t, j.Create(ctx, c.first))
		if err := j.Create(ctx, c.then); inUse(err, gpuA, "job 7 holds") != c.refused || err != nil != c.refused {
			t.Errorf("%s: %v", c.name, err)
		}
		if n := j.Others(gpuA, 8); n != c.others {
			t.Errorf("%s: %d others", c.name, n)
		}
		holder, held, err := j.HeldByAnother(gpuA, 8)
		if want := !c.first.Part.Shared() && !c.first.NoMPS; held != want || want && holder != 7 || err != nil {
			t.Errorf("%s: held by %d, %v, %v", c.name, holder, held, err)
		}
	}
}

// inUse reports whether a device could not be claimed because a job holds it whose name begins so.
func inUse(err error, uuid site.UUID, job string) bool {
	return err != nil && strings.Contains(err.Error(), fmt.Sprintf("cannot claim %s: %s", uuid, job))
}

// The lock file is removed with the lock. A process that waited for it and a process that comes later do not both get
// the lock.
//
// Contract: R7
func TestOneHolderOfALockWhoseFileIsRemoved(t *testing.T) {
	j := newStore(t)
	for range 5 {
		first := must.Get(j.Lock(deadline(t, time.Second), 7))(t)
		var having atomic.Int32
		take := func() error {
			lock, err := j.Lock(deadline(t, 5*time.Second), 7)
			if err != nil {
				return err
			}
			if n := having.Add(1); n > 1 {
				err = fmt.Errorf("%d processes have the lock", n)
			}
			time.Sleep(50 * time.Millisecond)
			having.Add(-1)
			return errors.Join(err, lock.Release())
		}
		taken := make(chan error, 2)
		go func() { taken <- take() }()
		time.Sleep(50 * time.Millisecond) // the other process waits for the lock
		must.OK(t, first.Release())
		go func() { taken <- take() }()
		must.Note(t, errors.Join(<-taken, <-taken))
	}
}

// Contract: R7
func TestALockIsTakenByOneAfterTheOther(t *testing.T) {
	j := newStore(t)
	first := must.Get(j.Lock(deadline(t, time.Second), 7))(t)
	self := must.Get(proc.Current())(t)
	var busy *BusyError
	if _, err := j.Lock(deadline(t, 30*time.Millisecond), 7); !errors.As(err, &busy) || busy.Holder != self {
		t.Fatalf("a second lock: %v", err)
	}
	if other, err := j.Lock(deadline(t, time.Second), 8); err != nil {
		t.Errorf("the lock of another job: %v", err)
	} else if err := other.Release(); err != nil {
		t.Error(err)
	}
	waiting := make(chan error)
	go func() {
		lock, err := j.Lock(deadline(t, 5*time.Second), 7)
		if err == nil {
			err = lock.Release()
		}
		waiting <- err
	}()
	time.Sleep(10 * time.Millisecond) // so that the waiter has the old file open; the result is right without this too
	must.Note(t, errors.Join(first.Release(), <-waiting))
	if got := everything(t, j); got != "" {
		t.Errorf("left behind: %s", got)
	}
}

func TestFoldersGoWithoutFollowingALink(t *testing.T) {
	j := newStore(t)
	l := leaseOf(7, gpuA)
	l.Daemons = []Daemon{{PipeDir: filepath.Join(j.DaemonDir(7, 0), "pipe"), LogDir: filepath.Join(j.DaemonDir(7, 0), "log")}}
	must.OK(t, errors.Join(j.MakeDirs(l), j.MakeDirs(l)))
	info, err := os.Stat(l.Daemons[0].PipeDir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("%v, %v", info, err)
	}
	outside := t.TempDir()
	precious := filepath.Join(outside, "precious")
	deep := filepath.Join(l.Daemons[0].LogDir, "a", "b")
	must.OK(t, errors.Join(os.WriteFile(precious, nil, 0o644), os.Symlink(outside, filepath.Join(l.Daemons[0].PipeDir, "out")), os.MkdirAll(deep, 0o700), os.Symlink(outside, filepath.Join(deep, "out"))))
	must.OK(t, errors.Join(j.RemoveDirs(Job{ID: 7, UID: 2001}), j.RemoveDirs(Job{ID: 7, UID: 2001})))
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("the removal followed a link: %v", err)
	}
	if _, err := os.Stat(j.JobDir(7)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder stays: %v", err)
	}
}

// If a job can have no file system of its own, its folders are still removed. A user may have made them deep and
// wide, and processes may still write into them.
func TestFoldersOfTheNodesOwnGo(t *testing.T) {
	j := newStore(t)
	l := leaseOf(7, gpuA)
	l.Job.UID, l.Job.GID = 2001, 2001
	l.Daemons = []Daemon{{PipeDir: filepath.Join(j.DaemonDir(7, 0), "pipe"), LogDir: filepath.Join(j.DaemonDir(7, 0), "log")}}
	must.OK(t, errors.Join(j.MakeDirs(l), j.unmountJobDir(Job{ID: 7}), j.makeFolders(l)))
	outside := t.TempDir()
	for n := range 50 {
		path := filepath.Join(l.Daemons[0].LogDir, fmt.Sprint(n))
		must.OK(t, errors.Join(os.MkdirAll(filepath.Join(path, "x"), 0o700), os.WriteFile(filepath.Join(path, "y"), nil, 0), os.Symlink(outside, filepath.Join(path, "z"))))
	}
	must.OK(t, deep(j.ExchangeDir(7), 200))
	for _, path := range []string{filepath.Join(j.JobDir(7), ".raised-1", "left"), filepath.Join(outside, "precious")} {
		must.OK(t, os.MkdirAll(path, 0o700))
	}
	filler := exec.Command("/bin/sh", "-c", `cd $1 && while mkdir a$n && echo >a$n/b; do n=$((n+1)); done`, "sh", l.Daemons[0].PipeDir)
	filler.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 2001, Gid: 2001}}
	must.OK(t, errors.Join(os.Chmod(filepath.Dir(filepath.Dir(j.dir)), 0o755), filler.Start()))
	for entries := 0; entries < 5; { // wait until the filler writes
		found, err := os.ReadDir(l.Daemons[0].PipeDir)
		if err != nil || filler.ProcessState != nil {
			t.Fatal(err)
		}
		entries = len(found)
	}
	if err := limited(64, func() error {
		return errors.Join(j.RemoveDirs(Job{ID: 7, UID: 2001}), j.RemoveDirs(Job{ID: 7, UID: 2001}))
	}); err != nil {
		t.Error(err)
	}
	_ = filler.Wait() // it ends because its folder is gone
	if _, err := os.Stat(j.JobDir(7)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder stays: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "precious")); err != nil {
		t.Errorf("the removal followed a link: %v", err)
	}
}

// deep makes nested folders.
func deep(path string, levels int) error {
	dir, err := unix.Open(path, unix.O_DIRECTORY, 0)
	for range levels {
		if err != nil {
			return err
		}
		above := dir
		if err = unix.Mkdirat(above, "d", 0o700); err == nil {
			dir, err = unix.Openat(above, "d", unix.O_DIRECTORY, 0)
		}
		unix.Close(above)
	}
	return errors.Join(err, unix.Close(dir))
}

// limited runs a function with a limit on open descriptors.
func limited(files uint64, do func() error) error {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: before.Max}); err != nil {
		return err
	}
	return errors.Join(do(), unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"schema":3,"boot":"boot-1","job":{"id":7},"phase":"open","gpus":[{"uuid":"GPU-1"}],"drain_grace":"10s"}`))
	f.Add([]byte(`{"schema":3,"boot":"boot-1","job":7,"rule":"mps","grant":{"share":"even","memory":"8G"},"devices":[{"uuid":"GPU-1"}]}`))
	f.Add([]byte(`{"schema":1e9,"boot":null}`))
	f.Add([]byte(``))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(dir, fmt.Sprint(os.Getpid()))
		must.OK(t, os.WriteFile(path, content, 0o600))
		var l Lease
		if err := readRecord(path, "boot-1", &l); err == nil && l.Schema != Schema {
			t.Errorf("a lease of schema %d is taken", l.Schema)
		}
		var ticket Ticket
		if err := readRecord(path, "boot-1", &ticket); err == nil && ticket.Schema != Schema {
			t.Errorf("a ticket of schema %d is taken", ticket.Schema)
		}
	})
}

// BenchmarkLease measures all operations of a lease on a node with 63 other leases.
func BenchmarkLease(b *testing.B) {
	j, err := Open(filepath.Join(b.TempDir(), "run"), "boot-1")
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	for i := range 63 {
		if err := j.Create(ctx, leaseOf(uint32(100+i), site.UUID(fmt.Sprintf("GPU-%d", i)))); err != nil {
			b.Fatal(err)
		}
	}
	l := leaseOf(7, gpuA, gpuB)
	for b.Loop() {
		if err := errors.Join(j.Create(ctx, l), j.Save(l), j.WriteTicket(Ticket{Job: l.Job}), j.RemoveTicket(7), j.Delete(ctx, l)); err != nil {
			b.Fatal(err)
		}
	}
}

// Each setting of the guard is of the grant, so that none that a policy has is without effect.
func TestEachSettingOfTheGuardIsGiven(t *testing.T) {
	given := reflect.ValueOf(GuardOf(policy.DefaultGrant(), 48))
	for n := range given.NumField() {
		if given.Field(n).IsZero() {
			t.Errorf("%s is not given", given.Type().Field(n).Name)
		}
	}
}
