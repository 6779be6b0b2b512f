// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// The status file tells the same as the stat file, whose readers may have to wait.
func TestReadStatus(t *testing.T) {
	child := exec.Command("sleep", "60")
	must.OK(t, child.Start())
	pid := child.Process.Pid
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	agree := func(state byte) Status {
		t.Helper()
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			status, err := ReadStatus(pid)
			stat, err2 := ReadStat(pid)
			if err != nil || err2 != nil || time.Since(began) > 5*time.Second {
				t.Fatalf("%+v, %v; %+v, %v: want state %c", status, err, stat, err2, state)
			}
			if status.State == state && stat.State == state {
				if status.Parent != stat.Parent || status.Parent != os.Getpid() || status.Threads != stat.Threads || status.Running() != stat.Running() {
					t.Fatalf("status %+v, stat %+v", status, stat)
				}
				return status
			}
		}
	}
	if s := agree('S'); s.Stopped() || !s.Running() || s.UIDs[1] != uint32(os.Geteuid()) {
		t.Errorf("a sleeping process: %+v", s)
	}
	_ = unix.Kill(pid, unix.SIGSTOP)
	if s := agree('T'); !s.Stopped() || !s.Running() {
		t.Errorf("a stopped process: %+v", s)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
	if s := agree('Z'); s.Running() {
		t.Errorf("a zombie runs: %+v", s)
	}
	if _, err := ReadStatus(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that does not exist: %v", err)
	}
	if _, err := ReadStat(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that does not exist: %v", err)
	}
}

// However many processes do not answer, some readers are left for a recorded process.
func TestReadersOfRecordedProcesses(t *testing.T) {
	r, letGo := newReaders(maxSilent), make(chan struct{})
	defer close(letGo)
	take := func(_ context.Context, p Process) (Stat, error) {
		if p.PID > 1 {
			<-letGo
		}
		return Stat{Process: p}, nil
	}
	var others []Process
	for pid := range 2 * maxSilent {
		others = append(others, Process{PID: pid + 2})
	}
	for range 4 { // each round has time for some
		eachUpTo(t.Context(), r, maxSilent, statTime, others, take)
	}
	if r.running != maxSilent {
		t.Errorf("%d readers wait, want %d", r.running, maxSilent)
	}
	recorded := []Process{{PID: 1}}
	if a := eachUpTo(t.Context(), r, maxSilent, statTime, recorded, take)[0]; !errors.Is(a.err, ErrLate) {
		t.Errorf("a list has a reader: %+v", a)
	}
	if a := eachUpTo(t.Context(), r, maxSilent+maxSilentRecorded, statTime, recorded, take)[0]; a.err != nil || a.value.PID != 1 {
		t.Errorf("a recorded process has no reader: %+v", a)
	}
}

// The time of a process grows while it computes.
func TestTimeOfAProcess(t *testing.T) {
	first, err := ReadStat(os.Getpid())
	must.OK(t, err)
	for deadline := time.Now().Add(10 * time.Second); ; {
		now, err := ReadStat(os.Getpid())
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, then %+v, %v", first, now, err)
		}
		if now.CPU > first.CPU {
			return
		}
	}
}

// The search returns what the kernel's lists contain. It is for kernels that have no such lists.
func TestChildren(t *testing.T) {
	child := exec.Command("sleep", "60")
	must.OK(t, child.Start())
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	for name, find := range map[string]func(int) []int{"lists": Children, "search": childrenBySearch} {
		if got := find(os.Getpid()); !slices.Contains(got, child.Process.Pid) {
			t.Errorf("%s: %v, and %d is a child", name, got, child.Process.Pid)
		}
		if got := find(child.Process.Pid); len(got) != 0 {
			t.Errorf("%s: children of sleep: %v", name, got)
		}
	}
}

func TestParseGroups(t *testing.T) {
	got := ParseGroups("4:memory:/slurm/uid_1/job_7/step_0\n2:cpu,cpuacct:/\n1:name=systemd:/a:b " +
		"c\n0::/system.slice/slurmstepd.scope\nbroken\n3:pids\n5:x:relative\n")
	want := []ControlGroup{{"memory", "/slurm/uid_1/job_7/step_0"}, {"cpu,cpuacct", "/"}, {"name=systemd", "/a:b c"}, {"", "/system.slice/slurmstepd.scope"}}
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// In the scope of the step daemons are jobs, Slurm's own processes, a slurmd that is no unit of systemd, and our groups.
func TestOfAJob(t *testing.T) {
	const scope = "/system.slice/n1_slurmstepd.scope"
	for path, want := range map[string]bool{
		"/slurm/uid_1/job_7/step_0": true, "/ours/job_7": true, scope + "/job_7/step_extern/slurm": true, scope + "/sB9NM830BDDR00/step_0": true,
		"/": false, scope: false, scope + "/slurmd": false, scope + "/system": false, scope + "/run-slurm-mps-7-0": false, "/tmp-job_7-run-7-0": false,
	} {
		if (ControlGroup{Path: path}).OfAJob() != want {
			t.Errorf("%q: of a job: %v", path, !want)
		}
	}
}

// A guard reads the status of each process of the node every ten seconds. Garbage wakes the threads that collect it.
func TestAStatusLeavesLittleGarbage(t *testing.T) {
	const reads, limit = 200, 1024 // bytes for one; 368 on amd64
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range reads {
		must.Get(ReadStatus(os.Getpid()))(t)
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / reads; each > limit {
		t.Errorf("a status allocates %d bytes, at most %d are allowed", each, limit)
	}
}
