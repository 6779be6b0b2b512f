// SPDX-License-Identifier: Apache-2.0

package job_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// Whatever fails in a prolog, the node is quiet when the prolog has exited, and the exit code drains the node.
//
// Contract: R1, M1, M3
func TestAPrologThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		breaks func(testNode)
		want   string
	}{
		{"the control program is not there", func(p testNode) {
			p.Write(p.Paths().ConfigFile(), fmt.Sprintf("nvml_library = %q\nmps_control = \"/nonexistent\"\n", p.Sim.NVML()))
		}, `prolog: cannot start /nonexistent -d: .*no such file or directory`},
		{"the daemon dies at its start", func(p testNode) { p.Fault("dies_at_start", "1") }, `prolog: cannot start \S+nvidia-cuda-mps-control -d: .*`},
		{"the start is silent", func(p testNode) { p.Fault("silent_start", "1") }, `prolog: cannot (ask|prepare) daemon of .*: (the daemon does not answer|no answer within 10s: .*)`},
		{"the daemon answers rubbish", func(p testNode) { p.Fault("garbage_answer", "1") }, `prolog: cannot .*`},
		{"the daemon never stops answering", func(p testNode) { p.Fault("endless_answer", "1") }, `prolog: cannot .*`},
		{"the daemon is deaf", func(p testNode) { p.Fault("deaf", "1") }, `prolog: cannot ask daemon of \S+/jobs/7/0/pipe "get_default_active_thread_percentage": the daemon does not answer`},
		{"there is no driver", func(p testNode) {
			if err := p.Sim.Node.Fail("nvmlInit_v2", 9, 0); err != nil {
				p.T.Fatal(err)
			}
		}, `prolog: cannot initialise NVML: Driver Not Loaded`},
		{"the mode may not be set", func(p testNode) { p.Fail("nvmlDeviceSetComputeMode", 4, 0) }, `prolog: cannot set compute mode of GPU-\S+ to exclusive_process: .*`},
		{"the mode is accepted and not set", func(p testNode) { p.Fail("nvmlDeviceSetComputeMode.ignored", 1, 0) }, `prolog: cannot set compute mode of GPU-\S+: set to exclusive_process, and it reads default`},
		{"the GPU is lost", func(p testNode) { p.Fail("nvmlDeviceGetUUID", 15, 0) }, `prolog: cannot .*`},
		{"an admin took the GPU out of service", func(p testNode) {
			if err := p.Sim.Node.GPU(0).SetMode(2); err != nil {
				p.T.Fatal(err)
			}
		}, `prolog: cannot use GPU-\S+: its compute mode is prohibited: an admin took it out of service`},
		{"the state cannot be written", func(p testNode) { p.Write(p.Paths().Run(), "a file") }, `prolog: cannot make state folder: .*`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestNode(t, "", node.H200)
			c.breaks(p)
			mode := p.Modes()
			e2e.Says(t, p.Must(1, p.Job(7, "0"), "prolog"), c.want)
			if p.Modes() != mode {
				t.Errorf("the mode is %s and was %s", p.Modes(), mode)
			}
			if mode == "2" {
				_ = p.Sim.Node.GPU(0).SetMode(0)
			}
			if !strings.Contains(c.name, "state") {
				p.Clean()
			}
		})
	}
}

