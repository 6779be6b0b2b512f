// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/night"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// Processes of the job's user are in the middle of an exec, and every reader of their open files waits. The guard finds
// new clients all the same, within the time that it needs beside other processes. It tells how many processes do not
// answer, and it ends when it is asked.
//
// Contract: G2, G3
func TestHostileExecsBesideAGuard(t *testing.T) {
	e2e.Alone(t)
	for name, c := range map[string]struct {
		user    uint32
		count   int
		clients bool
	}{"one": {stormy + 40, 1, false}, "some": {stormy + 41, 50, false}, "clients": {stormy + 45, 3, true}} {
		t.Run(name, func(t *testing.T) {
			w := newWatchOf(t, c.user, c.user)
			began := time.Now()
			neighbour := w.Neighbour()
			w.Holds(2)
			before := time.Since(began)
			idle := w.computes(2 * time.Second)
			var devices []string
			files := 2
			if c.clients {
				devices = []string{w.device("nvidiactl"), w.device("nvidia-uvm")}
				files += c.count
			}
			w.a.inExecWith(devices, c.user, c.count, "rank")
			w.Holds(files)
			w.Until("the guard's note", func() bool { return w.State().Silent >= c.count })
			// A look is every 10 s. A guard that looks all the time takes all that it gets of a processor.
			if used := w.computes(2 * time.Second); used > 5*idle+300*time.Millisecond {
				t.Errorf("the guard has computed for %v in 2 s, and for %v before the attack", used, idle)
			}
			began = time.Now()
			victim := w.Start("spin", "-ms", "5", "-queue", "150", "-for", "900")
			w.Holds(files + 2)
			// A guard that waits for the processes finds none until these have ended, after execLife.
			if took := time.Since(began); took > 3*before+execLife/4 {
				t.Errorf("a new client is found after %v, and after %v without the attack", took, before)
			}
			victim.Kill()
			w.Lives(neighbour)
			if _, status := w.MpsctlAs(0, "status"); !strings.Contains(status, "no answer of ") {
				t.Errorf("mpsctl status:\n%s", status)
			}
			w.ends()
			if left := w.a.waiting(c.user); left < c.count {
				t.Errorf("only %d processes are still in their exec, so the test proves little", left)
			}
		})
	}
}

// computes returns the processor time that the guard uses in a time.
func (w *watch) computes(d time.Duration) time.Duration {
	w.T.Helper()
	before := computed(w.T, w.Guard.PID)
	wait.Sleep(w.Ctx, d)
	return computed(w.T, w.Guard.PID) - before
}

// More processes are in the middle of an exec than the guard asks at once. It tells that it cannot watch the others,
// uses no processor time, and ends when it is asked.
//
// Contract: G3
func TestHostileExecsWithoutNumberBesideAGuard(t *testing.T) {
	e2e.Alone(t)
	t.Run("alone", hostileExecsWithoutNumber)
}

// hostileExecsWithoutNumber is a subtest, so that no other test runs beside it: all see processes that do not answer.
func hostileExecsWithoutNumber(t *testing.T) {
	user, count := stormy+44, 90
	w := newWatchOf(t, user, user)
	w.a.inExec(user, count, "rank")
	w.group(w.a.as(user, w.a.program, "opens", w.device("nvidia-uvm"))) // so that the guard looks now
	w.Until("finding", func() bool {
		_, out := w.MpsctlAs(0, "status")
		return strings.Contains(out, "clients-unguarded")
	})
	if state := w.State(); state.Silent >= count || state.Silent == 0 || len(state.Unguarded) != 1 ||
		!strings.Contains(state.Unguarded[0].Cause, "in the middle of an exec") {
		t.Errorf("%+v", state)
	}
	if mib := e2e.Resident(t, w.Guard.PID); mib > 20 {
		t.Errorf("the guard uses %.1f MiB", mib)
	}
	w.ends()
	if left := w.a.waiting(user); left < count {
		t.Errorf("only %d processes are still in their exec, so the test proves little", left)
	}
}

// takersOf returns the pids of root's processes that duplicate files for a guard.
func (w *watch) takersOf(guard proc.Process) (pids []int) {
	w.T.Helper()
	for _, pid := range proc.Children(guard.PID) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(line), "--take") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A user's file system never answers a close, and its files take the place of device files just before the guards of
// one job after the other duplicate these. Root's processes that hang then do not add up, mpsctl names them, and they
// have neither a priority nor protection from the kernel. The test looks while the file system hangs.
//
// Contract: G3
func TestHostileTakersThatStay(t *testing.T) {
	e2e.Alone(t)
	t.Run("alone", hostileTakersThatStay)
}

