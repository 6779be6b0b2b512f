// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// waitAndInject waits until the fault of the job is possible, and does it.
func (v *jobRun) waitAndInject() error {
	var err error
	switch v.fault.when {
	case computing:
		err = v.compute()
	case inProlog:
		_, err = v.hook("prolog")
	case inEpilog:
		_, err = v.hook("epilog")
	}
	if err != nil {
		return err
	}
	if !wait.Sleep(v.ctx, v.pause()) {
		return v.ctx.Err()
	}
	if v.fault.judged == othersLive {
		v.judging.RLock() // until release
		v.judges = true
		v.beside = v.besideTheVictim()
	}
	if err := v.inject(); err != nil {
		return fmt.Errorf("cannot do %q: %w", v.fault.name, err)
	}
	return nil
}

// pause is the time before the fault. It is shorter for faults in hooks, because hooks end soon.
func (v *jobRun) pause() time.Duration {
	if v.fault.when == inProlog || v.fault.when == inEpilog {
		return v.after / 8
	}
	return v.after
}

// release lets attacks begin that would harm the judged neighbours.
func (v *jobRun) release() {
	if v.judges {
		v.judging.RUnlock()
	}
	v.judges = false
}

func (v *jobRun) inject() error {
	id := strconv.Itoa(v.id)
	switch v.fault.name {
	case "none", "none, an array":
		return nil
	case "a second guard":
		return v.secondGuard()
	case "a policy that breaks and heals": // the policy was broken before the job was submitted
		if v.ending == "continued" {
			return v.mendPolicy()
		}
		return nil
	case "scancel of the job", "scancel of the job at once", "scancel of a task of an array":
		return v.scancel(id)
	case "scancel of an array":
		return v.scancel(strconv.Itoa(v.array))
	case "scancel --signal=KILL of the job":
		// The signal reaches only the steps, and the batch script ends with them.
		return v.scancel("--signal=KILL", id)
	case "scancel --full --signal=TERM of the job":
		return v.scancelled("--full", "--signal=TERM", id)
	case "scancel --batch --signal=TERM of the job":
		return v.scancelled("--batch", "--signal=TERM", id)
	case "scancel --signal=TERM of a step":
		return v.ofStep("--signal=TERM")
	case "scancel of a step":
		return v.ofStep()
	case "time limit":
		return v.scontrol("update", "JobId="+id, "EndTime=now+3")
	case "requeue":
		return v.scontrol("requeue", id)
	case "suspend and resume":
		return v.suspended(func() error { return v.scontrol("resume", id) })
	case "suspend and scancel":
		return v.suspended(func() error { return v.scancel(id) })
	case "kill -9 of slurmd", "kill -9 of slurmd in the epilog":
		return errors.Join(v.KillNode(v.name), v.StartNode(v.name))
	case "SIGSTOP of slurmd":
		return v.slurmdStopped()
	case "reboot":
		return v.reboot()
	case midExec, noClose, stalled, manyOpen:
		return v.attacked()
	}
	return v.signalled()
}

// signalled does the faults that are a signal to a process.
func (v *jobRun) signalled() error {
	signal, what, _ := strings.Cut(v.fault.name, " of ")
	proc, err := v.target(strings.TrimPrefix(strings.TrimPrefix(what, "a "), "the "))
	if err != nil || v.late {
		return err
	}
	if signal == "kill -9" {
		return send(proc, unix.SIGKILL)
	}
	if err := send(proc, unix.SIGSTOP); err != nil {
		return err
	}
	wait.Sleep(v.ctx, 300*time.Millisecond)
	if v.ending == "cancelled" && v.fault.long {
		return v.scancel(strconv.Itoa(v.id))
	}
	if err := send(proc, unix.SIGCONT); err != nil || !v.fault.long {
		return err
	}
	return v.scancel(strconv.Itoa(v.id))
}

// target finds the process that the fault is for.
func (v *jobRun) target(what string) (proc.Process, error) {
	switch what {
	case "rank":
		return v.victim()
	case "prolog", "epilog":
		return v.hook(what)
	case "guard":
		return v.guard()
	}
	return v.daemon(what == "server")
}

