// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A program that prints without end, or that never ends, costs neither memory nor time.
func TestRun(t *testing.T) {
	if printed, err := run(t.Context(), time.Minute, "/bin/sh", "-c", "echo out; echo err >&2"); err != nil || printed != "out\nerr\n" {
		t.Errorf("%q, %v", printed, err)
	}
	many, err := run(t.Context(), time.Minute, "/bin/sh", "-c", "head -c 3000000 /dev/zero")
	must.Hold(t, err == nil && len(many) == maxPrinted, "%d bytes, %v", len(many), err)
	began := time.Now()
	_, err = run(t.Context(), 50*time.Millisecond, "/bin/sleep", "600")
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// A script of the site's may name a path that a user can make. What a user has put there delays nothing and is none of
// our programs.
func TestWhatAScriptNamesDelaysNothing(t *testing.T) {
	dir := t.TempDir()
	fifo, hook := filepath.Join(dir, "fifo"), filepath.Join(dir, "prolog")
	content := []byte("#!/bin/sh\nrm -f " + fifo + "\n")
	must.OK(t, errors.Join(unix.Mkfifo(fifo, 0o666), os.WriteFile(hook, content, 0o755)))
	read := make(chan hookScript, 1)
	go func() { read <- script(hook) }()
	select {
	case s := <-read:
		must.Hold(t, s.Err == nil && s.Starts == "", "%+v", s)
	case <-time.After(time.Minute):
		t.Error("it waits for a writer of the fifo")
	}
}

// A user's process may have slurmd's name. Its limit is the user's, and no finding about the node.
func TestLimitsAreThoseOfRootsSlurmd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs another user's process")
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	dir := must.Get(os.MkdirTemp("", "slurmd"))(t)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "slurmd")
	must.OK(t, errors.Join(os.Chmod(dir, 0o755), os.Symlink(sleep, path)))
	for uid, want := range map[uint32]bool{0: true, 65534: false} {
		cmd := exec.CommandContext(t.Context(), path, "600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if err := cmd.Start(); err != nil { // it returns after the exec
			t.Fatal(err)
		}
		must.Equal(t, fmt.Sprintf("uid %d: its limit counts", uid), isSlurmd(cmd.Process.Pid), want)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// Who can change a link in the middle of a chain decides what root runs.
func TestALinkInTheMiddleOfAChain(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs a folder of another user")
	}
	dir := t.TempDir()
	program, theirs, hook := filepath.Join(dir, "program"), filepath.Join(dir, "theirs"), filepath.Join(dir, "hook")
	for _, err := range []error{os.WriteFile(program, nil, 0o755), os.Mkdir(theirs, 0o755),
		os.Symlink("../program", filepath.Join(theirs, "link"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	must.OK(t, errors.Join(os.Symlink("theirs/link", hook), os.Symlink(program, filepath.Join(dir, "good"))))
	for _, want := range []string{"", theirs} {
		if f := look("", filepath.Join(dir, "good")); f.Err != nil || f.Loose != "" {
			t.Errorf("%+v", f)
		}
		if f := look("", hook); f.Loose != want {
			t.Errorf("%q, want %q", f.Loose, want)
		}
		must.OK(t, os.Chown(theirs, 65534, 65534))
	}
}

// The limit of another process is read, and that it may not raise it: as in a container without the capability.
func TestLimitOfAProcess(t *testing.T) {
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("needs setpriv, as root")
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `ulimit -n 512; exec "$@"`, "sh",
		setpriv, "--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "cat")
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	must.OK(t, errors.Join(err1, err2, cmd.Start()))
	_, err1 = in.Write([]byte("x"))
	_, err2 = out.Read(make([]byte, 1)) // cat runs
	got := limitOf(nil, "it", cmd.Process.Pid)
	if want := []limit{{"it", 512, false}}; err1 != nil || err2 != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v: %v, %v", got, want, err1, err2)
	}
	_ = in.Close()
	_ = cmd.Wait()
}
