// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
	"golang.org/x/sys/unix"
)

// openedBy finds the driver's files by their identity, not by their paths or numbers.
func TestOpenedBy(t *testing.T) {
	r := stillGuard(t, 0)
	elsewhere := t.TempDir()
	for link, name := range map[string]string{"hard": "nvidia-uvm", "nvidiactl": "nvidia0"} {
		must.OK(t, os.Link(filepath.Join(r.folder, name), filepath.Join(elsewhere, link)))
	}
	must.OK(t, os.WriteFile(filepath.Join(elsewhere, "nvidia-uvm"), nil, 0o600))
	c := r.child("exec 3<nvidia1 4<nvidiactl 5<" + elsewhere + "/hard 6<" + elsewhere + "/nvidia-uvm 7<" + elsewhere + "/nvidiactl 8<nvidia-uvm; " + waits)
	got, err := r.kernel.openedBy(c.Process.Pid, maxDescriptors)
	if err != nil || !slices.Equal(got.control, []int{4}) || !slices.Equal(got.memory, []int{5, 8}) || got.gpus != 1<<0|1<<1 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := r.kernel.openedBy(c.Process.Pid, 3); err != nil || got.scanned != 3 || len(got.memory) != 0 {
		t.Errorf("of three descriptors: %+v, %v", got, err)
	}
	c.kill()
	if _, err := r.kernel.openedBy(c.Process.Pid, maxDescriptors); err == nil {
		t.Error("a process that is gone has files")
	}
}

// A character device is identified by its number and not by its folder, because a container has its own files.
func TestADeviceIsKnownByItsNumber(t *testing.T) {
	r := stillGuard(t, 0)
	const full, zero = 1<<8 | 7, 1<<8 | 5 // /dev/full and /dev/zero
	elsewhere := t.TempDir()
	for path, number := range map[string]int{
		filepath.Join(r.folder, "nvidia-uvm"): full, filepath.Join(elsewhere, "container"): full, filepath.Join(elsewhere, "other"): zero,
	} {
		_ = os.Remove(path)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, number); err != nil {
			t.Skipf("no device files can be made here: %v", err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Skipf("device files cannot be opened here: %v", err)
		}
		file.Close()
	}
	c := r.child("exec 4<nvidiactl 5<" + elsewhere + "/container 6<" + elsewhere + "/other 7</dev/full; " + waits)
	r.kernel.findDevices()
	got, err := r.kernel.openedBy(c.Process.Pid, maxDescriptors)
	must.Hold(t, err == nil && slices.Equal(got.memory, []int{5, 7}) && slices.Equal(got.control, []int{4}),
		"%+v, %v", got, err)
	r.scanOne(c.Process.Pid)
	if c := r.living[c.Process.Pid]; c == nil || len(c.files) != 3 {
		t.Errorf("held: %+v", c)
	}
}

// A descriptor that has become another file when it is duplicated is closed and not held.
func TestADescriptorThatChanges(t *testing.T) {
	r := stillGuard(t, 0)
	other := filepath.Join(t.TempDir(), "secret")
	must.OK(t, os.WriteFile(other, nil, 0o600))
	c := r.child("exec 5<nvidiactl 6<" + other + " 7<nvidia-uvm; " + waits)
	r.take(c.Process.Pid, opened{thread: c.Process.Pid, control: []int{5, 7}, memory: []int{5, 6, 7, 99}}, false)
	held := r.living[c.Process.Pid]
	must.Have(t, held != nil && len(held.files) == 2 && held.files[0].number == 5 && held.files[1].number == 7,
		"held: %+v", held)
	if files := testproc.OpenBelow(r.folder); len(files) != 2 || len(testproc.OpenBelow(filepath.Dir(other))) > 0 {
		t.Errorf("open: %q", files)
	}
}

// Files that do not close are limited: after maxStuck of them, no more are taken.
func TestFilesThatDoNotClose(t *testing.T) {
	r := stillGuard(t, 0)
	r.takers.Place = func() (*lease.TakerPlace, error) { return nil, lease.ErrTakers }
	c := r.child(opens + waits)
	r.scanOne(c.Process.Pid)
	if len(r.living) != 0 || r.Guard.state.Unheld != 3 {
		t.Errorf("%+v", r.Guard.state)
	}
}

// The same open files compare as the same, other files as different, and closed files as EBADF.
func TestCompare(t *testing.T) {
	r := stillGuard(t, 0)
	file := must.Get(os.Open(filepath.Join(r.folder, "nvidia-uvm")))(t)
	defer file.Close()
	fd, self := int(file.Fd()), os.Getpid()
	dup := must.Get(unix.Dup(fd))(t)
	defer unix.Close(dup)
	for _, c := range []struct {
		number int
		want   string
	}{{dup, "true <nil>"}, {r.events.epoll, "false <nil>"}, {100_000, fmt.Sprint(false, " ", unix.EBADF)}} {
		same, err := r.kernel.compare(fd, self, c.number)
		must.Equal(t, fmt.Sprintf("%d", c.number), fmt.Sprint(same, " ", err), c.want)
	}
}

// A user who was given a control group makes any number of groups there: some of them are read. Of a usual group, all
// are, beside the kernel's files.
func TestMembersOfManyGroups(t *testing.T) {
	usual, many := t.TempDir(), t.TempDir()
	for n := range 4000 {
		folders := []string{filepath.Join(many, fmt.Sprint(n))}
		if n < maxGroups-1 {
			folders = append(folders, filepath.Join(usual, fmt.Sprint(n)))
		}
		for _, folder := range folders {
			err := os.Mkdir(folder, 0o755)
			if n < maxGroups && err == nil {
				err = os.WriteFile(filepath.Join(folder, "cgroup.procs"), fmt.Appendln(nil, n+1), 0o600)
			}
			if n < 100 && err == nil {
				err = os.WriteFile(filepath.Join(usual, fmt.Sprint("memory.", n)), nil, 0o600)
			}
			must.OK(t, err)
		}
	}
	if pids := slices.Compact(slices.Sorted(members(usual))); len(pids) != maxGroups-1 {
		t.Errorf("%d processes of %d", len(pids), maxGroups-1)
	}
	allocated := testing.AllocsPerRun(1, func() { _ = slices.Collect(members(many)) })
	must.Hold(t, allocated <= 9000, "%.0f allocations for 4,000 groups", allocated)
}
