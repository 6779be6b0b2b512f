// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// The kernel closes a killed process's files from the highest descriptor down, so a memory file lies above all control
// files.
func TestAboveControl(t *testing.T) {
	open := func() int { return must.Get(unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0))(t) }
	low, control, high := open(), open(), open()
	c := &client{files: []*file{{fd: control, kind: controlFile}, {fd: low, kind: memoryFile}}}
	must.Equal(t, "a descriptor above the control file is moved from", aboveControl(c, high), high)
	got := aboveControl(c, low)
	must.Hold(t, got > control, "control file %d, memory file %d", control, got)
	if _, err := unix.FcntlInt(uintptr(low), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the lower descriptor is still open: %v", err)
	}
	if flags, err := unix.FcntlInt(uintptr(got), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %x, %v", flags, err)
	}
	for _, fd := range []int{control, got, high} {
		unix.Close(fd)
	}
}

// A client's control file lies below its memory files, even if low descriptors are free.
func TestTheOrderOfDuplicates(t *testing.T) {
	r := stillGuard(t, 0)
	var gaps []int
	for range 8 {
		fd := must.Get(unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0))(t)
		gaps = append(gaps, fd)
	}
	c := r.child("exec 5<nvidia-uvm 6<nvidia-uvm 7<nvidiactl 8<nvidiactl; " + waits)
	for _, fd := range gaps {
		unix.Close(fd)
	}
	r.scanOne(c.Process.Pid)
	client := r.living[c.Process.Pid]
	if client == nil {
		t.Fatalf("the process is no client: %+v", r.state)
	}
	control, memory := 0, 1<<30
	for _, f := range client.files {
		if f.kind == controlFile {
			control = max(control, f.fd)
		} else {
			memory = min(memory, f.fd)
		}
	}
	must.Hold(t, control != 0 && memory >= control,
		"the highest control file is %d, the lowest memory file %d", control, memory)
}

func TestMemoryGroup(t *testing.T) {
	k := &kernel{groups: "/groups"}
	for _, c := range []struct{ groups, want string }{
		{"", ""},
		{"0::/a/b\n", "/groups/a/b"},
		{"4:memory:/slurm/job_7\n0::/a/b\n", "/groups/memory/slurm/job_7"},
		{"4:cpu,memory:/x\n", "/groups/memory/x"},
		{"4:cpu,memoryx:/x\n", ""},
		{"4:memory:x\n", ""},
		{"4:memory\n", ""},
		{"0::/../../etc\n", "/etc"}, // outside of the mount: hostShort reads no such folder
	} {
		must.Equal(t, c.groups, k.memoryGroup(proc.ParseGroups(c.groups)), c.want)
	}
}

func TestShortMemory(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		limit, used, needed uint64
		want                bool
	}{
		{64 * gib, 0, 0, false}, {64 * gib, 63 * gib, 0, false}, {64 * gib, 63*gib + 1, 0, true}, {64 * gib, 65 * gib, 0, true},
		{64 * gib, 60 * gib, 4 * gib, false}, {64 * gib, 60 * gib, 4*gib + 1, true},
	} {
		must.Equal(t, fmt.Sprintf("%+v", c), (&memory{limit: c.limit, used: c.used, limited: true}).short(c.needed), c.want)
	}
}

// group makes the folder of a control group with files in it.
func group(t *testing.T, folder string, files map[string]string) {
	t.Helper()
	must.OK(t, os.MkdirAll(folder, 0o755))
	for name, content := range files {
		must.OK(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644))
	}
}

// A group is short of memory if the group, or a group above it, has little memory left.
func TestHostShort(t *testing.T) {
	k := newKernel(Options{})
	k.groups = t.TempDir()
	g := &Guard{Options: Options{UID: uint32(os.Geteuid())}, kernel: k}
	self := strconv.Itoa(os.Getpid())
	of := func(name, limit, used string) string {
		folder := filepath.Join(k.groups, name)
		group(t, folder, map[string]string{"memory.max": limit, "memory.current": used, "cgroup.procs": ""})
		return folder
	}
	of("slurm", "max", "64000")
	full := of("slurm/job_7", "64000", "63500")
	below := of("slurm/job_7/step_0/task_0", "max", "63500")
	roomy := of("slurm/job_8/step_0", "64000", "32000")
	group(t, filepath.Join(full, "step_1"), map[string]string{"cgroup.procs": "1\n" + self + "\n"})
	group(t, roomy, map[string]string{"memory.max": "64000", "memory.current": "32000", "cgroup.procs": self + "\n"})
	alone := of("slurm/job_9", "64000", "63999") // only the dead client was in it
	of("slurm/job_10", "64000", "60000")
	empty := of("slurm/job_10/step_0/task_0", "max", "50000") // all that is charged to it is the dead client's
	shared := of("slurm/job_10/step_1", "max", "50000")       // a living process has all that is charged to it
	group(t, shared, map[string]string{"cgroup.procs": self + "\n"})
	for _, c := range []struct {
		group            string
		resident, beside uint64
		want             bool
	}{
		{full, 0, 0, true}, {below, 0, 0, true}, {roomy, 0, 0, false}, {roomy, 32_000, 0, false}, {roomy, 40_000, 0, true},
		{alone, 0, 0, false}, {"", 0, 0, false}, {filepath.Join(k.groups, "none"), 0, 0, false}, {"/etc", 0, 0, false},
		{empty, 4_000, 50_000, false}, {empty, 4_000, 46_000, false}, {empty, 1_000, 45_000, true}, {shared, 1_000, 0, false},
	} {
		clear(k.memories)
		if got := g.hostShort(&client{group: c.group, resident: c.resident, beside: c.beside}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	// What is charged to the group later belongs to others.
	dead := &client{group: empty, resident: 1_000, beside: 50_000}
	for _, used := range []string{"50000", "60000"} {
		clear(k.memories)
		if of("slurm/job_10/step_0/task_0", "max", used); g.hostShort(dead) {
			t.Errorf("short with %s bytes", used)
		}
	}
}

// A scan notes what is charged to the group of a client that it admits, and a full scan notes it again. So what others
// have taken until then is not the client's.
func TestAScanNotesTheMemoryOfTheGroup(t *testing.T) {
	r := stillGuard(t, time.Minute)
	r.kernel.groups = t.TempDir()
	c := r.child(opens + waits)
	own := proc.Resident(c.Process.Pid)
	groups, _ := proc.GroupsOf(c.Process.Pid)
	for _, beside := range []uint64{4_000, 5_000} {
		files := map[string]string{"memory.max": "max", "memory.current": strconv.FormatUint(own+beside, 10)}
		group(t, r.kernel.memoryGroup(groups), files)
		r.scans.nextFull = time.Time{}
		if r.scan(time.Now()); r.living[c.Process.Pid] == nil || r.living[c.Process.Pid].beside != beside {
			t.Errorf("want %d bytes beside the client: %+v", beside, r.living[c.Process.Pid])
		}
	}
}
