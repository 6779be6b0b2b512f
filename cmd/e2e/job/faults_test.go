// SPDX-License-Identifier: Apache-2.0

package job_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// Whatever fails in a prolog, the node is quiet when the prolog has exited, and the exit code drains the node.
//
// Contract: R1
func TestAPrologThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		breaks func(testNode)
		want   string
	}{
		{"the daemon dies at its start", func(p testNode) { p.Fault("dies_at_start", "1") }, `prolog: cannot start \S+nvidia-cuda-mps-control -d: .*`},
		{"the daemon is deaf", func(p testNode) { p.Fault("deaf", "1") }, `prolog: cannot ask daemon of \S+/jobs/7/0/pipe "get_default_active_thread_percentage": the daemon does not answer`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestNode(t, "", node.H200)
			c.breaks(p)
			e2e.Says(t, p.Must(1, p.Job(7, "0"), "prolog"), c.want)
			p.Clean()
		})
	}
}

// Whatever an epilog finds running, stopped or missing, it ends in time and leaves nothing behind.
func TestAnEpilogEndsWhatIsLeft(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		breaks func(testNode, lease.Daemon)
	}{
		{"an idle daemon", func(testNode, lease.Daemon) {}},
		{"a client that goes on", func(p testNode, _ lease.Daemon) { p.Client(7, "spin", "-ms", "5", "-for", "100") }},
		{"a client that is stopped", func(p testNode, _ lease.Daemon) {
			cmd := p.Client(7, "spin", "-ms", "5", "-for", "100")
			_ = cmd.Process.Signal(syscall.SIGSTOP)
		}},
		{"a daemon that is stopped", func(p testNode, d lease.Daemon) { _ = d.Proc.Kill(syscall.SIGSTOP) }},
		{"a server that is stopped", func(p testNode, d lease.Daemon) {
			p.Client(7, "spin", "-ms", "5", "-for", "100")
			pids, _ := p.Processes()
			for _, pid := range pids {
				if stat, err := proc.ReadStat(pid); err == nil && pid != d.Proc.PID {
					_ = stat.Kill(syscall.SIGSTOP)
				}
			}
		}},
		{"a daemon that was killed", func(p testNode, d lease.Daemon) { _ = d.Proc.Kill(syscall.SIGKILL) }},
		{"a daemon that ignores quit", func(p testNode, _ lease.Daemon) { p.Fault("ignore_quit", "1") }},
		{"a daemon that went deaf", func(p testNode, _ lease.Daemon) { p.Fault("deaf", "1") }},
		{"a user who emptied the pipe folder", func(p testNode, d lease.Daemon) {
			entries, _ := os.ReadDir(d.PipeDir)
			for _, entry := range entries {
				_ = os.Remove(filepath.Join(d.PipeDir, entry.Name()))
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestNode(t, testnode.Default(`drain_grace = "200ms"`), node.H200)
			p.Facts(`epilog_deadline = "20s"`)
			p.Open(p.Job(7, "0"))
			c.breaks(p, p.Ticket(7).Daemons[0])
			began := time.Now()
			p.Must(0, p.Job(7, "0"), "epilog")
			t.Logf("%v", time.Since(began).Round(time.Millisecond))
			p.Clean()
		})
	}
}

// An epilog that cannot restore a mode keeps the lease, drains the node and prints the exact repair command. When the
// mode can be set again, that command restores it.
//
// Contract: M1
func TestAnEpilogThatCannotRestoreAMode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, fault string
		code        int
		want        string
	}{
		{"it is refused", "nvmlDeviceSetComputeMode", 15, `cannot set compute mode of %s to default: .*`},
		{"it is accepted and not done", "nvmlDeviceSetComputeMode.ignored", 1, `cannot restore compute mode of %s: set to default, and it reads exclusive_process`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestNode(t, "", node.H200)
			p.Open(p.Job(7, "0"))
			p.Fail(c.fault, c.code, 0)
			out := p.Must(1, p.Job(7, "0"), "epilog")
			uuid := string(p.UUID(0))
			e2e.Says(t, out, fmt.Sprintf(`epilog: `+c.want+`: the lease is kept; to repair: nvidia-smi -i %s -c DEFAULT; SLURM_SCRIPT_CONTEXT=epilog_slurmd SLURM_JOB_ID=7 \S+/epilog --root %s`, uuid, uuid, p.Root))
			if _, err := os.Stat(filepath.Join(p.Paths().Run(), "leases/7.json")); err != nil {
				t.Errorf("the lease: %v", err)
			}
			must.OK(t, os.Remove(filepath.Join(p.Sim.Node.GPU(0).Dir, "errors", c.fault)))
			// This runs the command of the message, as an admin pastes it.
			repair := out[strings.LastIndex(out, "SLURM_SCRIPT_CONTEXT="):]
			if text, err := exec.Command("/bin/sh", "-c", repair).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", repair, err, text)
			}
			p.Clean()
		})
	}
}

