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
	if !v.fault.early {
		if err := v.compute(); err != nil {
			return err
		}
	}
	if !wait.Sleep(v.ctx, v.after) {
		return v.ctx.Err()
	}
	if v.fault.judged == othersLive {
		v.beside = v.besideTheVictim()
	}
	if err := v.fault.do(v); err != nil {
		return fmt.Errorf("cannot do %q: %w", v.fault.name, err)
	}
	return nil
}

func nothing(*jobRun) error { return nil }

// job is the number of the job, or of the task that computes.
func (v *jobRun) job() string { return strconv.Itoa(v.id) }

// cancelled cancels the job. With --signal=KILL, the signal reaches only the steps, and the batch script ends with them.
func cancelled(args ...string) func(*jobRun) error {
	return func(v *jobRun) error { return v.scancel(append(args, v.job())...) }
}

// asked sends a signal by scancel, and cancels a job that is still there after 3 s, as a user would.
func asked(args ...string) func(*jobRun) error {
	return func(v *jobRun) error {
		if err := v.scancel(append(args, v.job())...); err != nil {
			return err
		}
		return v.cancelLate()
	}
}

func (v *jobRun) arrayCancelled() error { return v.scancel(strconv.Itoa(v.array)) }

// stepEnded sends a signal to the first step, or cancels it.
func stepEnded(args ...string) func(*jobRun) error {
	return func(v *jobRun) error {
		m := stepLine.FindStringSubmatch(v.outputs(v.id)[0])
		if m == nil {
			return errors.New("the first step has not printed its number")
		}
		return v.scancel(append(args, v.job()+"."+m[1])...)
	}
}

var stepLine = regexp.MustCompile(`(?m)^step (\d+)$`)

// killed kills the process that target finds.
func killed(target func(*jobRun) (proc.Process, error)) func(*jobRun) error {
	return func(v *jobRun) error {
		p, err := target(v)
		if err != nil {
			return err
		}
		return send(p, unix.SIGKILL)
	}
}

// stopped stops the process that target finds, and cancels the job. Before that, half of the processes go on.
func stopped(target func(*jobRun) (proc.Process, error)) func(*jobRun) error {
	return func(v *jobRun) error {
		p, err := target(v)
		if err == nil {
			err = v.stop(p)
		}
		if err == nil && !v.stays {
			err = send(p, unix.SIGCONT)
		}
		return errors.Join(err, v.scancel(v.job()))
	}
}

// stop stops a process, and returns when others may have noticed.
func (v *jobRun) stop(p proc.Process) error {
	err := send(p, unix.SIGSTOP)
	wait.Sleep(v.ctx, 400*time.Millisecond)
	return err
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

func (v *jobRun) daemon() (proc.Process, error) { return v.ofMPS(false) }
func (v *jobRun) server() (proc.Process, error) { return v.ofMPS(true) }

// ofMPS returns a control daemon of the job, or its server.
func (v *jobRun) ofMPS(server bool) (proc.Process, error) {
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

// besideTheVictim returns the programs that compute and that the fault must not harm. These are the programs of other
// steps. If the launcher of the first step lets its other ranks continue, they count too.
func (v *jobRun) besideTheVictim() []proc.Process {
	var all []proc.Process
	for n, ranks := range v.running {
		if n == 0 && (v.fault.ofStep || v.steps[0].launcher != "srun") {
			continue
		}
		if n == 0 {
			ranks = ranks[1:]
		}
		all = append(all, ranks...)
	}
	return all
}

// noticed is longer than the time from a kill in mid-kernel to the error of the neighbours, which is 140 to 190 ms
// (measured).
const noticed = 250 * time.Millisecond

// finish ends the ranks that still compute after the fault. First it waits until the neighbours would have noticed
// the fault.
func (v *jobRun) finish() error {
	if v.fault.long || v.fault.early {
		return nil
	}
	if v.fault.ofStep {
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

func (v *jobRun) scontrol(args ...string) error {
	result, err := v.Run(v.ctx, lab.Root, "scontrol", args...)
	if err == nil && result.Exit != 0 {
		err = fmt.Errorf("scontrol %q: code %d: %s%s", args, result.Exit, result.Stdout, result.Stderr)
	}
	return err
}

func (v *jobRun) suspended(then func() error) error {
	if err := v.scontrol("suspend", strconv.Itoa(v.id)); err != nil {
		return err
	}
	wait.Sleep(v.ctx, 300*time.Millisecond)
	return then()
}

// rebooted switches the node off and on. Its GPUs start in the default mode. The state is still there, as on a node
// whose /run is on a disk. On a node without the state there is nothing to check.
func (v *jobRun) rebooted() error {
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
	// Slurm requeues the job or fails it, after the node has reported that it has no job.
	return v.cancelLate()
}

// cancelLate cancels a job that is not over after 3 s.
func (v *jobRun) cancelLate() error {
	for range 100 {
		if v.isOver() || !wait.Sleep(v.ctx, 30*time.Millisecond) {
			return nil
		}
	}
	return v.scancel(v.job())
}

// send sends a signal, as soon as the process is heard.
func send(p proc.Process, signal unix.Signal) error {
	return lab.Heard(func() error { return p.Kill(signal) })
}
