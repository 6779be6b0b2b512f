// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// takerLine runs this test's own program as a taker.
var takerLine = []string{"/proc/self/exe", "--take"}

func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "--take") {
		if err := Take(0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 2 && os.Args[1] == pauserLine[1] {
		limit, err := time.ParseDuration(os.Args[2])
		if err == nil {
			err = Pause(limit)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if slices.Contains(os.Args, "--count") {
		count()
	}
	os.Exit(m.Run())
}

// takes returns a test's takers, a pidfd of the test itself, and a file that the test has open.
func takes(t *testing.T) (taken *takers, pidfd int, file *os.File) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if pidfd, err = unix.PidfdOpen(os.Getpid(), 0); err != nil {
		t.Fatal(err)
	}
	taken = &takers{line: takerLine, wait: soon}
	t.Cleanup(func() { taken.abandon(); unix.Close(pidfd) })
	return taken, pidfd, file
}

func identityAt(t *testing.T, fd int) identity {
	t.Helper()
	var st unix.Statx_t
	if err := statx(fd, "", unix.AT_EMPTY_PATH, &st); err != nil {
		t.Fatal(err)
	}
	return identityOf(&st)
}

// A taker sends the wanted file and never another file. The same process then makes the next duplicate.
func TestTakers(t *testing.T) {
	taken, pidfd, file := takes(t)
	number := int(file.Fd())
	wanted := identityAt(t, number)
	for range 20 {
		fd, err := taken.duplicate(pidfd, number, wanted)
		if err != nil {
			t.Fatal(err)
		}
		if target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); target != file.Name() {
			t.Fatalf("%q, %v", target, err)
		}
		unix.Close(fd)
		if fd, err := taken.duplicate(pidfd, number, identity{}); fd != -1 || !errors.Is(err, errChanged) {
			t.Fatalf("%d, %v", fd, err)
		}
	}
	first := taken.current
	if fd, err := taken.duplicate(pidfd, 100_000, wanted); fd != -1 || !errors.Is(err, unix.EBADF) {
		t.Errorf("%d, %v", fd, err)
	}
	if taken.current != first || taken.stuck.Load() > 0 {
		t.Errorf("an answer cost a process: %d", taken.stuck.Load())
	}
	if files := own(filepath.Dir(file.Name())); len(files) != 1 {
		t.Errorf("open: %q", files)
	}
}

// A taker that does not answer, or has ended, is replaced by another. At most maxStuck takers are abandoned at a time.
func TestTakersThatDoNotAnswer(t *testing.T) {
	taken, pidfd, file := takes(t)
	number := int(file.Fd())
	wanted := identityAt(t, number)
	taken.wait = 50 * time.Millisecond
	var stopped []*os.Process
	for range maxStuck {
		if err := taken.start(); err != nil {
			t.Fatal(err)
		}
		process := taken.current.process
		if err := process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		stopped = append(stopped, process)
		if _, err := taken.duplicate(pidfd, number, wanted); !errors.Is(err, errChanged) {
			t.Fatal(err)
		}
	}
	if _, err := taken.duplicate(pidfd, number, wanted); !errors.Is(err, errStuck) {
		t.Error(err)
	}
	for _, process := range stopped {
		_ = process.Signal(unix.SIGCONT)
	}
	for began := time.Now(); taken.stuck.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > soon {
			t.Fatalf("%d have not ended", taken.stuck.Load())
		}
	}
	taken.wait = soon
	if err := taken.start(); err != nil {
		t.Fatal(err)
	}
	ended, err := unix.PidfdOpen(taken.current.process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ended)
	_ = taken.current.process.Kill()
	if err := readable(ended, soon); err != nil {
		t.Fatal(err)
	}
	if fd, err := taken.duplicate(pidfd, number, wanted); fd != -1 || err == nil {
		t.Errorf("%d, %v", fd, err)
	}
	fd, err := taken.duplicate(pidfd, number, wanted)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
}
