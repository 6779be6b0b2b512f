// SPDX-License-Identifier: Apache-2.0

package closing

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain is also the guard of the test: it opens files and closes them at once, in threads of their own.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "close" {
		if err := closeAll(os.Args[2:]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// closeAll closes files of clients, PATH:BYTE each, and prints the time of all.
func closeAll(files []string) error {
	var fds []int
	for _, file := range files {
		path, number, _ := strings.Cut(file, ":")
		var start int64
		if _, err := fmt.Sscan(number, &start); err != nil {
			return err
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		lock := unix.Flock_t{Type: unix.F_RDLCK, Start: start, Len: 1}
		if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock); err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	began := time.Now()
	var all sync.WaitGroup
	for _, fd := range fds {
		all.Go(func() { _ = unix.Close(fd) })
	}
	all.Wait()
	fmt.Println(time.Since(began))
	return nil
}

// The memory files of a dead client close slowly, one after the other. All other files close at once.
func TestSlow(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a filter without no_new_privs needs root")
	}
	dir := t.TempDir()
	launcher := filepath.Join(dir, "launcher")
	gcc := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-o", launcher, "launch/launch.c")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	bin := filepath.Join(dir, "programs")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := copyProgram(self, filepath.Join(bin, "guard")); err != nil {
		t.Fatal(err)
	}
	const perClient = 400 * time.Millisecond
	s, err := Start(filepath.Join(dir, "slow"), bin, launcher, perClient)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nvidia-uvm", "nvidiactl"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	dead, alive := ended.Process.Pid, os.Getpid()
	uvm, control := filepath.Join(dir, "nvidia-uvm"), filepath.Join(dir, "nvidiactl")
	for _, c := range []struct {
		what  string
		files []string
		slow  int
	}{
		{"the two files of a dead client", []string{at(uvm, 2*dead), at(uvm, 2*dead+1)}, 2},
		{"the files of a living client", []string{at(uvm, 2*alive), at(uvm, 2*alive+1)}, 0},
		{"the control file of a dead client", []string{at(control, dead)}, 0},
	} {
		before := s.Slowed()
		out, err := exec.Command(filepath.Join(s.Bin, "guard"), append([]string{"close"}, c.files...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", c.what, err, out)
		}
		took, err := time.ParseDuration(strings.TrimSpace(string(out)))
		if err != nil {
			t.Fatalf("%s: %s", c.what, out)
		}
		if slow := s.Slowed() - before; slow != c.slow {
			t.Errorf("%s: %d closes were slow, want %d", c.what, slow, c.slow)
		}
		if least := time.Duration(c.slow) * perClient / filesOfClient; took < least {
			t.Errorf("%s closed within %v, want at least %v", c.what, took, least)
		}
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

func at(path string, number int) string { return fmt.Sprintf("%s:%d", path, number) }
