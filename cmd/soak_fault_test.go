// SPDX-License-Identifier: Apache-2.0

package cmd_test

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

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"golang.org/x/sys/unix"
)

// befall waits for the moment of the fault and does it.
func (v *voyage) befall() error {
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
	if !site.Sleep(v.ctx, v.pause()) {
		return v.ctx.Err()
	}
	if v.fault.judged == othersLive {
		v.beside = v.besideTheVictim()
	}
	if err := v.act(); err != nil {
		return fmt.Errorf("cannot do %q: %w", v.fault.name, err)
	}
	return nil
}

// pause is how long a fault waits: hooks are over soon.
func (v *voyage) pause() time.Duration {
	if v.fault.when == inProlog || v.fault.when == inEpilog {
		return v.after / 8
	}
	return v.after
}

func (v *voyage) act() error {
	id := strconv.Itoa(v.id)
	switch v.fault.name {
	case "none", "none, an array":
		return nil
	case "a second guard":
		return v.secondGuard()
	case "a policy that breaks and heals": // it was broken before the job came
		if v.ending == "continued" {
			return v.mendPolicy()
		}
		return nil
	case "scancel of the job", "scancel of the job at once", "scancel of a task of an array":
		return v.scancel(id)
	case "scancel of an array":
		return v.scancel(strconv.Itoa(v.array))
	case "scancel --signal=KILL of the job":
		// The steps alone hear of it, and the batch script ends with them.
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
	}
	return v.signalled()
}

// signalled does the faults that are a signal to a process.
func (v *voyage) signalled() error {
	signal, whom, _ := strings.Cut(v.fault.name, " of ")
	proc, err := v.whom(strings.TrimPrefix(strings.TrimPrefix(whom, "a "), "the "))
	if err != nil || v.late {
		return err
	}
	if signal == "kill -9" {
		return proc.Kill(unix.SIGKILL)
	}
	if err := proc.Kill(unix.SIGSTOP); err != nil {
		return err
	}
	site.Sleep(v.ctx, 300*time.Millisecond)
	if v.ending == "cancelled" && v.fault.long {
		return v.scancel(strconv.Itoa(v.id))
	}
	if err := proc.Kill(unix.SIGCONT); err != nil || !v.fault.long {
		return err
	}
	return v.scancel(strconv.Itoa(v.id))
}

// whom finds the process that a fault is about.
func (v *voyage) whom(what string) (site.Process, error) {
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
func (v *voyage) victim() (site.Process, error) {
	if len(v.running[0]) == 0 {
		return site.Process{}, errors.New("the first step has no rank")
	}
	return v.running[0][0], nil
}

// guard is the job's guard, by its lease.
func (v *voyage) guard() (site.Process, error) {
	path := filepath.Join(v.play.Paths().Run(), "leases", fmt.Sprintf("%d.json", v.id))
	content, err := os.ReadFile(path)
	if err != nil {
		return site.Process{}, err
	}
	var l struct{ Guard site.Process }
	if err := json.Unmarshal(content, &l); err != nil || l.Guard.PID == 0 {
		return site.Process{}, fmt.Errorf("%s names no guard: %v", path, err)
	}
	return l.Guard, nil
}

// secondGuard is one that an admin starts beside the job's: it is refused, and the job's goes on.
func (v *voyage) secondGuard() error {
	out, err := v.onNode(v.play.Command("guard", "--job", strconv.Itoa(v.id)))
	if err == nil || !strings.Contains(out, "holds it") {
		return fmt.Errorf("a second guard of the job says %q, %v", out, err)
	}
	rank, err := v.victim()
	if err != nil {
		return err
	}
	return rank.Kill(unix.SIGKILL)
}

// breakPolicy makes a mistake in the policy of the job's node, before the job comes.
func (v *voyage) breakPolicy() error {
	return os.WriteFile(v.play.Paths().Policy(), []byte("version = 1\nrule \"half\" {\n"), 0o644)
}

func (v *voyage) mendPolicy() error {
	return os.WriteFile(v.play.Paths().Policy(), []byte(v.policies[v.name]), 0o644)
}

// daemon is a control daemon of the job, or its server.
func (v *voyage) daemon(server bool) (site.Process, error) {
	dir := filepath.Join(v.play.Paths().Run(), "jobs", strconv.Itoa(v.id)) + "/"
	for range 20 { // on a loaded machine a look may end before all environments have come
		below, err := v.play.Below(dir)
		if err != nil {
			return site.Process{}, err
		}
		for _, p := range below {
			if strings.Contains(commandLine(p.PID), "-mps-server") == server {
				return p, nil
			}
		}
		site.Sleep(v.ctx, 100*time.Millisecond)
	}
	return site.Process{}, fmt.Errorf("no daemon or server below %s: Slurm has %s\n%s", dir, v.states(), v.said())
}

func commandLine(pid int) string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.ReplaceAll(string(line), "\x00", " ")
}

