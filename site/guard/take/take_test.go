// SPDX-License-Identifier: Apache-2.0

package take

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// takerLine runs this test's own program as a taker.
var takerLine = []string{"/proc/self/exe", "--take"}

func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "--take") {
		if err := Run(0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// soon is a long time for what takes a moment.
const soon = 10 * time.Second

// uncounted gives a taker no place.
func uncounted() (*lease.TakerPlace, error) { return nil, nil }

// takes returns a test's takers, a pidfd of the test itself, and a file that the test has open.
func takes(t *testing.T) (taken *Takers, pidfd int, file *os.File) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must.OK(t, err)
	t.Cleanup(func() { file.Close() })
	if pidfd, err = unix.PidfdOpen(os.Getpid(), 0); err != nil {
		t.Fatal(err)
	}
	taken = &Takers{Line: takerLine, Raised: true, Wait: soon, Place: uncounted}
	t.Cleanup(func() { taken.Abandon(0); unix.Close(pidfd) })
	return taken, pidfd, file
}

func identityAt(t *testing.T, fd int) Identity {
	t.Helper()
	var st unix.Statx_t
	must.OK(t, Statx(fd, "", unix.AT_EMPTY_PATH, &st))
	return IdentityOf(&st)
}

// A taker sends the wanted file and never another file. The same process then makes the next duplicate.
func TestTakers(t *testing.T) {
	taken, pidfd, file := takes(t)
	number := int(file.Fd())
	wanted := identityAt(t, number)
	for range 20 {
		fd := must.Get(taken.Duplicate(os.Getpid(), pidfd, number, wanted))(t)
		if target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); target != file.Name() {
			t.Fatalf("%q, %v", target, err)
		}
		unix.Close(fd)
		if fd, err := taken.Duplicate(os.Getpid(), pidfd, number, Identity{}); fd != -1 || !errors.Is(err, ErrChanged) {
			t.Fatalf("%d, %v", fd, err)
		}
	}
	first := taken.current
	if fd, err := taken.Duplicate(os.Getpid(), pidfd, 100_000, wanted); fd != -1 || !errors.Is(err, unix.EBADF) {
		t.Errorf("%d, %v", fd, err)
	}
	if taken.current != first || taken.stuck.Load() > 0 {
		t.Errorf("an answer cost a process: %d", taken.stuck.Load())
	}
	if files := testproc.OpenBelow(filepath.Dir(file.Name())); len(files) != 1 {
		t.Errorf("open: %q", files)
	}
}

// A taker that does not answer is ended, and a taker that has ended is replaced.
func TestTakersThatDoNotAnswer(t *testing.T) {
	taken, pidfd, file := takes(t)
	number := int(file.Fd())
	wanted := identityAt(t, number)
	taken.Wait = 50 * time.Millisecond
	for range maxStuck + 1 {
		must.OK(t, taken.Start())
		must.OK(t, taken.current.process.Kill(unix.SIGSTOP))
		if _, err := taken.Duplicate(os.Getpid(), pidfd, number, wanted); !errors.Is(err, ErrChanged) {
			t.Fatal(err)
		}
		for began := time.Now(); taken.stuck.Load() > 0; time.Sleep(time.Millisecond) {
			if time.Since(began) > soon {
				t.Fatalf("%d have not ended", taken.stuck.Load())
			}
		}
	}
	taken.Wait = soon
	must.OK(t, taken.Start())
	ended := must.Get(unix.PidfdOpen(taken.current.process.PID, 0))(t)
	defer unix.Close(ended)
	taken.current.process.End()
	must.OK(t, wait.Readable(ended, soon))
	if fd, err := taken.Duplicate(os.Getpid(), pidfd, number, wanted); fd != -1 || err == nil {
		t.Errorf("%d, %v", fd, err)
	}
	for began := time.Now(); taken.stuck.Load() > 0; time.Sleep(time.Millisecond) {
		must.Have(t, time.Since(began) <= soon, "the one that has ended still counts")
	}
	fd := must.Get(taken.Duplicate(os.Getpid(), pidfd, number, wanted))(t)
	unix.Close(fd)
}

