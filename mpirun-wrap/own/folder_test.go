// SPDX-License-Identifier: Apache-2.0

package own

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// base is a short folder of this user that no other user can write to.
func base(t *testing.T) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("/tmp", "own"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newRoot is a folder with the bases, as a node has them.
func newRoot(t *testing.T) string {
	t.Helper()
	root := base(t)
	for _, dir := range bases(root) {
		must.OK(t, errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o777|os.ModeSticky)))
	}
	return root
}

// A folder is its user's alone, whatever the umask is.
func TestMakeFolder(t *testing.T) {
	for _, mask := range []int{0o022, 0o077, 0o177, 0} {
		old := unix.Umask(mask)
		folder, err := makeFolder(newRoot(t), 7)
		unix.Umask(old)
		if err != nil {
			t.Fatal(err)
		}
		info, err := folder.Stat()
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("umask %o: %v, %v", mask, info.Mode(), err)
		}
		folder.Close()
	}
}

// A base from which another user could remove our folder is not used, nor one of another file system, without space, or
// with a path that is too long.
func TestBasesThatAreNotUsed(t *testing.T) {
	full := func(options string) func(tmp string) error {
		return func(tmp string) error {
			t.Cleanup(func() { _ = unix.Unmount(tmp, 0) })
			return unix.Mount("none", tmp, "tmpfs", 0, options+",mode=1777")
		}
	}
	for name, c := range map[string]struct {
		spoil func(tmp string) error
		want  string
	}{
		"none":       {os.Remove, "no such file or directory"},
		"not sticky": {func(tmp string) error { return os.Chmod(tmp, 0o777) }, "another user could remove files from it"},
		"of another": {func(tmp string) error { return errors.Join(os.Chmod(tmp, 0o755), os.Chown(tmp, 2002, 2002)) },
			"another user could remove files from it"},
		"a network": {func(tmp string) error { return errors.Join(os.Remove(tmp), os.Symlink("/proc/self", tmp)) },
			"it is not on a local file system (type 0x9fa0)"},
		"no inode":      {full("nr_inodes=1"), "no space left on device"},
		"no inode left": {full("nr_inodes=2"), "no space left on device"},
		"no space":      {full("size=16k"), "no space left on device"},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("only root can give folders away and mount")
			}
			root := newRoot(t)
			tmp, shm := bases(root)[0], bases(root)[1]
			must.OK(t, c.spoil(tmp))
			if dir, err := makeFolder(root, 7); err != nil || !strings.HasPrefix(dir.Name(), shm+"/") {
				t.Errorf("the folder is %v, %v", dir, err)
			} else {
				dir.Close()
				os.RemoveAll(dir.Name())
			}
			must.OK(t, c.spoil(shm))
			_, err := makeFolder(root, 7)
			if text := fmt.Sprint(err); !strings.HasPrefix(text, "cannot make a folder for the MPS daemon: ") || !strings.Contains(text, c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
	long := filepath.Join(base(t), strings.Repeat("long", 20))
	must.OK(t, os.MkdirAll(bases(long)[0], 0o755))
	if _, err := makeFolder(long, 7); !strings.Contains(fmt.Sprint(err), "a socket's path has at most 106") {
		t.Errorf("a long path: %v", err)
	}
}

// In a user namespace, as in a container without root, root's folders have no known owner.
func TestABaseInAUserNamespace(t *testing.T) {
	if dir := flag.Arg(0); dir != "" {
		must.Note(t, checkBase(dir))
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	user := []syscall.SysProcIDMap{{ContainerID: 2001, HostID: 2001, Size: 1}}
	in := exec.Command("/proc/self/exe", "-test.run=^TestABaseInAUserNamespace$", "/tmp")
	in.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: user, GidMappings: user,
		Credential: &syscall.Credential{Uid: 2001, Gid: 2001, NoSetGroups: true}}
	if out, err := in.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A start removes the folders of dead keepers alone: none that is locked, another user's, or of another name.
func TestRemoveStale(t *testing.T) {
	root := newRoot(t)
	tmp := bases(root)[0]
	dead, err1 := makeFolder(root, 7)
	living, err2 := makeFolder(root, 7)
	other, link := filepath.Join(tmp, "slurm-mps-x"), filepath.Join(tmp, prefix()+"link")
	must.OK(t, errors.Join(err1, err2, os.Mkdir(other, 0o700), os.Symlink(other, link)))
	defer living.Close()
	kept := map[string]bool{living.Name(): true, other: true, link: true, dead.Name(): false}
	if strangers := filepath.Join(tmp, prefix()+"theirs"); os.Geteuid() == 0 {
		kept[strangers] = true
		must.OK(t, errors.Join(os.Mkdir(strangers, 0o700), os.Chown(strangers, 2002, 2002)))
	}
	dead.Close()
	removeStale(t.Context(), root, mps.ControlProgram{})
	for path, want := range kept {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s: %v, want it kept: %v", path, err, want)
		}
	}
}

func TestIsLocal(t *testing.T) {
	for kind, want := range map[int64]bool{
		unix.EXT4_SUPER_MAGIC: true, unix.TMPFS_MAGIC: true, 0x2fc12fc1: true, unix.NFS_SUPER_MAGIC: false,
		unix.BTRFS_SUPER_MAGIC: true, int64(int32(-0x6edc97c2)): true, // btrfs where the number is signed
	} {
		must.Equal(t, fmt.Sprintf("%#x", kind), isLocal(kind), want)
	}
}
