// SPDX-License-Identifier: Apache-2.0

package mpsctl_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// The job of these tests. No other test's Slurm on this machine uses its number. A job with a step or a process
// is used by one test only, because reap searches the whole machine.
const goneJob = 4100007

// reapLine is a line of reap's JSON, as its documentation describes it.
type reapLine struct {
	Job    uint32 `json:"job"`
	Where  string `json:"where"`
	Act    string `json:"action"`
	Why    string `json:"reason"`
	Do     string `json:"fix"`
	Failed string `json:"failed"`
}

func (p testNode) runReap(code int, args ...string) []reapLine {
	p.T.Helper()
	result := p.Ctl(append([]string{"reap", "--json"}, args...)...)
	var r struct {
		DryRun bool       `json:"dry_run"`
		Lines  []reapLine `json:"results"`
	}
	if err := json.Unmarshal([]byte(result.Output), &r); err != nil || r.DryRun != slices.Contains(args, "--dry-run") {
		p.T.Fatalf("%v: %s", err, result.Output)
	}
	if result.Code != code {
		p.T.Fatalf("reap %q: code %d, want %d: %s\n%s", args, result.Code, code, result.Output, p.Log())
	}
	return r.Lines
}

// reap runs mpsctl reap after a dry run. It checks that the dry run changes nothing and prints the same.
func (p testNode) reap(code int, args ...string) []reapLine {
	p.T.Helper()
	before := p.settled()
	said := p.runReap(code, append([]string{"--dry-run"}, args...)...)
	if after := p.everything(); !slices.Equal(before, after) {
		p.T.Errorf("a dry run changed something:\nbefore %q\nafter  %q", before, after)
	}
	did := p.runReap(code, args...)
	for _, lines := range [][]reapLine{said, did} {
		for i := range lines {
			if lines[i].Job == 7 { // other tests on this machine also have a job 7, and its processes start and end
				lines[i].Why = ""
			}
		}
	}
	must.Hold(p.T, reflect.DeepEqual(said, did), "a dry run prints %+v\nand a run    %+v", said, did)
	return did
}

// settled waits until the records stay the same. A simulated server that starts has a child for a moment, and a guard
// that ends writes a last line to the log.
func (p testNode) settled() []string {
	p.T.Helper()
	before := p.everything()
	p.Until("state that lasts", func() bool {
		time.Sleep(200 * time.Millisecond)
		now := p.everything()
		same := slices.Equal(before, now)
		before = now
		return same
	})
	return before
}

// everything returns the records, the log, the modes and the processes.
func (p testNode) everything() []string {
	p.T.Helper()
	pids := must.Get(p.Processes())(p.T)
	return append(p.files(), p.Log(), p.Modes(), fmt.Sprint(pids))
}

// actions returns the place and the action of each line.
func actions(lines []reapLine) string {
	var all []string
	for _, line := range lines {
		all = append(all, line.Where+" "+line.Act)
	}
	return strings.Join(all, ", ")
}

// reaps checks which actions a run of reap takes, and the reason or the fix in its first line.
func (p testNode) reaps(code int, want, why string, args ...string) {
	p.T.Helper()
	lines := p.reap(code, args...)
	if actions(lines) != want || want != "" && !strings.Contains(lines[0].Why+lines[0].Do, why) {
		p.T.Errorf("reap %q: %+v, want %q with %q\n%s", args, lines, want, why, p.Log())
	}
}

func action(what string) string { return actionOn(goneJob, what) }

func actionOn(job uint32, what string) string { return fmt.Sprintf("job %d %s", job, what) }

// After a prolog was killed anywhere, reap closes what it left. If the job may have started, reap leaves the lease
// and reports it.
func TestReapAfterAKilledProlog(t *testing.T) {
	p := newTestNode(t, testnode.Default(), node.H200, node.H200)
	job := p.Job(goneJob, "0")
	points := p.Points(job, "prolog")
	p.Must(0, job, "epilog")
	closed, asked := 0, 0
	for _, at := range e2e.Nth(points, 6) {
		if !p.Killed(job, "prolog", at, p.Booted) {
			continue
		}
		open := false
		if _, err := os.Stat(filepath.Join(p.Paths().Run(), fmt.Sprintf("leases/%d.json", goneJob))); err == nil {
			closed++
			open = p.Lease(goneJob).Phase == lease.Opened
		}
		if open {
			asked++
			if lines := p.runReap(1); actions(lines) != action("leave") || !strings.Contains(lines[0].Why, "may be an allocation without a step") {
				t.Errorf("%+v", lines)
			}
			p.runReap(0, "--job", fmt.Sprint(goneJob))
		} else {
			p.runReap(0) // no dry run first, because the server that the prolog requested may still be starting
		}
		p.Quiet()
		p.reaps(0, "", "")
	}
	must.Hold(t, closed-asked >= 2, "%d leases, %d of them open: the test proves too little", closed, asked)
}

