// SPDX-License-Identifier: Apache-2.0

package faultinject

import (
	"context"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// run traces a shell script in a folder of its own.
func run(t *testing.T, script string, plan Plan) (Result, string) {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	result := must.Get(Run(ctx, []string{"/bin/sh", "-c", script}, []string{"PATH=/usr/bin:/bin", "D=" + dir}, plan))(t)
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
