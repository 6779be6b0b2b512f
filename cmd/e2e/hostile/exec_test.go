// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// execLife is how long an exec lasts if the test does not end before. Every reader of these processes waits that long. A
// program that takes less than a quarter of it has not waited, on a busy machine too.
const execLife = 3 * time.Minute

// inExec starts processes of a user that are in the middle of an exec until stop is called: so many of each name. It
// returns when a reader of their state would wait.
func (a attack) inExec(user uint32, count int, names ...string) (stop func()) {
	a.T.Helper()
	return a.inExecWith(nil, user, count, names...)
}

// inExecWith is inExec for processes that have these files open.
func (a attack) inExecWith(files []string, user uint32, count int, names ...string) (stop func()) {
	a.T.Helper()
	dir, end := a.fileSystemOf(user, -1, execLife)
	attack := a.as(user, append([]string{a.program, "execs", dir, fmt.Sprint(count)}, names...)...)
	attack.Env = append(attack.Env, "DEVICES="+strings.Join(files, ":"))
	a.goesOn(attack)
	a.T.Cleanup(end) // this runs before the cleanup of the attack, whose processes cannot end without it
	for range 600 {
		var waiting int
		if waiting = a.waiting(user); waiting >= count*len(names) {
			return end
		}
		time.Sleep(50 * time.Millisecond)
	}
	a.T.Skipf("this kernel does not hold up readers of a process in its exec")
	return nil
}

// waiting counts the processes of a user that are in the middle of an exec. A reader of the last one's state waits, or
// the count is 0.
func (a attack) waiting(user uint32) (count int) {
	a.T.Helper()
	count, _ = a.countWaiting(user)
	return count
}

// lastWaiting returns the pid of the last of these processes.
func (a attack) lastWaiting(user uint32) int {
	a.T.Helper()
	_, last := a.countWaiting(user)
	return last
}

func (a attack) countWaiting(user uint32) (count, last int) {
	a.T.Helper()
	pids := must.Get(proc.PIDs())(a.T)
	for _, pid := range pids {
		status, err := proc.ReadStatus(pid)
		line, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || err2 != nil || !status.Running() || status.UIDs[0] != user {
			continue
		}
		if len(line) == 0 { // in the middle of an exec there is none
			last, count = pid, count+1
		}
	}
	if last == 0 || exec.Command("timeout", "-s", "KILL", "1", "cat", fmt.Sprintf("/proc/%d/stat", last)).Run() == nil {
		return 0, 0
	}
	return count, last
}

// A user's processes are in the middle of an exec, and every reader of their state waits. Prolog and epilog of the
// user's job, of another user's job, and root's commands hold their deadlines.
//
// Contract: R1
func TestHostileExecs(t *testing.T) {
	e2e.Alone(t)
	const count = 50
	for name, c := range map[string]struct {
		user  uint32
		count int
	}{
		"the job's user": {stormy + 30, count},
		"the job's user, with more than readers exist": {stormy + 32, 4 * count},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAttack(t, "", 1)
			a.Facts(`epilog_deadline = "10s"`)
			job := a.Job(7, "0")
			job.UID, job.GID = c.user, c.user
			a.inExec(c.user, c.count/2, e2e.MPSNames[:2]...)
			a.withinDeadline("prolog", execLife/4, func() { a.withstands(job, "prolog") })
			if reason := a.Ticket(7).RefusalReason; reason != "" {
				t.Fatalf("refused: %s", reason)
			}
			daemon := a.Ticket(7).Daemons[0].Proc
			a.withinDeadline("epilog", execLife/4, func() { a.withstands(job, "epilog") })
			if daemon.Running() || a.Modes() != "0" {
				t.Errorf("daemon alive %v, modes %s", daemon.Running(), a.Modes())
			}
			if log := a.Log(); !strings.Contains(log, "do not answer") {
				t.Errorf("no line says that processes do not answer:\n%s", log)
			}
			if left := a.waiting(c.user); left < c.count {
				t.Errorf("only %d processes are still in their exec, so the test proves little", left)
			}
			a.closes(job)
		})
	}
	t.Run("a stranger", func(t *testing.T) {
		a := newAttack(t, "", 1)
		user := stormy + 31
		a.opens(a.Job(7, "0"))
		a.inExec(user, count/len(e2e.MPSNames)+1, e2e.MPSNames...)
		const limit = execLife / 4 // a command that waited for an exec would not end
		for _, command := range []string{"status", "audit", "metrics", "doctor", "reap"} {
			began := time.Now()
			_, out := a.MpsctlAs(0, command)
			if took := time.Since(began); took > limit {
				t.Errorf("mpsctl %s takes %v:\n%s", command, took, out)
			}
			must.Hold(t, command != "status" || strings.Contains(out, "do not answer"),
				"mpsctl status does not say that processes do not answer:\n%s", out)
		}
		began := time.Now()
		if _, out := a.MpsctlAs(e2e.UID, "status"); time.Since(began) > limit {
			t.Errorf("mpsctl status of a user takes %v:\n%s", time.Since(began), out)
		}
		a.withinDeadline("epilog", execLife/4, func() { a.closes(a.Job(7, "0")) })
	})
}

