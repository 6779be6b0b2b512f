// SPDX-License-Identifier: Apache-2.0

package osfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// A terminal is a file that has a terminal's settings. Another character device has none.
func TestIsTerminal(t *testing.T) {
	for path, want := range map[string]bool{"/dev/ptmx": true, "/dev/null": false} {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		must.OK(t, err)
		if got := IsTerminal(file); got != want {
			t.Errorf("%s: %v", path, got)
		}
		file.Close()
	}
	if IsTerminal(io.Discard) {
		t.Error("a stream that is not a file is a terminal")
	}
}

// A terminal in place of a file does not become that of root's program, whose signals its owner could then send. A
// program that leads a session, as in a unit of systemd, would get it.
func TestATerminalIsNotTaken(t *testing.T) {
	if session, err := unix.Getsid(0); err != nil || session != os.Getpid() {
		cmd := exec.Command("/proc/self/exe", "-test.run", "^TestATerminalIsNotTaken$")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	master, err1 := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	err2 := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0)
	number, err3 := unix.IoctlGetInt(master, unix.TIOCGPTN)
	must.OK(t, errors.Join(err1, err2, err3))
	if _, err := ReadAny("/dev/pts/" + strconv.Itoa(number)); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the terminal is read: %v", err)
	}
	if fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_CLOEXEC, 0); !errors.Is(err, unix.ENXIO) {
		t.Errorf("the program has terminal %d, %v", fd, err)
	}
}
