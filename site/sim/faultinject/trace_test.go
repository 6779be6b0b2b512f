// SPDX-License-Identifier: Apache-2.0

package faultinject

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/wait"
)

// run traces a shell script in a folder of its own.
func run(t *testing.T, script string, plan Plan) (Result, string) {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	result, err := Run(ctx, []string{"/bin/sh", "-c", script}, []string{"PATH=/usr/bin:/bin", "D=" + dir}, plan)
	if err != nil {
		t.Fatal(err)
	}
	return result, dir
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// The tracer sees what a script does to files. It sees what the script's children do until they execute another
// program.
func TestEffects(t *testing.T) {
	var seen []string
	result, dir := run(t, `umask 022; echo x >$D/a; (echo y >$D/b); mkdir $D/c; echo said; exit 3`, Plan{Kill: func(e Effect) bool {
		if !e.Asks {
			seen = append(seen, e.String())
		}
		return false
	}})
	if result.Code != 3 || result.Output != "said\n" {
		t.Errorf("%+v", result)
	}
	for _, want := range []string{"openat " + dir + "/a", "child's openat " + dir + "/b", "child's execve mkdir " + dir + "/c"} {
		if !slices.Contains(seen, want) {
			t.Errorf("the tracer did not see %s, only %q", want, seen)
		}
	}
	if slices.ContainsFunc(seen, func(s string) bool { return strings.Contains(s, "mkdirat") }) {
		t.Errorf("the tracer saw effects of another program: %q", seen)
	}
}

func TestKill(t *testing.T) {
	result, dir := run(t, `: >$D/a; : >$D/b; : >$D/c`, Plan{Kill: func(e Effect) bool { return strings.HasSuffix(e.What, "/b") }})
	if result.Signal != syscall.SIGKILL || !there(dir+"/a") || !there(dir+"/b") || there(dir+"/c") {
		t.Errorf("%+v: a %v, b %v, c %v", result, there(dir+"/a"), there(dir+"/b"), there(dir+"/c"))
	}
}

func TestFail(t *testing.T) {
	result, dir := run(t, `: >$D/a; : >$D/b; : >$D/c`, Plan{Fail: func(e Effect) syscall.Errno {
		if strings.HasSuffix(e.What, "/b") {
			return syscall.ENOSPC
		}
		return 0
	}})
	if result.Code == 0 || !strings.Contains(result.Output, "No space left on device") || !there(dir+"/a") || there(dir+"/b") {
		t.Errorf("%+v: a %v, b %v", result, there(dir+"/a"), there(dir+"/b"))
	}
}

// If the script is killed, a child that has already executed another program continues.
func TestAChildGoesOn(t *testing.T) {
	result, dir := run(t, `sh -c 'while [ ! -e $D/go ]; do sleep 0.01; done; echo done >$D/child' & : >$D/a; sleep 60`,
		Plan{Kill: func(e Effect) bool { return strings.Contains(e.String(), "execve sleep 60") }})
	if result.Signal != syscall.SIGKILL {
		t.Fatalf("%+v", result)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for !there(dir + "/child") {
		if !wait.Sleep(ctx, time.Millisecond) {
			t.Fatal("the child did not continue")
		}
	}
}

// A tracer does not take the children of other tracers, nor the other children of this process.
func TestSideBySide(t *testing.T) {
	for i := range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for range 20 {
				if i%2 == 0 {
					if result, _ := run(t, `(exit 7); exit $?`, Plan{}); result.Code != 7 {
						t.Errorf("%+v", result)
					}
					continue
				}
				cmd := exec.Command("/bin/sh", "-c", "exit 7")
				if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 7 {
					t.Errorf("%v", err)
				}
			}
		})
	}
}

func TestTheDeadlineKills(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := Run(ctx, []string{"/bin/sh", "-c", "while :; do :; done"}, nil, Plan{})
	if err == nil || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}
