// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// newRoot is a folder with the bases of places, as a node has them.
func newRoot(t *testing.T) string {
	t.Helper()
	root := base(t)
	for _, dir := range bases(root) {
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o777|os.ModeSticky)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// names are the entries of a folder, in order.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return strings.Join(all, " ")
}

// open opens the folder of a step, as Join does.
func open(t *testing.T, step step) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		dir, err := openFolder(ctx, step)
		if !errors.Is(err, errEnding) || ctx.Err() != nil {
			return dir, err
		}
	}
}

// opens is open for a step that must have a folder.
func opens(t *testing.T, step step) string {
	t.Helper()
	dir, err := open(t, step)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// without removes the user's key when the test begins and ends.
func withoutKey(t *testing.T) {
	t.Helper()
	remove := func() {
		if key, _, err := readSecret(); err == nil {
			_, _ = unix.KeyctlInt(unix.KEYCTL_UNLINK, key, unix.KEY_SPEC_USER_KEYRING, 0, 0)
		}
	}
	remove()
	t.Cleanup(remove)
	if _, _, err := readSecret(); !errors.Is(err, unix.ENOKEY) {
		t.Skipf("this machine has no keyring: %v", err)
	}
}

// give makes a folder of another user.
func give(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give folders away")
	}
	if err := errors.Join(os.Mkdir(path, 0o700), os.Chown(path, 2002, 2002)); err != nil {
		t.Fatal(err)
	}
}

// Steps have a folder each, in the first base that can have it, and no variable decides which.
func TestOpenFolder(t *testing.T) {
	root := newRoot(t)
	first := step{Root: root, Job: 7, key: "1"}
	t.Setenv("TMPDIR", base(t))
	place := fmt.Sprintf("%s/tmp/slurm-mps-%d", root, os.Getuid())
	for range 2 { // the second time, the folder is there
		if got := opens(t, first); got != place+"/1" {
			t.Errorf("%s, want %s/1", got, place)
		}
	}
	if got := opens(t, step{Root: root, Job: 7, key: "2"}); got != place+"/2" {
		t.Errorf("%s, want %s/2", got, place)
	}
	removeFolder(place + "/1")
	if got := names(t, place); got != "2" {
		t.Errorf("left: %s", got)
	}
	removeFolder(place + "/2")
	if got := names(t, filepath.Dir(place)); got != "" {
		t.Errorf("left: %s", got)
	}
}