// If an epilog was killed before its first step, the job's lease is open. Status, doctor and the error of the next
// prolog, which drains the node, have the command that closes it. Without Contain no job needs a step, and a job with a
// step runs: both are no findings.
//
// Contract: R8
func TestALeaseWithoutAStep(t *testing.T) {
	const job, next, begins = 4360007, 4360008, "if squeue -j 4360007 shows that the job is gone: "
	p := newTestNode(t, testnode.Default(), node.H200)
	p.Open(p.Job(job, "0"))
	conf := filepath.Join(filepath.Dir(p.Root), "slurm.conf")
	status := func(flags string) (code int, found []e2e.Finding) {
		p.Write(conf, "PrologFlags="+flags+"\n")
		result, err := p.Run(p.Ctx, []string{"SLURM_CONF=" + conf}, "mpsctl", "status", "--json")
		var said struct{ Findings []e2e.Finding }
		if err = errors.Join(err, json.Unmarshal([]byte(result.Output), &said)); err != nil {
			t.Fatalf("%v: %s", err, result.Output)
		}
		return result.Code, said.Findings
	}
	if code, found := status("Alloc"); code != 0 {
		t.Errorf("an allocation without a step: %d, %+v", code, found)
	}
	end := p.socket(job, 0)
	if code, found := status("Alloc,Contain"); code != 0 {
		t.Errorf("a job with its step: %d, %+v", code, found)
	}
	end()
	code, found := status("alloc,contain")
	must.Have(t, code == 1 && kinds(found) == "lease-without-step", "%d, %+v", code, found)
	command, ok := strings.CutPrefix(found[0].Do, begins)
	if out := p.Must(1, p.Job(next, "0"), "prolog"); !ok || !strings.Contains(out, "; "+begins+command+"\n") {
		t.Errorf("%q is not in the prolog's error: %s", found[0].Do, out)
	}
	p.Must(0, p.Job(next, "0"), "epilog")
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.Env = []string{"PATH=" + p.Bin + ":/usr/bin:/bin"}
	e2e.Runs(t, cmd)
	p.Open(p.Job(next, "0"))
	p.Must(0, p.Job(next, "0"), "epilog")
	p.Quiet()
}

// stepd starts a process of root with the name of a step daemon, and with a title as slurmstepd writes it.
func (p testNode) stepd(title string) (end func()) {
	p.T.Helper()
	path := filepath.Join(filepath.Dir(p.Root), "slurmstepd")
	content, err := os.ReadFile("/bin/sleep")
	if err == nil {
		err = node.WriteProgram(path, content)
	}
	must.OK(p.T, err)
	cmd := &exec.Cmd{Path: path, Args: []string{title, "120"}}
	must.OK(p.T, cmd.Start())
	end = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	p.T.Cleanup(end)
	return end
}

// socket listens as slurmstepd does, as a socket of the given owner.
func (p testNode) socket(job uint32, owner int) (end func()) {
	p.T.Helper()
	path := filepath.Join(filepath.Dir(p.Root), fmt.Sprintf("n1_%d.4294967291", job))
	listener, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chown(path, owner, owner)
	}
	must.OK(p.T, err)
	end = func() { _ = listener.Close() }
	p.T.Cleanup(end)
	return end
}

// Reap closes no job while Slurm has a step of it, whatever the lease's phase is. That also holds if an admin names
// the job.
//
// Contract: R8
func TestReapWhileAStepRuns(t *testing.T) {
	t.Parallel()
	for job, step := range map[uint32]func(testNode) func(){
		4310007: func(p testNode) func() { return p.socket(4310007, 0) },
		4320007: func(p testNode) func() { return p.stepd("slurmstepd: [4320007.batch]") },
		4330007: func(p testNode) func() { return p.stepd("slurmstepd: [43300") }, // a title that was cut off
	} {
		t.Run(fmt.Sprint(job), func(t *testing.T) {
			p := newTestNode(t, testnode.Default(), node.H200, node.H200)
			p.Open(p.Job(job, "0"))
			end := step(p)
			p.reaps(0, actionOn(job, "keep"), "slurmstepd")
			p.reaps(1, actionOn(job, "leave"), fmt.Sprintf("scancel %d", job), "--job", fmt.Sprint(job))
			path := filepath.Join(p.Paths().Run(), fmt.Sprintf("leases/%d.json", job))
			p.Rewrite(path, strings.Replace(e2e.Read(t, path), `"phase": "open"`, `"phase": "closing"`, 1))
			p.reaps(1, actionOn(job, "leave"), "Slurm has a step")
			must.Hold(t, p.Modes() == "30" && e2e.Alive(p.Ticket(job).Daemons[0].Proc), "reap changed the job")
			end()
			p.reaps(0, actionOn(job, "close"), "its epilog has ended")
			p.Quiet()
		})
	}
}