// withinDeadline checks how long a step takes.
func (a attack) withinDeadline(name string, limit time.Duration, step func()) {
	a.T.Helper()
	began := time.Now()
	step()
	took := time.Since(began)
	a.T.Logf("%s: %v", name, took)
	must.Hold(a.T, took <= limit, "%s takes %v: want at most %v", name, took, limit)
}

// A process in the middle of an exec has the recorded daemon's pid. Nothing proves that it is the daemon, so it gets no
// signal. The daemon's control group proves that the daemon has ended. On a node without control groups nothing does,
// and the lease is kept.
func TestHostileExecWithTheDaemonsPID(t *testing.T) {
	e2e.Alone(t)
	for user, grouped := range map[uint32]bool{stormy + 33: true, stormy + 34: false} {
		t.Run(fmt.Sprintf("control group %v", grouped), func(t *testing.T) {
			a := newAttack(t, "", 1)
			a.Facts(`epilog_deadline = "6s"`)
			job := a.Job(7, "0")
			job.UID, job.GID = user, user
			a.opens(job)
			l := a.Lease(7)
			if grouped && l.Daemons[0].Group == "" {
				t.Skip("no control groups for daemons here")
			}
			stop := a.inExec(user, 1, e2e.MPSNames[1])
			pid := func(number int) string { return fmt.Sprintf(`"pid": %d`, number) }
			for _, file := range []string{"leases/7.json", "tickets/7.json"} {
				content := e2e.Read(t, filepath.Join(a.Paths().Run(), file))
				content = strings.Replace(content, pid(l.Daemons[0].Proc.PID), pid(a.lastWaiting(user)), 1)
				if !grouped {
					content = strings.Replace(content, fmt.Sprintf(`"group": %q`, l.Daemons[0].Group), `"group": ""`, 1)
				}
				a.Rewrite(filepath.Join(a.Paths().Run(), file), content)
			}
			a.withinDeadline("mpirun-wrap", execLife/4, func() { a.refusesSilentDaemon(user) })
			if grouped {
				a.withstands(job, "epilog")
			} else if run := a.runHook(job, "epilog"); run.code != 1 || run.took > execLife/4 ||
				!strings.Contains(run.output, "does not answer") {
				t.Errorf("epilog: code %d in %v: want 1\n%s", run.code, run.took, run.output)
			}
			must.Hold(t, !l.Daemons[0].Proc.Running(), "the daemon is alive")
			must.Hold(t, a.waiting(user) == 1, "the process in its exec has ended, so the test proves little")
			if !grouped {
				stop()
				a.Until("end of the exec", func() bool { return a.waiting(user) == 0 })
				a.withstands(job, "epilog")
			}
		})
	}
}

// refusesSilentDaemon checks that a rank whose daemon does not answer ends with the reason.
func (a attack) refusesSilentDaemon(user uint32) {
	a.T.Helper()
	rank := a.as(user, filepath.Join(a.Bin, "mpirun-wrap"), "--root", a.Root, "echo", "ran")
	rank.Env = append(rank.Env, "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_GPUS_ON_NODE=1")
	out, err := rank.CombinedOutput()
	if rank.ProcessState == nil || rank.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), "does not answer") {
		a.T.Errorf("a rank without an answer of its daemon: %v\n%s", err, out)
	}
}

// The same processes of a job's user do not drain a node of a real Slurm with proctrack/cgroup, as most sites have it.
// With proctrack/linuxproc, slurmstepd itself reads the state of all processes and waits, and slurmd drains the node
// (measured with Slurm 22.05.8).
func TestHostileExecsUnderSlurm(t *testing.T) {
	e2e.Alone(t)
	t.Run("alone", hostileExecsUnderSlurm)
}

// hostileExecsUnderSlurm is a subtest, so that no other test runs beside it: all see processes that do not answer.
func hostileExecsUnderSlurm(t *testing.T) {
	c := e2e.NewCluster(t, "", lab.Options{PrologFlags: "Alloc", ConstrainDevices: true})
	p := c.First()
	program := must.Get(e2e.Hostile())(t)
	a := attack{Node: p, program: program, going: new([]*exec.Cmd)}
	began := time.Now()
	a.inExec(e2e.UID, 10, e2e.MPSNames[:2]...)
	id := c.Batch("srun -n2 "+c.Wrap("info"), "-n2", "--gres=gpu:1")
	if job := c.Ended(id); job.State != "COMPLETED" {
		t.Errorf("the job is %s\n%s", job.State, c.Output(id))
	}
	if !e2e.Comes(func() bool { return strings.Contains(p.Log(), `"closed":`) }) {
		t.Fatalf("the epilog does not end while the processes are in their exec:\n%s", p.Log())
	}
	if left := a.waiting(e2e.UID); left < 20 {
		t.Errorf("only %d processes are still in their exec, so the test proves little", left)
	}
	state, reason, err := c.NodeState(p.Ctx, c.Nodes()[0])
	must.Hold(t, err == nil && !strings.Contains(strings.ToLower(state), "drain"),
		"the node is %s: %s, %v", state, reason, err)
	if log := p.Log(); !strings.Contains(log, `"closed":true`) || !strings.Contains(log, "do not answer") {
		t.Errorf("the epilog has failed, or no line says that processes do not answer:\n%s", log)
	}
	t.Logf("prolog, job and epilog took %v", time.Since(began))
}