// A control program ends with the prolog that started it. Otherwise it could start a daemon for which no epilog
// waits.
//
// Contract: R9
func TestTheControlProgramEndsWithItsParent(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	started := filepath.Join(e2e.PublicDir(t), "started")
	p.Write(started, "")
	must.OK(t, os.Chmod(started, 0o666))
	p.ControlIs("#!/bin/sh\necho $$ >" + started + "\nexec sleep 900\n")
	job, line := p.Job(7, "0"), p.Command("prolog")
	prolog := exec.CommandContext(p.Ctx, line[0], line[1:]...)
	prolog.Dir, prolog.Env = "/", job.Environment("prolog_slurmd")
	must.OK(t, prolog.Start())
	var control proc.Stat
	p.Until("control program", func() bool {
		var pid int
		_, _ = fmt.Sscan(e2e.Read(t, started), &pid)
		control, _ = proc.ReadStat(pid)
		return control.Parent == prolog.Process.Pid
	})
	_ = prolog.Process.Kill()
	_ = prolog.Wait()
	if !e2e.Comes(func() bool { return !e2e.Alive(control.Process) }) {
		_ = control.Kill(unix.SIGKILL)
		t.Fatal("the control program still runs after the prolog")
	}
	p.Close(job)
}

// The epilog restores the mode that the GPU had before the job, whatever that mode was. A mode that an admin set
// during the job stays.
//
// Contract: M2
func TestModesBefore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, before, since, after string }{
		{"default", "0", "", "0"},
		{"exclusive before", "3", "", "3"},
		{"exclusive thread before", "1", "", "1"},
		{"an admin's since", "0", "2", "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestNode(t, "", node.H200)
			gpu := p.Sim.Node.GPU(0)
			set := func(mode string) {
				if mode != "" {
					must.OK(t, gpu.Set("compute_mode", mode))
				}
			}
			set(c.before)
			p.Open(p.Job(7, "0"))
			must.Equal(t, "during the job: mode", p.Modes(), "3")
			set(c.since)
			p.Must(0, p.Job(7, "0"), "epilog")
			must.Equal(t, "after the job: mode", p.Modes(), c.after)
		})
	}
}

// The epilog follows the lease. A policy that has been removed or broken since the prolog changes nothing.
//
// Contract: R2
func TestTheEpilogNeverReadsThePolicy(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	p.Open(p.Job(7, "0"))
	p.Write(p.Paths().Policy(), "rubbish {")
	p.Close(p.Job(7, "0"))
}

// An epilog waits for a running prolog of its job. It ends a prolog that hangs or is stopped, and takes over.
//
// Contract: R7
func TestAnEpilogBesideItsProlog(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		delay int
		stops bool
		takes bool
	}{{"that finishes", 500, false, false}, {"that hangs", 1_000_000, false, true}, {"that is stopped", 1000, true, true}} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestNode(t, "", node.H200)
			p.Facts(`epilog_deadline = "6s"`)
			must.OK(t, p.Sim.Node.Delay("nvmlDeviceSetComputeMode", c.delay))
			line := p.Command("prolog")
			cmd := exec.Command(line[0])
			cmd.Args, cmd.Env = line, p.Job(7, "0").Environment("prolog_slurmd")
			must.OK(t, cmd.Start())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			defer cmd.Process.Kill()
			p.SleepsInDriver(cmd.Process.Pid)
			if c.stops {
				must.OK(t, cmd.Process.Signal(syscall.SIGSTOP))
			}
			// The epilog's own calls do not wait.
			must.OK(t, p.Sim.Node.Delay("nvmlDeviceSetComputeMode", 0))
			p.Close(p.Job(7, "0"))
			if taken := strings.Contains(p.Log(), "killing the job's prolog"); taken != c.takes {
				t.Errorf("the epilog took over: %v\n%s", taken, p.Log())
			}
			<-ended
		})
	}
}

// Contract: M3
func TestMIGInstances(t *testing.T) {
	p := newTestNode(t, "", node.H100SXM.Cut(node.H100Slice3, node.H100Slice1))
	instances := []string{}
	for k := range 2 {
		uuid := must.Get(p.Sim.Node.GPU(0).Text(fmt.Sprintf("mig/%d/uuid", k)))(t)
		instances = append(instances, uuid)
	}
	job := p.Job(7, "")
	job.Extra = []string{"SLURM_JOB_GPUS=0,1", "CUDA_VISIBLE_DEVICES=" + strings.Join(instances, ",")}
	p.Open(job)
	ticket := p.Ticket(7)
	if len(ticket.Daemons) != 2 || string(ticket.Devices[0].UUID) != instances[0] || ticket.Devices[1].Daemon != 1 {
		t.Errorf("ticket %+v", ticket)
	}
	must.Equal(t, "the mode of a GPU with instances was set to", p.Modes(), "0")
	p.Close(job)
}