// If reap is killed, the next reap finishes, and so does an epilog of the same job.
func TestReapThatIsKilled(t *testing.T) {
	p := newTestNode(t, testnode.Default(), node.H200, node.H200)
	for _, next := range []string{"reap", "epilog"} {
		p.Open(p.Job(goneJob, "0"))
		daemon := p.Ticket(goneJob).Daemons[0].Proc
		if err := syscall.Kill(daemon.PID, syscall.SIGSTOP); err != nil { // a stopped daemon takes a while to end
			t.Fatal(err)
		}
		line := p.Command("mpsctl", "reap", "--job", fmt.Sprint(goneJob))
		cmd := exec.Command(line[0], line[1:]...)
		must.OK(t, cmd.Start())
		p.Until("reap at work", func() bool { return p.Lease(goneJob).Phase == lease.Closing })
		if stat, err := proc.ReadStat(cmd.Process.Pid); err != nil || stat.Kill(unix.SIGKILL) != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if left := p.Leftovers(); len(left) == 0 {
			t.Error("the killed reap left nothing behind: the test proves nothing")
		}
		if next == "reap" {
			p.reaps(0, action("close"), "its epilog has ended")
		} else {
			p.Must(0, p.Job(goneJob, "0"), "epilog")
		}
		p.Quiet()
	}
}

// Under a real Slurm, reap keeps a job with a step, even if an admin names the job. It leaves an allocation without a
// step.
func TestReapUnderSlurm(t *testing.T) {
	c := e2e.NewCluster(t, testnode.Default(`drain_grace = "1s"`), lab.Options{PrologFlags: "Alloc", Extra: []string{"FirstJobId=4200001"}})
	p := testNode{c.First()}
	running := func(id int) {
		if job, err := c.WaitJobUntil(c.Ctx, id, func(j lab.Job) bool { return j.State == "RUNNING" }); err != nil {
			t.Fatalf("%+v, %v\n%s", job, err, c.Log())
		}
		p.Until("open lease", func() bool {
			return strings.Contains(p.Log(), fmt.Sprintf(`"job":%d`, id)) && strings.Contains(p.Log(), `"outcome":"opened"`)
		})
	}
	id := c.Batch("echo started; sleep 100", "--gres=gpu:1")
	running(id)
	p.Until("start of the batch step", func() bool { return strings.Contains(c.Output(id), "started") })
	if sluid := p.Lease(uint32(id)).SLUID; (sluid != "") != (c.Release() >= "25.11") {
		t.Errorf("the lease's SLUID is %q, with Slurm %s", sluid, c.Release())
	}
	lines := p.runReap(0)
	if want := fmt.Sprintf("job %d keep", id); actions(lines) != want || !strings.Contains(lines[0].Why, c.Top) {
		t.Errorf("%+v, want %s", lines, want)
	}
	if lines = p.runReap(1, "--job", fmt.Sprint(id)); actions(lines) != fmt.Sprintf("job %d leave", id) {
		t.Errorf("%+v", lines)
	}
	c.Does(c.User, "scancel", fmt.Sprint(id))
	c.Ended(id)
	c.Quiet()
	// No step runs in this allocation.
	c.Does(c.User, "salloc", "--no-shell", "--constraint=mps", "--gres=gpu:1")
	id++
	running(id)
	if lines := p.runReap(1); actions(lines) != fmt.Sprintf("job %d leave", id) || !strings.Contains(lines[0].Why, "allocation without a step") {
		t.Errorf("%+v", lines)
	}
	must.Hold(t, e2e.Alive(p.Ticket(uint32(id)).Daemons[0].Proc), "reap ended the daemon of an allocation")
	c.Does(c.User, "scancel", fmt.Sprint(id))
	c.Ended(id)
	c.Quiet()
}
