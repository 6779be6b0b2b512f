// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// With usage_interval = "0s" nothing is recorded: no file is opened, and no GPU is asked.
//
// Contract: U1
func TestAJobIsNotRecorded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, c := range []struct {
		interval string
		logs     bool
	}{{`usage_interval = "0s"`, false}, {`usage_interval = "1s"`, true}} {
		paths := site.Paths{Root: t.TempDir()}
		if err := os.MkdirAll(filepath.Dir(paths.ConfigFile()), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(paths.ConfigFile(), []byte(c.interval+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		err := recordUsage(paths, 7) // without a guard, stdin is at its end
		_, wrong := os.Lstat(paths.Log())
		if err != nil || (wrong == nil) != c.logs {
			t.Errorf("%s: %v, and the log: %v", c.interval, err, wrong)
		}
	}
}

// The recorder gives up the guard's priority, in all of its threads, and the protection when memory runs out.
func TestTheRecorderIsModest(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("10"), 0); err != nil {
		t.Fatal(err)
	}
	beModest()
	if score, err := os.ReadFile("/proc/self/oom_score_adj"); err != nil || string(score) != "0\n" {
		t.Errorf("oom_score_adj is %s, %v", score, err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil || len(threads) == 0 {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		if nice, err := unix.Getpriority(unix.PRIO_PROCESS, id); err == nil && 20-nice != 10 { // some thread may have ended
			t.Errorf("thread %d has priority %d", id, 20-nice)
		}
	}
}