// hostileTakersThatStay is a subtest, so that no other test runs beside it: its thousands of threads delay all.
// They hang until the test ends, and a container may have room for 4,915.
func hostileTakersThatStay(t *testing.T) {
	const atOnce, most, threads = 4, 8, 3000
	user := stormy + 42
	jobs := uint32(night.Of(3, 2))
	each := fmt.Sprint(threads / atOnce / jobs)
	a := newAttack(t, "", 1)
	dir, stop := a.fileSystemOf(user, -1, fileSystemLife)
	stuck := map[proc.Process]bool{} // that were seen while their guard lived
	count := func() (left int) {
		for p := range stuck {
			if p.Running() {
				left++
			}
		}
		return left
	}
	for number := uint32(7); number < 7+jobs; number++ {
		job := a.Job(number, "0")
		job.UID, job.GID = user, user
		a.opens(job)
		w := &watch{Shared: &e2e.Shared{Node: a.Node, Job: job, Guard: a.Lease(number).Guard}, a: a}
		var groups []*exec.Cmd
		for range atOnce {
			line := []string{a.program, "flipping", w.device("nvidiactl"), w.device("nvidia-uvm")}
			line = append(line, filepath.Join(dir, "file"), each)
			groups = append(groups, w.group(a.as(user, line...)))
			t.Cleanup(stop) // this runs before the cleanup of the attack, which cannot end without it
		}
		for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			for _, pid := range w.takersOf(w.Guard) {
				if stat, err := proc.ReadStat(pid); err == nil {
					stuck[stat.Process] = true
				}
			}
		}
		a.withstands(job, "epilog")
		for _, group := range groups {
			_ = node.SignalGroup(group, unix.SIGKILL)
		}
		t.Logf("after job %d, %d of root's processes hang", number, count())
	}
	wait.Sleep(a.Ctx, time.Second)
	var left int
	e2e.Comes(func() bool { left = count(); return left <= most }) // those that wait for nothing end
	if left == 0 {
		t.Log("no taker hangs: this run proves little")
	}
	must.Hold(t, left <= most, "%d of root's processes hang: want at most %d", left, most)
	for p := range stuck {
		if p.Running() { // its pid may be another process's
			a.isOrdinary(p)
		}
	}
	for _, command := range []string{"status", "reap"} {
		if _, out := a.MpsctlAs(0, command); left > 0 && !strings.Contains(out, fmt.Sprintf("uid %d", user)) {
			t.Errorf("mpsctl %s does not name the user of %d processes that hang:\n%s", command, left, out)
		}
	}
	stop()
	a.Until("end of the processes", func() bool { return count() == 0 })
	if _, out := a.MpsctlAs(0, "status"); strings.Contains(out, "takers-stuck") {
		t.Errorf("mpsctl status names processes that have ended:\n%s", out)
	}
	a.Clean()
}

// isOrdinary checks that a process has no raised priority and no protection from the kernel's killer.
func (a attack) isOrdinary(p proc.Process) {
	a.T.Helper()
	pid := p.PID
	adjusted, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	if err != nil {
		return // it has ended
	}
	if score := strings.TrimSpace(string(adjusted)); strings.HasPrefix(score, "-") {
		a.T.Errorf("pid %d has oom_score_adj %s", pid, score)
	}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, thread := range threads {
		id, _ := strconv.Atoi(filepath.Base(thread))
		if raw, err := unix.Getpriority(unix.PRIO_PROCESS, id); err == nil && raw > 20 { // the system call answers 20 - nice
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			a.T.Errorf("thread %d of %v, %q, has nice %d", id, p, line, 20-raw)
		}
	}
}

