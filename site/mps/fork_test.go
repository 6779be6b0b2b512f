// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/cgroup"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
	"golang.org/x/sys/unix"
)

// A control program runs at /, in a session of its own, and with no signal blocked or ignored, whatever the prolog has.
//
// Contract: D1
func TestWhatAControlProgramHas(t *testing.T) {
	t.Chdir(t.TempDir())
	program := filepath.Join(t.TempDir(), "control")
	script := "#!/bin/sh\nreadlink /proc/$$/cwd; cut -d' ' -f6 /proc/$$/stat; echo $$\n"
	must.OK(t, os.WriteFile(program, []byte(script), 0o700))
	signal.Ignore(unix.SIGUSR2)
	defer signal.Reset(unix.SIGUSR2)
	runtime.LockOSThread() // never unlocked: this thread ends with the test, with the signals that it blocks
	var blocked unix.Sigset_t
	for i := range blocked.Val {
		blocked.Val[i] = ^blocked.Val[i]
	}
	must.OK(t, unix.PthreadSigmask(unix.SIG_SETMASK, &blocked, nil))
	job := lease.Job{ID: 7, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	daemon := lease.Daemon{PipeDir: "/nowhere"}
	said, err := ControlProgram{Path: program}.run(t.Context(), job, daemon, "")
	lines := strings.Fields(said)
	if err != nil || len(lines) != 3 {
		t.Fatalf("%v: %q", err, said)
	}
	if lines[0] != "/" {
		t.Errorf("it runs at %s", lines[0])
	}
	if lines[1] != lines[2] {
		t.Errorf("session %s of process %s", lines[1], lines[2])
	}
	// A shell may unblock signals when it starts, so this is another program.
	const none = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
	grep := ControlProgram{Path: "/bin/grep"}
	said, err = grep.run(t.Context(), job, daemon, "", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
	if err != nil || said != none {
		t.Errorf("%v: %q", err, said)
	}
}

// A control program and all that it starts are in its control group from its first moment: the kernel makes the process
// there. Where the kernel cannot do that, the process moves itself before it runs the program.
//
// Contract: D5
func TestTheControlGroupOfAControlProgram(t *testing.T) {
	must.Root(t)
	tree := cgroup.Tree{Run: t.TempDir()}
	group, err := tree.Of(7, 0)
	if err == nil {
		err = tree.Make(group)
	}
	if errors.Is(err, cgroup.ErrNone) || group == "" {
		t.Skipf("this machine has no control groups: %v", err)
	}
	must.OK(t, err)
	defer os.Remove(group)
	for _, way := range []struct {
		name   string
		folder uint64 // replaces the descriptor of the group's folder, if it is not 0
	}{{"the kernel puts it there", 0}, {"it moves itself", 1 << 20}} {
		output, theirs, err := os.Pipe()
		must.OK(t, err)
		im, err := newImage(lease.Job{UID: 65534, GID: 65534}, "/bin/cat", []string{"cat", "/proc/self/cgroup"}, nil)
		must.OK(t, err)
		leave, err := im.join(group)
		must.OK(t, err)
		if way.folder != 0 {
			im.clone.group = way.folder
		}
		pid, report, err := im.start([3]*os.File{theirs, theirs, theirs})
		leave()
		theirs.Close()
		if err != nil {
			t.Fatalf("%s: %v", way.name, err)
		}
		groups, _ := io.ReadAll(output)
		if err := launched(report); err != nil || !strings.Contains(string(groups), filepath.Base(group)+"\n") {
			t.Errorf("%s: it is in %q, and not in %s: %v", way.name, groups, group, err)
		}
		if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
			t.Error(err)
		}
		output.Close()
		report.Close()
	}
}

// A control program has three files, whatever this process has open beside the pipe of the report.
//
// Contract: D1
func TestAControlProgramHasThreeFiles(t *testing.T) {
	null, err := os.Open(os.DevNull)
	must.OK(t, err)
	defer null.Close()
	var inherited []int
	for len(inherited) < 40 {
		fd, err := unix.Dup(int(null.Fd()))
		must.OK(t, err)
		inherited = append(inherited, fd)
	}
	for i, fd := range inherited {
		defer unix.Close(fd)
		if i%3 == 1 { // each pipe gets a descriptor beside inherited ones
			unix.Close(fd)
		}
	}
	last, err := unix.FcntlInt(3, unix.F_GETFD, 0)
	if err == nil {
		_, err = unix.FcntlInt(3, unix.F_SETFD, 0)
	}
	must.OK(t, err)
	defer func() { _, _ = unix.FcntlInt(3, unix.F_SETFD, last) }()
	job := lease.Job{ID: 7, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	said, err := ControlProgram{Path: "/bin/ls"}.run(t.Context(), job, lease.Daemon{}, "", "/proc/self/fd")
	if want := "0\n1\n2\n3\n"; err != nil || said != want { // 3 is the listed folder
		t.Errorf("%v: it has %q", err, said)
	}
}

// A control program has a session keyring of its own: in slurmd's are keys of root's.
func TestAControlProgramHasNoKeysOfRoots(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root starts programs of users")
	}
	runtime.LockOSThread() // never unlocked: this thread ends with the test, with its keyring
	_, err := unix.KeyctlJoinSessionKeyring("roots")
	if err != nil {
		t.Skipf("keyrings are not allowed here: %v", err)
	}
	_ = must.Get(unix.AddKey("user", "secret-of-root", []byte("x"), unix.KEY_SPEC_SESSION_KEYRING))(t)
	keys := ControlProgram{Path: "/bin/cat", AsIs: true}
	said, err := keys.run(t.Context(), lease.Job{ID: 7}, lease.Daemon{}, "", "/proc/keys")
	if err != nil || !strings.Contains(said, "secret-of-root") {
		t.Errorf("as root: %v: %s", err, said)
	}
	keys.AsIs = false
	said, err = keys.run(t.Context(), lease.Job{ID: 7, UID: 2190, GID: 2190}, lease.Daemon{}, "", "/proc/keys")
	if err != nil || said == "" || strings.Contains(said, "secret-of-root") {
		t.Errorf("as a user: %v: %s", err, said)
	}
}

// A control program that does not start leaves no file open.
func TestAControlProgramThatDoesNotStart(t *testing.T) {
	job := lease.Job{ID: 7, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	for what, c := range map[string]struct {
		path  string
		group string
	}{"it is missing": {"/none", ""}, "no name": {"/bin/\x00", ""}, "no control group": {"/bin/true", "/none"}} {
		if leaks := testproc.Leaks(t, func() {
			if _, err := (ControlProgram{Path: c.path}).run(t.Context(), job, lease.Daemon{Group: c.group}, ""); err == nil && os.Geteuid() == 0 {
				t.Errorf("%s: it starts", what)
			}
		}); leaks > 0 {
			t.Errorf("%s: %d files are left open", what, leaks)
		}
	}
}
