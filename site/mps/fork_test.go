// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// A control program runs at /, in a session of its own, and with no signal blocked or ignored, whatever the prolog has.
//
// Contract: D1
func TestWhatAControlProgramHas(t *testing.T) {
	t.Chdir(t.TempDir())
	program := filepath.Join(t.TempDir(), "control")
	script := "#!/bin/sh\nreadlink /proc/$$/cwd; cut -d' ' -f6 /proc/$$/stat; echo $$\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(unix.SIGUSR2)
	defer signal.Reset(unix.SIGUSR2)
	runtime.LockOSThread() // never unlocked: this thread ends with the test, with the signals that it blocks
	var blocked unix.Sigset_t
	for i := range blocked.Val {
		blocked.Val[i] = ^blocked.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &blocked, nil); err != nil {
		t.Fatal(err)
	}
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