// victim is the first rank of the first step.
func (v *jobRun) victim() (proc.Process, error) {
	if len(v.running[0]) == 0 {
		return proc.Process{}, errors.New("the first step has no rank")
	}
	return v.running[0][0], nil
}

// guard is the guard of the job, as its lease names it.
func (v *jobRun) guard() (proc.Process, error) {
	path := filepath.Join(v.testNode.Paths().Run(), "leases", fmt.Sprintf("%d.json", v.id))
	content, err := os.ReadFile(path)
	if err != nil {
		return proc.Process{}, err
	}
	var l struct{ Guard proc.Process }
	if err := json.Unmarshal(content, &l); err != nil || l.Guard.PID == 0 {
		return proc.Process{}, fmt.Errorf("%s names no guard: %v", path, err)
	}
	return l.Guard, nil
}

// secondGuard starts a second guard for the job, as an admin could. The second guard is refused, and the guard of the
// job continues.
func (v *jobRun) secondGuard() error {
	out, err := v.onNode(v.testNode.Command("guard", "--job", strconv.Itoa(v.id)))
	if err == nil || !strings.Contains(out, "holds it") {
		return fmt.Errorf("a second guard of the job prints %q, %v", out, err)
	}
	rank, err := v.victim()
	if err != nil {
		return err
	}
	return send(rank, unix.SIGKILL)
}

// breakPolicy puts a mistake into the policy of the job's node before the job is submitted.
func (v *jobRun) breakPolicy() error {
	return os.WriteFile(v.testNode.Paths().Policy(), []byte("version = 1\nrule \"half\" {\n"), 0o644)
}

func (v *jobRun) mendPolicy() error {
	return os.WriteFile(v.testNode.Paths().Policy(), []byte(v.policies[v.name]), 0o644)
}

// daemon returns a control daemon of the job, or its server.
func (v *jobRun) daemon(server bool) (proc.Process, error) {
	dir := filepath.Join(v.testNode.Paths().Run(), "jobs", strconv.Itoa(v.id)) + "/"
	for range 20 { // on a loaded machine, the first search may come before the processes have their environment
		below, err := v.testNode.Below(dir)
		if err != nil {
			return proc.Process{}, err
		}
		for _, p := range below {
			if strings.Contains(commandLine(p.PID), "-mps-server") == server {
				return p, nil
			}
		}
		wait.Sleep(v.ctx, 100*time.Millisecond)
	}
	return proc.Process{}, fmt.Errorf("no daemon or server below %s: Slurm has %s\n%s", dir, v.states(), v.printed())
}

func commandLine(pid int) string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.ReplaceAll(string(line), "\x00", " ")
}

// hook waits until a hook of the job has begun, and returns its process. If the hook has ended by then, the fault is
// late.
func (v *jobRun) hook(program string) (proc.Process, error) {
	path := filepath.Join(v.folder, fmt.Sprintf("%d.%s", v.id, program))
	for {
		content, _ := os.ReadFile(path)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil {
			stat, err := lab.ReadStat(pid)
			v.late = err != nil || !stat.Running() || !strings.Contains(commandLine(pid), v.Top)
			return stat.Process, nil
		}
		if !wait.Sleep(v.ctx, time.Millisecond) {
			return proc.Process{}, fmt.Errorf("the %s of job %d does not begin: %s", program, v.id, v.states())
		}
	}
}

// besideTheVictim returns the programs that compute and that the fault must not harm. These are the programs of other
// steps. If the launcher of the first step lets its other ranks continue, they count too.
func (v *jobRun) besideTheVictim() []proc.Process {
	var all []proc.Process
	for n, ranks := range v.running {
		if n == 0 && (v.ofAStep() || v.steps[0].launcher != "srun") {
			continue
		}
		if n == 0 {
			ranks = ranks[1:]
		}
		all = append(all, ranks...)
	}
	return all
}

func (v *jobRun) ofAStep() bool { return strings.HasSuffix(v.fault.name, "of a step") }

