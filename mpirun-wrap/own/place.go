// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// The folders of a user's steps are in a folder that only this user can enter: slurm-mps-UID in /tmp or /dev/shm. All
// processes of a step find it, because its path depends on no variable. Another user may have made that name. Then the
// name is slurm-mps-UID-SECRET, and no other user can know the secret before the folder exists.
//
// A step must have one folder, also if its ranks do not find the same place in order: /tmp may be full for a moment. So
// a rank looks for the step in all places before it makes a folder, and holds the locks of all of them.

// bases are the folders that may have the user's one.
func bases(root string) []string {
	return []string{filepath.Join(root, "/tmp"), filepath.Join(root, "/dev/shm")}
}

// places are the paths of the user's folder, in the order in which every process tries them.
func places(root string) (all []string) {
	all = placesOf(root, "")
	if _, secret, err := readSecret(); err == nil {
		all = append(all, placesOf(root, "-"+secret)...)
	}
	return all
}

// placesOf are the places whose names end so.
func placesOf(root, ending string) (all []string) {
	for _, base := range bases(root) {
		all = append(all, filepath.Join(base, "slurm-mps-"+strconv.Itoa(os.Getuid())+ending))
	}
	return all
}

// ours are the places that exist and are this user's.
func ours(root string) []string {
	return slices.DeleteFunc(places(root), func(place string) bool {
		return checkOwn(place) != nil || checkBase(filepath.Dir(place)) != nil
	})
}

// openFolder finds the folder of a step, or makes it.
func openFolder(ctx context.Context, step step) (string, error) {
	if dir := findFolder(step); dir != "" {
		return dir, makeFolder(dir)
	}
	dir, err := step.newFolder(ctx, places(step.Root))
	if errors.Is(err, errTaken) {
		if failed := renewSecret(step.Root); failed != nil {
			return "", fmt.Errorf("%w; %w", err, failed)
		}
		dir, err = step.newFolder(ctx, places(step.Root))
	}
	return dir, err
}

// findFolder returns the folder that a step has, "" for none.
func findFolder(step step) string {
	for _, place := range ours(step.Root) {
		if dir := filepath.Join(place, step.key); checkOwn(dir) == nil {
			return dir
		}
	}
	return ""
}

// newFolder makes the folder of a step in the first of some places that can have it.
func (s step) newFolder(ctx context.Context, places []string) (string, error) {
	var failed error
	for _, place := range places {
		dir, err := s.makeIn(ctx, place)
		if err == nil || errors.Is(err, errEnding) || ctx.Err() != nil { // the caller tries again
			return dir, err
		}
		failed = errors.Join(failed, err)
	}
	return "", fmt.Errorf("cannot make a folder for the MPS daemon: %w", failed)
}

// makeIn makes the folder of a step in a place, unless the step has one by now.
func (s step) makeIn(ctx context.Context, place string) (string, error) {
	dir := filepath.Join(place, s.key)
	err := checkBase(filepath.Dir(place))
	if err == nil {
		err = mps.CheckPath(filepath.Join(dir, "jobs", strconv.FormatUint(uint64(s.Job), 10), "0", "pipe"))
	}
	if err == nil {
		err = makeOwn(place)
	}
	if err != nil {
		return "", err
	}
	locked, err := lockPlaces(ctx, s.Root)
	defer locked.close()
	if err != nil {
		return "", err
	}
	if found := findFolder(s); found != "" {
		return found, makeFolder(found)
	}
	above := locked[place]
	if above == nil {
		return "", errEnding
	}
	// Not by its path, which may be another folder by now.
	if err := unix.Mkdirat(int(above.Fd()), s.key, 0o700); err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) {
			return "", errEnding
		}
		return "", fmt.Errorf("cannot make %s: %w", dir, err)
	}
	if err = makeFolder(dir); err == nil {
		err = checkSpace(dir)
	}
	if err != nil {
		removeFolder(dir) // so that another place can have it
	}
	return dir, err
}

// stepSize is more than the files of a step have at its start.
const stepSize = 64 << 10

// checkSpace checks that the file system of a folder has space for a step, by writing as much.
func checkSpace(dir string) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil || limit.Cur < stepSize {
		return nil // the write would end this process
	}
	path := filepath.Join(dir, "space")
	defer os.Remove(path)
	err := os.WriteFile(path, make([]byte, stepSize), 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return errEnding
	}
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", dir, errors.Unwrap(err))
	}
	return nil
}

// lockedPlaces are open folders, by path. A process holds their locks.
type lockedPlaces map[string]*os.File

// lockPlaces locks all places of this user. It locks them in the order of all processes. The error is errEnding if the
// places have changed since.
func lockPlaces(ctx context.Context, root string) (lockedPlaces, error) {
	locked := lockedPlaces{}
	for _, place := range ours(root) {
		fd, err := unix.Open(place, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return locked, errEnding
		}
		locked[place] = os.NewFile(uintptr(fd), place)
		if err := osfile.Flock(ctx, locked[place]); err != nil {
			return locked, fmt.Errorf("cannot lock %s: %w", place, err)
		}
	}
	now := ours(root)
	changed := func(place string) bool { return locked[place] == nil || !isAt(locked[place]) }
	if len(now) != len(locked) || slices.ContainsFunc(now, changed) {
		return locked, errEnding
	}
	return locked, nil
}

// close unlocks the places. It removes those that are empty.
func (l lockedPlaces) close() {
	for place, file := range l {
		_ = unix.Rmdir(place)
		file.Close()
	}
}