// A guard has no descriptors left for new clients. It counts the processes that it cannot watch, and tells the cause.
func TestHostileClientsPastTheLimit(t *testing.T) {
	const limit, count = 120, 100
	user := stormy + 43
	w := newWatchOf(t, user, user)
	neighbour := w.Neighbour()
	w.Holds(2)
	must.OK(t, unix.Prlimit(w.Guard.PID, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}, nil))
	const script = `for i in $(seq $2); do sleep 900 5<"$0" 6<"$1" & done; echo ready; wait`
	w.group(w.a.as(user, "/bin/sh", "-c", script, w.device("nvidiactl"), w.device("nvidia-uvm"), fmt.Sprint(count)))
	var unguarded int
	w.Until("count of processes", func() bool {
		unguarded = 0
		for _, cause := range w.State().Unguarded {
			unguarded += cause.Processes
		}
		return unguarded+w.State().Clients >= count
	})
	t.Logf("%d clients, %d not guarded: %+v", w.State().Clients, unguarded, w.State().Unguarded)
	if _, out := w.MpsctlAs(0, "status"); !strings.Contains(out, "too many open files") {
		t.Errorf("mpsctl status does not tell why:\n%s", out)
	}
	if lines := strings.Count(w.Log(), "cannot watch a process"); lines < 1 || lines > 3 {
		t.Errorf("%d lines of the log:\n%s", lines, w.Log())
	}
	w.Lives(neighbour)
	w.ends()
}

// A guard that is stopped looks no more. mpsctl status says so, and says so no longer when the guard goes on.
func TestAGuardThatDoesNotLook(t *testing.T) {
	w := newWatch(t)
	if _, out := w.MpsctlAs(0, "status"); strings.Contains(out, "guard-stalled") {
		t.Fatalf("a guard that waits counts as stalled:\n%s", out)
	}
	w.a.does(e2e.UID, "cat", w.device("nvidia-uvm")) // the guard's next look is near
	must.OK(t, w.Guard.Kill(unix.SIGSTOP))
	t.Cleanup(func() { _ = w.Guard.Kill(unix.SIGCONT) })
	says := func() bool {
		_, out := w.MpsctlAs(0, "status")
		return strings.Contains(out, "guard-stalled") && strings.Contains(out, "stalled since")
	}
	w.Until("finding", says)
	must.OK(t, w.Guard.Kill(unix.SIGCONT))
	w.Until("end of the finding", func() bool { return !says() })
	w.ends()
}

// inUse is what status and reap print of a closed job whose files are in use.
const inUse = "keep files of job %d in use"

// Processes of the user outside of the jobs keep files of four closed jobs in use. Each of the four has a bound, no
// epilog fails, status and reap name them, and the user's next job is refused. Another user's is not. When the processes
// have ended, nothing is left, and the user gets MPS again.
func TestHostileFilesOfClosedJobs(t *testing.T) {
	a := newAttack(t, "", 2)
	for n, how := range []string{"open", "written", "flight", "folders"} {
		job := a.Job(uint32(20+n), "0")
		f := a.opens(job)
		a.goesOn(a.as(e2e.UID, a.program, "keeps", how, f.pipe))
		a.withstands(job, "epilog")
	}
	_, status := a.MpsctlAs(0, "status")
	_, reap := a.MpsctlAs(0, "reap")
	for job := 20; job < 24; job++ {
		for name, out := range map[string]string{"status": status, "reap": reap} {
			must.Hold(t, strings.Contains(out, fmt.Sprintf("uid %d", e2e.UID)) && strings.Contains(out, fmt.Sprintf(inUse, job)),
				"%s does not name job %d: %s", name, job, out)
		}
	}
	next := a.Job(24, "0")
	a.withstands(next, "prolog")
	if why := a.Ticket(24).RefusalReason; !strings.Contains(why, "end these processes") {
		t.Errorf("the fifth job: %q", why)
	}
	a.withstands(next, "epilog")
	other := a.Job(25, "1")
	other.UID, other.GID = e2e.OtherUID, e2e.OtherUID
	a.opens(other)
	a.withstands(other, "epilog")
	a.closes(next) // ends the processes
	a.opens(next)
	a.closes(next)
}

// The user keeps the locks of a file and of a folder, for which root's process waits and which no signal ends. The
// epilog does not wait for it, and the node goes on. It is named, and freed when the user's file system has ended.
func TestHostileLocksInAJobsFolder(t *testing.T) {
	a := newAttack(t, "", 1)
	job := a.Job(20, "0")
	f := a.opens(job)
	dir, stop := a.fileSystem(0)
	a.goesOn(a.as(e2e.UID, a.program, "locks", f.exchange, dir)) // the daemon itself needs the others
	t.Cleanup(stop)                                              // before the end of the process, which cannot end without it
	began := time.Now()
	a.withstands(job, "epilog")
	took := time.Since(began)
	_, status := a.MpsctlAs(0, "status")
	must.Hold(t, strings.Contains(status, fmt.Sprintf(inUse, 20)), "after %v: %s", took, status)
	next := a.Job(21, "0")
	a.opens(next)
	a.withstands(next, "epilog")
	stop()
	a.closes(job)
}