func TestANodeThatFailsMayRunTheJobWithoutMPS(t *testing.T) {
	p := newTestNode(t, testnode.Default(`on_failure = "run_without"`), node.H200)
	p.Fault("dies_at_start", "1")
	p.Open(p.Job(7, "0"))
	if ticket := p.Ticket(7); !ticket.RunWithoutMPS || !strings.Contains(ticket.RefusalReason, "cannot start") {
		t.Errorf("ticket %+v", ticket)
	}
	env := []string{"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_NODEID=0", "PATH=/usr/bin:/bin"}
	result, err := p.Run(p.Ctx, env, "mpirun-wrap", "echo", "ran")
	if err != nil || result.Code != 0 || !strings.HasSuffix(result.Output, "ran\n") || !strings.HasPrefix(result.Output, "mpirun-wrap: running without MPS, as this site's policy allows: ") {
		t.Errorf("%+v, %v", result, err)
	}
	p.Must(0, p.Job(7, "0"), "epilog")
	p.Clean()
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
			if err := os.Remove(filepath.Join(p.Sim.Node.GPU(0).Dir, "errors", c.fault)); err != nil {
				t.Fatal(err)
			}
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
	if err := os.Chmod(started, 0o666); err != nil {
		t.Fatal(err)
	}
	p.ControlIs("#!/bin/sh\necho $$ >" + started + "\nexec sleep 900\n")
	job, line := p.Job(7, "0"), p.Command("prolog")
	prolog := exec.CommandContext(p.Ctx, line[0], line[1:]...)
	prolog.Dir, prolog.Env = "/", job.Environment("prolog_slurmd")
	if err := prolog.Start(); err != nil {
		t.Fatal(err)
	}
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
	p.Must(0, job, "epilog")
	p.Clean()
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
					if err := gpu.Set("compute_mode", mode); err != nil {
						t.Fatal(err)
					}
				}
			}
			set(c.before)
			p.Open(p.Job(7, "0"))
			if p.Modes() != "3" {
				t.Errorf("during the job: mode %s", p.Modes())
			}
			set(c.since)
			p.Must(0, p.Job(7, "0"), "epilog")
			if p.Modes() != c.after {
				t.Errorf("after the job: mode %s, want %s", p.Modes(), c.after)
			}
		})
	}
}

func TestComputeModeUnchanged(t *testing.T) {
	p := newTestNode(t, testnode.Default(`compute_mode = "unchanged"`), node.H200)
	p.Open(p.Job(7, "0"))
	if p.Modes() != "0" {
		t.Errorf("mode %s", p.Modes())
	}
	p.Must(0, p.Job(7, "0"), "epilog")
	p.Clean()
}

// The epilog follows the lease. A policy that has been removed or broken since the prolog changes nothing.
//
// Contract: R2
func TestTheEpilogNeverReadsThePolicy(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	p.Open(p.Job(7, "0"))
	p.Write(p.Paths().Policy(), "rubbish {")
	p.Must(0, p.Job(7, "0"), "epilog")
	p.Clean()
}

// An epilog waits for a running prolog of its job. It ends a prolog that hangs, and takes over.
//
// Contract: R7
func TestAnEpilogBesideItsProlog(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		delay int
		takes bool
	}{{"that finishes", 500, false}, {"that hangs", 1_000_000, true}} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestNode(t, "", node.H200)
			p.Facts(`epilog_deadline = "6s"`)
			if err := p.Sim.Node.Delay("nvmlDeviceSetComputeMode", c.delay); err != nil {
				t.Fatal(err)
			}
			line := p.Command("prolog")
			cmd := exec.Command(line[0])
			cmd.Args, cmd.Env = line, p.Job(7, "0").Environment("prolog_slurmd")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			defer cmd.Process.Kill()
			p.SleepsInDriver(cmd.Process.Pid)
			// The epilog's own calls do not wait.
			if err := p.Sim.Node.Delay("nvmlDeviceSetComputeMode", 0); err != nil {
				t.Fatal(err)
			}
			p.Must(0, p.Job(7, "0"), "epilog")
			p.Clean()
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
		uuid, err := p.Sim.Node.GPU(0).Text(fmt.Sprintf("mig/%d/uuid", k))
		if err != nil {
			t.Fatal(err)
		}
		instances = append(instances, uuid)
	}
	job := p.Job(7, "")
	job.Extra = []string{"SLURM_JOB_GPUS=0,1", "CUDA_VISIBLE_DEVICES=" + strings.Join(instances, ",")}
	p.Open(job)
	ticket := p.Ticket(7)
	if len(ticket.Daemons) != 2 || string(ticket.Devices[0].UUID) != instances[0] || ticket.Devices[1].Daemon != 1 {
		t.Errorf("ticket %+v", ticket)
	}
	if p.Modes() != "0" {
		t.Errorf("the mode of a GPU with instances was set to %s", p.Modes())
	}
	p.Must(0, job, "epilog")
	p.Clean()
}

