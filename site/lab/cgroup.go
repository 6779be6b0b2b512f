// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// slice is where Slurm keeps its step daemons with version 2.
const slice = cgroupRoot + "/system.slice"

// version2 reports whether this machine has control groups version 2 alone.
func version2() bool {
	_, err := os.Stat(cgroupRoot + "/cgroup.controllers")
	return err == nil
}

// checkGroups returns an error if this machine lacks the control groups that ConstrainDevices needs. Without systemd, no
// one has made version 2's slice, which Slurm takes for granted.
func checkGroups() error {
	if version2() {
		return makeSlice()
	}
	for _, controller := range []string{"freezer", "devices"} {
		path := filepath.Join(cgroupRoot, controller, "release_agent")
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("cannot constrain devices: no cgroup v1 controller %q is mounted at %s", controller, filepath.Dir(path))
		}
	}
	return nil
}

// makeSlice makes the slice, with all controllers that the machine has.
func makeSlice() error {
	err := os.MkdirAll(slice, 0o755)
	for _, folder := range []string{cgroupRoot, slice} {
		controllers, unread := os.ReadFile(filepath.Join(folder, "cgroup.controllers"))
		err = errors.Join(err, unread)
		for _, name := range strings.Fields(string(controllers)) {
			err = errors.Join(err, os.WriteFile(filepath.Join(folder, "cgroup.subtree_control"), []byte("+"+name), 0))
		}
	}
	return err
}

// removeGroups removes the nodes' control groups, because Slurm does not remove them. A group stays busy until its
// last process has been reaped. So removeGroups tries again until the context ends.
func removeGroups(ctx context.Context, names []string) error {
	for _, name := range names {
		tops, err := filepath.Glob(filepath.Join(cgroupRoot, "*", "slurm_"+name))
		if err != nil {
			return err
		}
		if scope := filepath.Join(slice, name+"_slurmstepd.scope"); version2() {
			_ = os.WriteFile(scope+"/cgroup.kill", []byte("1"), 0) // Slurm keeps a process in it, for systemd
			tops = append(tops, scope)
		}
		for _, top := range tops {
			if err := removeGroup(ctx, top); err != nil {
				return err
			}
		}
	}
	return nil
}

func removeGroup(ctx context.Context, top string) error {
	var last error
	err := until(ctx, 10*time.Millisecond, func() (bool, error) {
		last = rmdirTree(top)
		return !errors.Is(last, unix.EBUSY), nil
	})
	if last != nil {
		return fmt.Errorf("cannot remove the control group %s: %w", top, last)
	}
	return err
}

// rmdirTree removes a tree of control groups, leaves first. The kernel removes the files of a group with their
// directory.
func rmdirTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := rmdirTree(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
