// SPDX-License-Identifier: Apache-2.0

package own

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/slurm"
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

func TestBases(t *testing.T) {
	for dir, want := range map[string]string{"": "/tmp /dev/shm", "/scratch/1/": "/scratch/1 /tmp /dev/shm", "relative": "/tmp /dev/shm"} {
		if got := strings.Join(bases(slurm.Env{"TMPDIR": dir}), " "); got != want {
			t.Errorf("TMPDIR=%s: %s, want %s", dir, got, want)
		}
	}
}

// The numbers are those of statfs(2), of Lustre and of GPFS. NFS on some machines comes with a sign.
func TestIsLocal(t *testing.T) {
	for name, c := range map[string]struct {
		kind  int64
		local bool
	}{
		"ext4": {unix.EXT4_SUPER_MAGIC, true}, "tmpfs": {unix.TMPFS_MAGIC, true}, "xfs": {unix.XFS_SUPER_MAGIC, true},
		"overlay": {unix.OVERLAYFS_SUPER_MAGIC, true}, "btrfs with a sign": {unix.BTRFS_SUPER_MAGIC - 1<<32, true},
		"NFS": {unix.NFS_SUPER_MAGIC, false}, "Lustre": {0x0bd00bd0, false}, "GPFS": {0x47504653, false}, "FUSE": {unix.FUSE_SUPER_MAGIC, false},
		"Ceph": {0x00c36400, false}, "SMB": {unix.SMB2_SUPER_MAGIC, false}, "BeeGFS": {0x19830326, false},
	} {
		if got := isLocal(c.kind); got != c.local {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestOpenFolder(t *testing.T) {
	dir := base(t)
	foreign := filepath.Join(dir, "open")
	if err := errors.Join(os.Mkdir(foreign, 0o777), os.Chmod(foreign, 0o777)); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(dir, strings.Repeat("long", 20))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time, the folder is there
		got, err := openFolder("slurm-mps-0-1", []string{"/proc/self", "/nonexistent", foreign, long, dir})
		if want := filepath.Join(dir, "slurm-mps-0-1"); got != want || err != nil {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
	_, err := openFolder("slurm-mps-0-1", []string{"/proc/self", "/nonexistent", foreign, long})
	for _, want := range []string{
		"cannot make a folder for the MPS daemon: cannot use /proc/self: it is not on a local file system (type 0x9fa0): set TMPDIR to a local folder; ",
		"; cannot use /nonexistent: no such file or directory; ", "cannot use " + foreign + ": another user could remove files from it; ", "long",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

func TestCheckOwn(t *testing.T) {
	dir := base(t)
	path := filepath.Join(dir, "x")
	const another = "another user made it"
	for name, c := range map[string]struct {
		make func() error
		want string
	}{
		"ours":       {func() error { return os.Mkdir(path, 0o700) }, ""},
		"none":       {func() error { return nil }, errEnding.Error()},
		"a file":     {func() error { return os.WriteFile(path, nil, 0o600) }, another},
		"a link":     {func() error { return os.Symlink(dir, path) }, another},
		"readable":   {func() error { return os.Mkdir(path, 0o755) }, another},
		"writable":   {func() error { return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o720)) }, another},
		"a stranger": {func() error { return errors.Join(os.Mkdir(path, 0o700), os.Chown(path, 2001, 2001)) }, another},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "a stranger" && os.Geteuid() != 0 {
				t.Skip("only root can give files away")
			}
			defer os.RemoveAll(path)
			if err := c.make(); err != nil {
				t.Fatal(err)
			}
			err := checkOwn(path)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
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

// Folders whose locks no process has are removed, and so are those that a killed keeper was removing. Others stay.
func TestRemoveStale(t *testing.T) {
	dir := base(t)
	prefix := filepath.Join(dir, "slurm-mps-"+strconv.Itoa(os.Getuid())+"-")
	for _, name := range []string{"dead", "alive", "kept", "gone" + removing + "7"} {
		if err := os.MkdirAll(filepath.Join(prefix+name, ranksFolder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]os.FileMode{prefix + "open": 0o755, filepath.Join(dir, "slurm-mps-77777-dead"): 0o700} {
		if err := os.Mkdir(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, how := range map[string]int{"alive/" + aliveLock: unix.LOCK_SH, "kept/" + keeperLock: unix.LOCK_EX} {
		lock, err := openLock(filepath.Dir(prefix+name), filepath.Base(name))
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if err := unix.Flock(int(lock.Fd()), how); err != nil {
			t.Fatal(err)
		}
	}
	removeStale(dir)
	left, _ := os.ReadDir(dir)
	var names []string
	for _, entry := range left {
		names = append(names, strings.TrimPrefix(filepath.Join(dir, entry.Name()), prefix))
	}
	if got, want := strings.Join(names, " "), "alive kept open "+filepath.Join(dir, "slurm-mps-77777-dead"); got != want {
		t.Errorf("left: %s, want %s", got, want)
	}
}

func TestRegistered(t *testing.T) {
	dir := base(t)
	ranks := filepath.Join(dir, ranksFolder)
	self, err := site.CurrentProcess()
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

// A folder that another start removes at the same moment is made again at the same place, because the other ranks of the
// step are there.
func TestOpenFolderBesideARemoval(t *testing.T) {
	first, second := base(t), base(t)
	dir := filepath.Join(first, "slurm-mps-0-1")
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				removeFolder(dir)
			}
		}
	}()
	defer func() { close(stop); <-ended }()
	met := 0
	for range 20_000 {
		got, err := openFolder("slurm-mps-0-1", []string{first, second})
		if got != dir || err != nil && !errors.Is(err, errEnding) {
			t.Fatalf("%s, %v", got, err)
		}
		if err != nil {
			met++
		}
	}
	if met == 0 {
		t.Skip("no removal has met a start")
	}
}