// noticed is longer than the time from a kill in mid-kernel to the error of the neighbours, which is 140 to 190 ms
// (measured).
const noticed = 250 * time.Millisecond

// finish ends the ranks that still compute after the fault. First it waits until the neighbours would have noticed
// the fault.
func (v *jobRun) finish() error {
	if v.fault.long || v.fault.when != computing {
		return nil
	}
	if v.ofAStep() {
		if err := v.until("the end of the step", func() bool { return !slices.ContainsFunc(v.running[0], proc.Process.Running) }); err != nil {
			return err
		}
	}
	wait.Sleep(v.ctx, noticed)
	var failed error
	for _, rank := range slices.Concat(v.running...) {
		failed = errors.Join(failed, send(rank, unix.SIGTERM))
	}
	if v.fault.array { // the other tasks of the array compute for forLong
		failed = errors.Join(failed, v.scancel(strconv.Itoa(v.array)))
	}
	return failed
}

// scancel cancels as the user. Its exit code is ignored. If an answer is slow, scancel asks again, and a job that the
// first request has ended is then an error. The soak waits for the end itself.
func (v *jobRun) scancel(args ...string) error {
	_, err := v.Run(v.ctx, v.User, "scancel", args...)
	return err
}

// scancelled cancels. If the job is still there after 3 s, it cancels the whole job, as a user would.
func (v *jobRun) scancelled(args ...string) error {
	if err := v.scancel(args...); err != nil {
		return err
	}
	for range 100 {
		if v.isOver() || !wait.Sleep(v.ctx, 30*time.Millisecond) {
			return nil
		}
	}
	return v.scancel(strconv.Itoa(v.id))
}

func (v *jobRun) scontrol(args ...string) error {
	result, err := v.Run(v.ctx, lab.Root, "scontrol", args...)
	if err == nil && result.Exit != 0 {
		err = fmt.Errorf("scontrol %q: code %d: %s%s", args, result.Exit, result.Stdout, result.Stderr)
	}
	return err
}

var stepLine = regexp.MustCompile(`(?m)^step (\d+)$`)

func (v *jobRun) ofStep(args ...string) error {
	m := stepLine.FindStringSubmatch(v.outputs(v.id)[0])
	if m == nil {
		return errors.New("the first step has not printed its number")
	}
	return v.scancel(append(args, fmt.Sprintf("%d.%s", v.id, m[1]))...)
}

func (v *jobRun) suspended(then func() error) error {
	if err := v.scontrol("suspend", strconv.Itoa(v.id)); err != nil {
		return err
	}
	wait.Sleep(v.ctx, 300*time.Millisecond)
	return then()
}

func (v *jobRun) slurmdStopped() error {
	proc, err := v.NodeProc(v.name)
	if err != nil {
		return err
	}
	if err := send(proc, unix.SIGSTOP); err != nil {
		return err
	}
	wait.Sleep(v.ctx, 500*time.Millisecond)
	return send(proc, unix.SIGCONT)
}

// reboot switches the node off and on. Its GPUs start in the default mode. The state is still there, as on a node
// whose /run is on a disk. On a node without the state there is nothing to check.
func (v *jobRun) reboot() error {
	if err := v.PowerOff(v.name); err != nil {
		return err
	}
	for i := range e2e.GPUsOfANode {
		if err := v.testNode.Sim.Node.GPU(i).SetMode(0); err != nil {
			return err
		}
	}
	if err := v.testNode.LoseGroups(); err != nil {
		return err
	}
	if err := v.StartNode(v.name); err != nil {
		return err
	}
	// Slurm requeues the job or fails it, after the node has reported that it has no job. After 3 s the soak cancels
	// the job, as a user would.
	for range 100 {
		if v.isOver() || !wait.Sleep(v.ctx, 30*time.Millisecond) {
			return nil
		}
	}
	if err := v.scancel(strconv.Itoa(v.id)); err != nil && !v.isOver() {
		return err
	}
	return nil
}

// send sends a signal, as soon as the process is heard.
func send(p proc.Process, signal unix.Signal) error {
	return lab.Heard(func() error { return p.Kill(signal) })
}
