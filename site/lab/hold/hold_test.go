// SPDX-License-Identifier: Apache-2.0

package hold_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/hold"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// limit bounds each wait. A machine with many tests may need it.
const limit = 3 * time.Minute

// callerOf names the variable with the folder of a caller that TestACallerIsKilled kills.
const callerOf = "HOLD_TEST_CALLER"

func TestMain(m *testing.M) {
	hold.Begin()
	if folder := os.Getenv(callerOf); folder != "" {
		_ = hold.Command(context.Background(), "sh", "-c", family, "sh", folder).Run()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// family is a program whose descendants are hard to end: one that left by two forks, one in a session of its own, one
// that ignores signals, and one that is stopped. Each writes its pid.
const family = `
cd "$1"
note() { echo "$2" >"$1.part" && mv "$1.part" "$1"; }
( ( exec sleep 1000 ) & note twice $! )
setsid sh -c 'echo $$ >session.part && mv session.part session; exec sleep 1000' &
setsid sh -c 'trap "" TERM INT HUP QUIT; echo $$ >ignores.part && mv ignores.part ignores
    while :; do sleep 1000; done' &
test -z "$2" || { sleep 1000 & note stopped $!; kill -STOP $!; }
note program $$
while test ! -e go; do sleep 0.02; done
exit 7`

// members are those of every family. A process that is stopped is not in every one, because the kernel tells a group with
// such a process that it has lost its caller.
var members = []string{"twice", "session", "ignores", "program"}

// started waits until each member of a family has written its pid, and returns them.
func started(t *testing.T, folder string, members ...string) map[string]proc.Process {
	t.Helper()
	found := map[string]proc.Process{}
	await(t, "a member of the family does not start", func() bool {
		for _, name := range members {
			text, err := os.ReadFile(filepath.Join(folder, name))
			if err != nil {
				return false
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			stat, err2 := proc.ReadStat(pid)
			if err := errors.Join(err, err2); err != nil || !stat.Running() {
				t.Fatalf("%s does not run: %v", name, err)
			}
			found[name] = stat.Process
		}
		return true
	})
	return found
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !done(); wait.Sleep(t.Context(), 10*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// gone checks that a family has ended, and that nothing of it is a zombie of a process that lives.
func gone(t *testing.T, family map[string]proc.Process) {
	t.Helper()
	for name, p := range family {
		await(t, name+" lives", func() bool { return !p.Running() })
	}
}

// A command that is cancelled leaves nothing.
func TestACommandIsCancelled(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := hold.Command(ctx, "sh", "-c", family, "sh", folder, "stopped")
	must.OK(t, cmd.Start())
	all := started(t, folder, slices.Concat(members, []string{"stopped"})...)
	cancel()
	if err := cmd.Wait(); err == nil {
		t.Error("a program that was cancelled has passed")
	}
	gone(t, all)
}

// A caller that is killed can end nothing. Its holder does.
func TestACallerIsKilled(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	caller := exec.Command("/proc/self/exe")
	caller.Env = append(os.Environ(), callerOf+"="+folder)
	must.OK(t, caller.Start())
	all := started(t, folder, members...)
	must.OK(t, caller.Process.Signal(unix.SIGKILL))
	_ = caller.Wait()
	gone(t, all)
}
