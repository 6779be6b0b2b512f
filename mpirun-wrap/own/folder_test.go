// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// base is a short folder of this user that no other user can write to.
func base(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "own")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// A lock file is ours while it is at its path.
func TestIsAt(t *testing.T) {
	dir := base(t)
	lock, err := openLock(dir, aliveLock)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if !isAt(lock) {
		t.Error("a new file is not at its path")
	}
	if err := os.Remove(lock.Name()); err != nil {
		t.Fatal(err)
	}
	if isAt(lock) {
		t.Error("a removed file is at its path")
	}
	other, err := openLock(dir, aliveLock)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if isAt(lock) {
		t.Error("another file is taken for the removed one")
	}
	if _, err := openLock(filepath.Join(dir, "gone"), aliveLock); !errors.Is(err, errEnding) {
		t.Errorf("%v, want %v", err, errEnding)
	}
	link := filepath.Join(dir, keeperLock)
	if err := os.Symlink(lock.Name(), link); err != nil {
		t.Fatal(err)
	}
	if _, err := openLock(dir, keeperLock); err == nil || errors.Is(err, errEnding) {
		t.Errorf("a link is opened: %v", err)
	}
}

// Folders whose locks no process has are removed, and so are those that a killed keeper was removing. Others stay, in
// both places.
func TestRemoveStale(t *testing.T) {
	root := newRoot(t)
	all := places(root)[:2]
	for _, place := range all {
		for _, name := range []string{"dead", "alive", "kept", "gone" + removing + "7"} {
			if err := os.MkdirAll(filepath.Join(place, name, ranksFolder), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for name, how := range map[string]int{"alive/" + aliveLock: unix.LOCK_SH, "kept/" + keeperLock: unix.LOCK_EX} {
			lock, err := openLock(filepath.Dir(filepath.Join(place, name)), filepath.Base(name))
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			if err := unix.Flock(int(lock.Fd()), how); err != nil {
				t.Fatal(err)
			}
		}
	}
	removeStale(root)
	for _, place := range all {
		if got := names(t, place); got != "alive kept" {
			t.Errorf("left in %s: %s", place, got)
		}
	}
}

// The folders and files of other users in a base are neither counted nor looked at.
func TestRemoveStaleBesideStrangers(t *testing.T) {
	root := newRoot(t)
	place := places(root)[0]
	for i := range 2 * maxStale {
		if err := os.Mkdir(fmt.Sprintf("%s-0000%04d", place, i), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(place, "dead", ranksFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	removeStale(root)
	if _, err := os.Stat(place); err == nil {
		t.Errorf("left: %s", names(t, place))
	}
}

func TestRegistered(t *testing.T) {
	dir := base(t)
	ranks := filepath.Join(dir, ranksFolder)
	self, err := proc.Current()
	if err != nil {
		t.Fatal(err)
	}
	dead := exec.Command("true")
	if err := errors.Join(os.Mkdir(ranks, 0o700), dead.Run()); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		strconv.Itoa(self.PID): strconv.FormatUint(self.Start, 10), strconv.Itoa(dead.Process.Pid): "1", "1": "77", "no-number": "1",
	} {
		if err := os.WriteFile(filepath.Join(ranks, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := registered(dir); len(got) != 1 || got[0] != self {
		t.Errorf("%v, want %v", got, self)
	}
	if left, _ := os.ReadDir(ranks); len(left) != 2 {
		t.Errorf("files: %v, want the living rank's and the one that is none of ours", left)
	}
}

// A folder is removed and made again by other ranks before a rank has its lock. The rank tries again, and does not join
// the removed one.
func TestEnterARemovedFolder(t *testing.T) {
	dir := filepath.Join(base(t), "step")
	step := step{Job: 7, key: "step"}
	make := func() {
		if err := os.MkdirAll(filepath.Join(dir, ranksFolder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	make()
	alive, err := openLock(dir, aliveLock)
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	removeFolder(dir)
	make()
	keeper, err := openLock(dir, keeperLock) // the other ranks' keeper runs
	if err != nil {
		t.Fatal(err)
	}
	defer keeper.Close()
	if err := unix.Flock(int(keeper.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	m := &member{Store: lease.ReadPrivate(dir, "boot"), dir: dir, alive: alive}
	if err := m.enter(ctx, step); !errors.Is(err, errEnding) {
		t.Errorf("%v, want %v", err, errEnding)
	}
}