// hook waits until a hook of the job has begun and returns who it is. One that has ended by then is late to be harmed.
func (v *voyage) hook(program string) (site.Process, error) {
	path := filepath.Join(v.folder, fmt.Sprintf("%d.%s", v.id, program))
	for {
		content, _ := os.ReadFile(path)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil {
			stat, err := site.ReadStat(pid)
			v.late = err != nil || !stat.Running() || !strings.Contains(commandLine(pid), v.dir)
			return stat.Process, nil
		}
		if !site.Sleep(v.ctx, time.Millisecond) {
			return site.Process{}, fmt.Errorf("the %s of job %d does not begin: %s", program, v.id, v.states())
		}
	}
}

// besideTheVictim are the programs that compute and that the fault may not harm: those of other steps, and of the
// same one where its launcher lets it go on.
func (v *voyage) besideTheVictim() []site.Process {
	var all []site.Process
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

func (v *voyage) ofAStep() bool { return strings.HasSuffix(v.fault.name, "of a step") }

// noticed outlasts the time from a kill in mid-kernel to the neighbours' error, 140 to 190 ms (measured).
const noticed = 250 * time.Millisecond

// finish asks the ranks to end that compute on after the fault, once neighbours would have noticed it.
func (v *voyage) finish() error {
	if v.fault.long || v.fault.when != computing {
		return nil
	}
	if v.ofAStep() {
		if err := v.until("the end of the step", func() bool { return !slices.ContainsFunc(v.running[0], site.Process.Running) }); err != nil {
			return err
		}
	}
	site.Sleep(v.ctx, noticed)
	var failed error
	for _, rank := range slices.Concat(v.running...) {
		failed = errors.Join(failed, rank.Kill(unix.SIGTERM))
	}
	if v.fault.array { // its other tasks compute as long
		failed = errors.Join(failed, v.scancel(strconv.Itoa(v.array)))
	}
	return failed
}

// scancel asks as the user. Its exit code says nothing: it asks again where an answer is slow, and then what has
// ended by the first question is an error. The end itself is what is waited for.
func (v *voyage) scancel(args ...string) error {
	_, err := v.Run(v.ctx, v.user, "scancel", args...)
	return err
}

// scancelled asks again as a user would whose job is still there.
func (v *voyage) scancelled(args ...string) error {
	if err := v.scancel(args...); err != nil {
		return err
	}
	for range 100 {
		if v.isOver() || !site.Sleep(v.ctx, 30*time.Millisecond) {
			return nil
		}
	}
	return v.scancel(strconv.Itoa(v.id))
}

func (v *voyage) scontrol(args ...string) error {
	result, err := v.Run(v.ctx, lab.Root, "scontrol", args...)
	if err == nil && result.Exit != 0 {
		err = fmt.Errorf("scontrol %q: code %d: %s%s", args, result.Exit, result.Stdout, result.Stderr)
	}
	return err
}

var saysStep = regexp.MustCompile(`(?m)^step (\d+)$`)

func (v *voyage) ofStep(args ...string) error {
	m := saysStep.FindStringSubmatch(v.outputs(v.id)[0])
	if m == nil {
		return errors.New("the first step has not said its number")
	}
	return v.scancel(append(args, fmt.Sprintf("%d.%s", v.id, m[1]))...)
}

func (v *voyage) suspended(then func() error) error {
	if err := v.scontrol("suspend", strconv.Itoa(v.id)); err != nil {
		return err
	}
	site.Sleep(v.ctx, 300*time.Millisecond)
	return then()
}

func (v *voyage) slurmdStopped() error {
	proc, err := v.NodeProc(v.name)
	if err != nil {
		return err
	}
	if err := proc.Kill(unix.SIGSTOP); err != nil {
		return err
	}
	site.Sleep(v.ctx, 500*time.Millisecond)
	return proc.Kill(unix.SIGCONT)
}

// reboot takes the node's power away and gives it back. Its GPUs come up in the default mode. The state is still there,
// as on a node whose /run is on a disk; where there is none there is nothing to hold.
func (v *voyage) reboot() error {
	if err := v.PowerOff(v.name); err != nil {
		return err
	}
	for i := range gpusOfANode {
		if err := v.play.Sim.Node.GPU(i).SetMode(0); err != nil {
			return err
		}
	}
	if err := v.play.LoseGroups(); err != nil {
		return err
	}
	if err := v.StartNode(v.name); err != nil {
		return err
	}
	// Slurm requeues the job or fails it, once the node has said that it has none; who waits no longer cancels it.
	for range 100 {
		if v.isOver() || !site.Sleep(v.ctx, 30*time.Millisecond) {
			return nil
		}
	}
	if err := v.scancel(strconv.Itoa(v.id)); err != nil && !v.isOver() {
		return err
	}
	return nil
}