// A ticket refuses a job if it is not certain which GPU is meant, or if the GPU cannot be shared. No node drains.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		model  node.Model
		gres   string
		gpus   string
		reason string
	}{
		{"no GPU", node.H200, "", "", `job 7 asks for MPS and has no GPU on node n1: submit it with --gres=gpu:N`},
		{"two types", node.H200, "Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1\n", "0",
			`cannot resolve GPUs of job 7: node n1 has GPU types a and b in slurm.conf, and Slurm may name only a part of the job's GPUs: give MPS jobs a node with one type`},
		{"older than Volta", node.P100, "", "0", `GPU-\S+ \(Tesla P100\S*\) has compute capability 6.0: MPS shares a GPU safely from 7.0 \(Volta\) on`},
		{"a whole GPU in MIG mode", node.H100SXM.Cut(node.H100Slice1), "", "0", `GPU-\S+ is in MIG mode, and the job has it whole: ask for an instance of it`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestNode(t, "", c.model, c.model)
			if c.gres != "" {
				p.Write(p.Gres(), c.gres)
				p.Write(p.Conf, "NodeName=n1 Gres=gpu:a:1,gpu:b:1\n")
			}
			p.Must(0, p.Job(7, c.gpus), "prolog")
			if got := p.Ticket(7).RefusalReason; !regexp.MustCompile("^" + c.reason + "$").MatchString(got) {
				t.Errorf("got  %s\nwant %s", got, c.reason)
			}
			if p.Modes() != "00" {
				t.Errorf("modes %s", p.Modes())
			}
			p.Must(0, p.Job(7, c.gpus), "epilog")
			p.Clean()
		})
	}
}

// If root may not raise slurmd's limit of open files, a GPU gets only as many ranks as the daemon can serve. If that
// is fewer than one, the prolog fails with a message.
func TestFewOpenFiles(t *testing.T) {
	p := newTestNode(t, "", node.H200, node.H200)
	prolog := func(files int, job testnode.Job) (int, string) {
		t.Helper()
		line := append([]string{fmt.Sprintf("--nofile=%d:%d", files, files), "setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"}, p.Command("prolog")...)
		cmd := exec.CommandContext(p.Ctx, "prlimit", line...)
		cmd.Env = append(job.Environment("prolog_slurmd"), "PATH=/usr/bin:/bin")
		said, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(said)
	}
	for _, c := range []struct {
		files   int
		gpus    string
		clients int
	}{{1024, "0", 12}, {1024, "0,1", 6}, {16384, "0,1", 48}} {
		if code, said := prolog(c.files, p.Job(7, c.gpus)); code != 0 {
			t.Fatalf("%d files: code %d: %s\n%s", c.files, code, said, p.Log())
		}
		if got := p.Ticket(7).Grant.MaxClients; got != c.clients {
			t.Errorf("%d files, GPUs %s: max_clients %d, want %d", c.files, c.gpus, got, c.clients)
		}
		if limits := e2e.Read(t, fmt.Sprintf("/proc/%d/limits", p.Ticket(7).Daemons[0].Proc.PID)); !strings.Contains(limits, fmt.Sprintf("Max open files            %d", c.files)) {
			t.Errorf("the daemon's limits:\n%s", limits)
		}
		p.Must(0, p.Job(7, c.gpus), "epilog")
	}
	if !strings.Contains(p.Log(), `"granted":48,"max_clients":12`) {
		t.Errorf("the log does not report the smaller grant:\n%s", p.Log())
	}
	code, said := prolog(63, p.Job(8, "0"))
	if want := "prolog: cannot start a control daemon of 1 GPUs: its limit of open files is 63, too few for one client on each: set LimitNOFILE=131072 in slurmd.service and restart slurmd\n"; code != 1 || said != want {
		t.Errorf("code %d\ngot  %swant %s", code, said, want)
	}
	p.Must(0, p.Job(8, "0"), "epilog")
	p.Clean()
}