// While takers hang that no signal ends, no other one is asked about the same process, and there are maxStuck at most.
// Late answers of one round take no longer than one answer may take, and a little for each.
func TestTakersThatHang(t *testing.T) {
	taken, pidfd, file := takes(t)
	number := int(file.Fd())
	wanted := identityAt(t, number)
	taken.note(os.Getpid(), 1)
	if _, err := taken.Duplicate(os.Getpid(), pidfd, number, wanted); !errors.Is(err, proc.ErrSilent) || taken.current != nil {
		t.Fatalf("a taker is asked about a process that has made one hang: %v", err)
	}
	taken.note(os.Getpid(), -1)
	taken.Wait = 500 * time.Millisecond
	began := time.Now()
	for other := range maxStuck {
		must.OK(t, taken.Start())
		must.OK(t, taken.current.process.Kill(unix.SIGSTOP))
		if _, err := taken.Duplicate(-1-other, pidfd, number, wanted); !errors.Is(err, ErrChanged) {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < taken.Wait || took > 6*taken.Wait {
		t.Errorf("%d late answers took %v", maxStuck, took)
	}
	for other := range maxStuck {
		taken.note(-100-other, 1)
	}
	if _, err := taken.Duplicate(os.Getpid(), pidfd, number, wanted); !errors.Is(err, errStuck) {
		t.Error(err)
	}
	for other := range maxStuck {
		taken.note(-100-other, -1)
	}
	taken.Begin()
	taken.Wait = soon
	for began := time.Now(); taken.stuck.Load() > 0 && time.Since(began) < soon; time.Sleep(time.Millisecond) {
	}
	fd := must.Get(taken.Duplicate(os.Getpid(), pidfd, number, wanted))(t)
	unix.Close(fd)
}

// A taker has a place among the node's takers, with a descriptor that it keeps.
func TestTakersHavePlaces(t *testing.T) {
	must.Root(t)
	folder := t.TempDir()
	store := must.Get(lease.Open(folder, "boot"))(t)
	taken, pidfd, file := takes(t)
	full, tries := false, 0
	taken.Place = func() (*lease.TakerPlace, error) {
		if tries++; full {
			return nil, lease.ErrTakers
		}
		return store.TakerPlace(lease.Taker{Job: 7, UID: 2001})
	}
	fd := must.Get(taken.Duplicate(os.Getpid(), pidfd, int(file.Fd()), identityAt(t, int(file.Fd()))))(t)
	unix.Close(fd)
	pid := taken.current.process.PID
	if kept, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/1", pid)); kept != filepath.Join(folder, "takers") {
		t.Errorf("the taker's place is %q, %v", kept, err)
	}
	left, err := store.TakersLeft()
	if err != nil || len(left) != 1 || left[0].Proc.PID != pid { // its guard, pid 0, does not run
		t.Errorf("%+v, %v", left, err)
	}
	taken.Abandon(0)
	for began := time.Now(); taken.stuck.Load() > 0; time.Sleep(time.Millisecond) {
		must.Have(t, time.Since(began) <= soon, "it does not end")
	}
	if left, err := store.TakersLeft(); err != nil || len(left) != 0 {
		t.Errorf("%+v, %v", left, err)
	}
	full, tries = true, 0
	for range 10 {
		if fd, err := taken.Duplicate(os.Getpid(), pidfd, int(file.Fd()), Identity{}); !errors.Is(err, lease.ErrTakers) {
			t.Errorf("%d, %v", fd, err)
		}
	}
	must.Hold(t, tries <= 5, "%d tries at once", tries)
	full, taken.again = false, time.Now()
	must.Note(t, taken.Start())
}

// A taker that is given up has no raised priority.
func TestLower(t *testing.T) {
	taken, _, _ := takes(t)
	must.OK(t, taken.Start())
	pid := taken.current.process.PID
	threads := must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)))(t)
	nice := func(thread os.DirEntry, raise bool) int {
		id, _ := strconv.Atoi(thread.Name())
		if raise {
			if err := unix.Setpriority(unix.PRIO_PROCESS, id, -5); err != nil {
				t.Skipf("this process may raise no priority: %v", err)
			}
		}
		raw := must.Get(unix.Getpriority(unix.PRIO_PROCESS, id))(t)
		return 20 - raw // the system call's answer is never negative
	}
	for _, thread := range threads {
		if got := nice(thread, true); got != -5 {
			t.Fatalf("nice %d", got)
		}
	}
	proc.SetNice(pid, 0)
	for _, thread := range threads {
		if got := nice(thread, false); got != 0 {
			t.Errorf("thread %s has nice %d", thread.Name(), got)
		}
	}
}

// If this process may open no other file, the kernel drops the duplicate that the taker sends. That is an error.
func TestADuplicateThatIsDropped(t *testing.T) {
	taken, pidfd, file := takes(t)
	number := int(file.Fd())
	wanted := identityAt(t, number)
	next := must.Get(taken.Duplicate(os.Getpid(), pidfd, number, wanted))(t)
	unix.Close(next)
	var old unix.Rlimit
	must.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old) })
	must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next), Max: old.Max}))
	if fd, err := taken.Duplicate(os.Getpid(), pidfd, number, wanted); !errors.Is(err, unix.EMFILE) {
		t.Errorf("%d, %v", fd, err)
	}
}

// Each request closes the pidfd that came with it, whatever it asks, and the duplicate of a line's file. A taker that does
// not start leaves nothing open.
func TestRequestsCloseTheirFiles(t *testing.T) {
	_, pidfd, file := takes(t)
	for what, question := range map[string]string{
		"no request":     "{",
		"no descriptor":  `{"Number":100000}`,
		"no file to ask": fmt.Sprintf(`{"Number":%d,"Text":"line\n"}`, file.Fd()),
	} {
		if leaks := testproc.Leaks(t, func() {
			fd := must.Get(unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0))(t)
			if _, code := take(fd, []byte(question)); code == 0 {
				t.Errorf("%s: no error", what)
			}
		}); leaks > 0 {
			t.Errorf("%s: %d files are left open", what, leaks)
		}
	}
	if leaks := testproc.Leaks(t, func() {
		if _, err := startTaker([]string{"/none"}, nil); err == nil {
			t.Error("a missing program starts")
		}
	}); leaks > 0 {
		t.Errorf("no taker: %d files are left open", leaks)
	}
}