// makeOwn makes a folder that only this user can enter, or checks that an existing one is.
func makeOwn(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot make %s: %w", dir, errors.Unwrap(err))
	}
	return checkOwn(dir)
}

// errTaken means that another user has made a path of ours.
var errTaken = errors.New("another user made it")

// checkOwn checks that a path is a folder of this user, which no other user can enter.
func checkOwn(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return errEnding
	}
	if us := os.Geteuid(); st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != uint32(us) || st.Mode&0o777 != 0o700 {
		const form = "cannot use %s: it is not a folder of uid %d with mode 0700, and uid %d owns it: %w"
		return fmt.Errorf(form, dir, us, st.Uid, errTaken)
	}
	return nil
}

// localFileSystems are file systems of one node. On a network's, such as NFS, Lustre or GPFS, nodes would meet in one
// folder, and sockets and locks may not work.
var localFileSystems = []int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
	unix.RAMFS_MAGIC, unix.F2FS_SUPER_MAGIC, 0x2fc12fc1, // ZFS
}

// isLocal reports whether a type of file systems is in localFileSystems. statfs has it as a signed number on some
// machines.
func isLocal(kind int64) bool { return slices.Contains(localFileSystems, kind&0xffffffff) }

// checkBase checks that a folder is on this node, and that no other user can remove our folder from it.
func checkBase(base string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(base, &fs); err != nil {
		return fmt.Errorf("cannot use %s: %w", base, err)
	}
	if !isLocal(int64(fs.Type)) {
		return fmt.Errorf("cannot use %s: it is not on a local file system (type %#x)", base, fs.Type)
	}
	info, err := os.Stat(base)
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", base, errors.Unwrap(err))
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	shared := info.Mode().Perm()&0o022 != 0
	container := owner == osfile.Unmapped && proc.InOwnNamespace("user")
	if container && proc.InOwnNamespace("pid") { // a rank would have a daemon of its own in silence
		return fmt.Errorf("cannot use %s in a container with users and processes of its own: its ranks do not see those "+
			"of other containers: start mpirun-wrap outside of the container", base)
	}
	trusted := owner == 0 || owner == uint32(os.Getuid()) || container
	if !trusted || shared && info.Mode()&os.ModeSticky == 0 {
		return fmt.Errorf("cannot use %s: another user could remove files from it", base)
	}
	return nil
}

// The secret is in the kernel's keyring of this user, which no other user can read or change. It is made only if
// another user has taken all other names, and stays until the node boots.
const (
	keyType, keyName = "user", "slurm-mps"
	keyPermissions   = 0x3f3f0000 // all for its owner, nothing for others
	secretBytes      = 4
)

// readSecret returns the user's key and the secret in it. A user namespace has a keyring of its own, which processes
// outside of it do not see.
func readSecret() (key int, secret string, err error) {
	if proc.InOwnNamespace("user") {
		return 0, "", errors.New("cannot use the user's keyring in a user namespace")
	}
	if key, err = unix.KeyctlSearch(unix.KEY_SPEC_USER_KEYRING, keyType, keyName, 0); err != nil {
		return 0, "", fmt.Errorf("cannot find key %s: %w", keyName, err)
	}
	text := make([]byte, 2*secretBytes)
	n, err := unix.KeyctlBuffer(unix.KEYCTL_READ, key, text, 0)
	if err == nil && n != len(text) {
		err = errors.New("its length is wrong")
	}
	if err != nil {
		return key, "", fmt.Errorf("cannot read key %s: %w", keyName, err)
	}
	return key, string(text), nil
}

// renewSecret makes a secret if the user has none, or if another user has taken the places that it names.
func renewSecret(root string) error {
	old, secret, err := readSecret()
	// A rank that has just read a secret may be about to make its folder there.
	isTaken := func(place string) bool { return errors.Is(checkOwn(place), errTaken) }
	if err == nil && !slices.ContainsFunc(placesOf(root, "-"+secret), isTaken) {
		return nil
	}
	if err != nil && !errors.Is(err, unix.ENOKEY) {
		return err
	}
	if old != 0 {
		_, _ = unix.KeyctlInt(unix.KEYCTL_UNLINK, old, unix.KEY_SPEC_USER_KEYRING, 0, 0) // another process may have done it
	}
	return addSecret()
}

// addSecret adds a key with a new secret, unless another process of the user has done it.
func addSecret() error {
	runtime.LockOSThread() // a thread has the keyring in which the key is made
	defer runtime.UnlockOSThread()
	random := make([]byte, secretBytes)
	if _, err := unix.Getrandom(random, 0); err != nil {
		return fmt.Errorf("cannot make key %s: %w", keyName, err)
	}
	key, err := unix.AddKey(keyType, keyName, []byte(hex.EncodeToString(random)), unix.KEY_SPEC_THREAD_KEYRING)
	if err == nil {
		err = unix.KeyctlSetperm(key, keyPermissions)
	}
	if err == nil {
		// Since Linux 5.3. KEYCTL_MOVE_EXCL fails if the keyring has such a key.
		_, err = unix.KeyctlInt(unix.KEYCTL_MOVE, key, unix.KEY_SPEC_THREAD_KEYRING, unix.KEY_SPEC_USER_KEYRING, unix.KEYCTL_MOVE_EXCL)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("cannot make key %s: %w", keyName, err)
	}
	return nil
}