// A base from which another user could remove our folder is not used, nor one of another file system or a path that is
// too long.
func TestBasesThatAreNotUsed(t *testing.T) {
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
	} {
		t.Run(name, func(t *testing.T) {
			if name == "of another" && os.Geteuid() != 0 {
				t.Skip("only root can give folders away")
			}
			root := newRoot(t)
			step := step{Root: root, Job: 7, key: "1"}
			tmp, shm := bases(root)[0], bases(root)[1]
			if err := c.spoil(tmp); err != nil {
				t.Fatal(err)
			}
			if dir := opens(t, step); !strings.HasPrefix(dir, shm+"/") {
				t.Errorf("the folder is %s", dir)
			} else {
				removeFolder(dir)
			}
			if err := c.spoil(shm); err != nil {
				t.Fatal(err)
			}
			_, err := open(t, step)
			want := "cannot make a folder for the MPS daemon: cannot use " + tmp + ": "
			if text := fmt.Sprint(err); !strings.HasPrefix(text, want) || !strings.Contains(text, c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
	long := filepath.Join(base(t), strings.Repeat("long", 20))
	if err := os.MkdirAll(bases(long)[0], 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := open(t, step{Root: long, Job: 7, key: "1"})
	if !strings.Contains(fmt.Sprint(err), "a socket's path has at most 106") {
		t.Errorf("a long path: %v", err)
	}
}

// Another user takes each name that is known. The step still has a folder, and all of its ranks find that one, also
// when the names are free again.
func TestNamesThatAnotherUserTakes(t *testing.T) {
	withoutKey(t)
	root := newRoot(t)
	step := step{Root: root, Job: 7, key: "1"}
	for round := range 3 {
		var taken []string
		for _, place := range places(root) {
			give(t, place)
			taken = append(taken, place)
		}
		dir := opens(t, step)
		if again := opens(t, step); again != dir || filepath.Dir(filepath.Dir(dir)) != bases(root)[0] {
			t.Errorf("round %d: %s, then %s", round, dir, again)
		}
		for _, place := range taken {
			if err := os.Remove(place); err != nil {
				t.Fatal(err)
			}
		}
		if again := opens(t, step); again != dir {
			t.Errorf("round %d: the names are free again: %s, want %s", round, again, dir)
		}
		removeFolder(dir)
	}
	give(t, places(root)[0])
	if got, want := opens(t, step), bases(root)[1]; !strings.HasPrefix(got, want+"/") {
		t.Errorf("one name is taken: %s, want it below %s", got, want)
	}
}

// Many ranks find all names taken at once. The secret of the first one stays, although its folder is not made yet.
func TestASecretThatIsNotUsedYet(t *testing.T) {
	withoutKey(t)
	root := newRoot(t)
	for _, place := range places(root) {
		give(t, place)
	}
	var first string
	for rank := range 3 {
		if err := renewSecret(root); err != nil {
			t.Fatal(err)
		}
		_, secret, err := readSecret()
		if rank == 0 {
			first = secret
		}
		if err != nil || secret != first {
			t.Errorf("rank %d has another secret than the first: %v", rank, err)
		}
	}
}

// In a user namespace, as in a container without root, root's folders have no known owner. With a pid namespace, too, the
// reason of the refusal is the container.
func TestABaseInAUserNamespace(t *testing.T) {
	if dir := flag.Arg(0); dir != "" {
		if err := checkBase(dir); err != nil {
			t.Error(err)
		}
		return
	}
	if os.Geteuid() != 0 || proc.InOwnNamespace("pid") {
		t.Skip("only root can become another user, and a pid namespace is not served")
	}
	user := []syscall.SysProcIDMap{{ContainerID: 2001, HostID: 2001, Size: 1}}
	for flags, want := range map[uintptr]string{
		syscall.CLONE_NEWUSER: "PASS", syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID: "start mpirun-wrap outside of the container",
	} {
		in := exec.Command("/proc/self/exe", "-test.run=^TestABaseInAUserNamespace$", "/tmp")
		in.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, UidMappings: user, GidMappings: user,
			Credential: &syscall.Credential{Uid: 2001, Gid: 2001, NoSetGroups: true}}
		if out, err := in.CombinedOutput(); !strings.Contains(string(out), want) {
			t.Errorf("%v: %s, want %s", err, out, want)
		}
	}
}

// /tmp has no inode or no space when the first rank starts. The next rank has the same folder, although another step is in /tmp by
// now.
func TestABaseThatIsFullForAMoment(t *testing.T) {
	for _, options := range []string{"nr_inodes=1", "nr_inodes=2", "nr_inodes=3", "size=16k"} { // 3: for the step's folder
		t.Run(options, func(t *testing.T) { fullForAMoment(t, options) })
	}
}

func fullForAMoment(t *testing.T, options string) {
	root := newRoot(t)
	first := step{Root: root, Job: 7, key: "1"}
	tmp := bases(root)[0]
	if err := unix.Mount("none", tmp, "tmpfs", 0, options+",mode=1777"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	dir := opens(t, first)
	if err := unix.Unmount(tmp, 0); err != nil {
		t.Fatal(err)
	}
	if again := opens(t, first); again != dir || !strings.HasPrefix(dir, bases(root)[1]) {
		t.Errorf("%s, then %s", dir, again)
	}
	if other := opens(t, step{Root: root, Job: 7, key: "2"}); !strings.HasPrefix(other, tmp) {
		t.Errorf("another step: %s", other)
	}
	if again := opens(t, first); again != dir {
		t.Errorf("%s, then %s", dir, again)
	}
}

// Ranks start while the step's folder is removed, and while another user takes /tmp's name and leaves it. At no time
// has the step two folders.
func TestOneFolder(t *testing.T) {
	root := newRoot(t)
	step := step{Root: root, Job: 7, key: "1"}
	name := places(root)[0]
	stranger := filepath.Join(bases(root)[0], "stranger")
	give(t, stranger)
	stop := make(chan struct{})
	var all sync.WaitGroup
	forever := func(act func()) {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					act()
				}
			}
		})
	}
	forever(func() { // it has the name for a moment
		if unix.Renameat2(unix.AT_FDCWD, stranger, unix.AT_FDCWD, name, unix.RENAME_NOREPLACE) == nil {
			time.Sleep(time.Millisecond)
			_ = os.Rename(name, stranger)
		}
	})
	var held sync.RWMutex // a keeper removes the folder when no rank is there
	used := map[string]int{}
	var mutex sync.Mutex
	for range 8 {
		forever(func() {
			held.RLock()
			defer held.RUnlock()
			dir, err := open(t, step)
			if err != nil {
				t.Error(err)
			}
			mutex.Lock()
			defer mutex.Unlock()
			if used[dir]++; len(used) > 1 {
				t.Errorf("the step has %v", used)
			}
		})
	}
	rounds := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); rounds++ {
		held.Lock()
		for dir := range used {
			removeFolder(dir)
		}
		clear(used)
		held.Unlock()
		time.Sleep(time.Millisecond)
	}
	close(stop)
	all.Wait()
	t.Logf("%d rounds", rounds)
}

// A place is removed and made again while a process waits for its lock. That lock does not count.
func TestALockedPlaceIsRemoved(t *testing.T) {
	root := newRoot(t)
	place := places(root)[0]
	if err := makeOwn(place); err != nil {
		t.Fatal(err)
	}
	holder, err := lockPlaces(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		locked, err := lockPlaces(t.Context(), root)
		locked.close()
		ended <- err
	}()
	opened := func() (count int) {
		for _, fd := range strings.Fields(names(t, "/proc/self/fd")) {
			if target, _ := os.Readlink("/proc/self/fd/" + fd); target == place {
				count++
			}
		}
		return count
	}
	for limit := time.Now().Add(time.Minute); opened() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("no process waits")
		}
	}
	if err := errors.Join(os.Remove(place), makeOwn(place)); err != nil {
		t.Fatal(err)
	}
	for _, file := range holder {
		file.Close()
	}
	if err := <-ended; !errors.Is(err, errEnding) {
		t.Errorf("%v, want %v", err, errEnding)
	}
}

// What was made beside a removal is made again.
func TestOpenFolderBesideARemoval(t *testing.T) {
	root := newRoot(t)
	step := step{Root: root, Job: 7, key: "1"}
	dir := filepath.Join(places(root)[0], "1")
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
	for range 2000 {
		if got, err := openFolder(t.Context(), step); err != nil && !errors.Is(err, errEnding) || err == nil && got != dir {
			t.Fatalf("%s, %v", got, err)
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
		"NFS": {unix.NFS_SUPER_MAGIC, false}, "Lustre": {0x0bd00bd0, false}, "GPFS": {0x47504653, false},
		"FUSE": {unix.FUSE_SUPER_MAGIC, false},
		"Ceph": {0x00c36400, false}, "SMB": {unix.SMB2_SUPER_MAGIC, false}, "BeeGFS": {0x19830326, false},
	} {
		if got := isLocal(c.kind); got != c.local {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestCheckOwn(t *testing.T) {
	dir := base(t)
	path := filepath.Join(dir, "x")
	another := errTaken.Error()
	for name, c := range map[string]struct {
		make func() error
		want string
	}{
		"ours":       {func() error { return os.Mkdir(path, 0o700) }, ""},
		"none":       {func() error { return nil }, errEnding.Error()},
		"a file":     {func() error { return os.WriteFile(path, nil, 0o600) }, another},
		"a link":     {func() error { return os.Symlink(dir, path) }, another},
		"readable":   {func() error { return os.Mkdir(path, 0o755) }, another},
		"closed":     {func() error { return os.Mkdir(path, 0o000) }, another},
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
