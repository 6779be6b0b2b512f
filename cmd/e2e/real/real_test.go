// SPDX-License-Identifier: Apache-2.0

package real_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// testNode is the node of one test, with the methods of these tests alone.
type testNode struct{ e2e.Node }

// machine is the machine of the TestReal* tests: its GPUs and its control program.
type machine struct {
	gpus    int
	control string
}

func onRealGPUs() bool { return os.Getenv("CONFORMANCE_TARGET") == "real" }

// machineEnvironment returns the variables that describe the links of this machine's GPUs. A program that does not
// inherit the environment of the test needs them too.
func machineEnvironment() (env []string) {
	for _, name := range []string{"NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// realMachine returns this machine. It skips the test on a machine without GPUs.
func realMachine(t *testing.T) machine {
	t.Helper()
	if !onRealGPUs() {
		t.Skip("for a machine with a GPU: CONFORMANCE_TARGET=real")
	}
	must.Have(t, testnode.RealGPUs() != 0, "this machine has no GPU, or no "+testnode.RealControl)
	return machine{gpus: testnode.RealGPUs(), control: testnode.RealControl}
}

// realTestNode is a test node on this machine's own GPUs. It changes their compute modes only if ALLOW_MODE_CHANGES=1.
func realTestNode(t *testing.T, attributes ...string) testNode {
	t.Helper()
	return realTestNodeUnder(t, testnode.Default(append(attributes, testnode.Compute())...))
}

// realTestNodeUnder is realTestNode with a policy. The policy sets the compute mode of the GPUs.
func realTestNodeUnder(t *testing.T, policy string) testNode {
	t.Helper()
	m := realMachine(t)
	built := must.Get(e2e.Built())(t)
	dir := e2e.PublicDir(t)
	s := must.Get(testnode.Real(dir, built, policy))(t)
	p := testNode{e2e.Installed(t, s, dir, m.gpus, time.Minute)}
	t.Cleanup(p.closeLeft)
	return p
}

// nameControl writes the path of a control program into the site file.
func (p testNode) nameControl(program string) {
	p.T.Helper()
	facts := fmt.Sprintf("mps_control = %q\n", program)
	for line := range strings.Lines(e2e.Read(p.T, p.Paths().ConfigFile())) {
		if !strings.HasPrefix(line, "mps_control") {
			facts += line
		}
	}
	p.Write(p.Paths().ConfigFile(), facts)
}

// closeLeft ends the jobs of a test that has failed before its epilog, so that no GPU keeps a changed mode.
func (p testNode) closeLeft() {
	if len(p.Before) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second) // the context of the testNode may be over
	defer cancel()
	must.Note(p.T, p.CloseLeft(ctx))
}

// holdsModes checks that only the GPUs of an open job are exclusive. It checks nothing if modes are left alone.
func (p testNode) holdsModes(job uint32) {
	p.T.Helper()
	var held []site.UUID
	for _, device := range p.Ticket(job).Devices {
		held = append(held, device.UUID)
	}
	if wrong, err := p.WrongModes(held...); err != nil || len(wrong) > 0 {
		p.T.Errorf("while job %d is open: %q, %v", job, wrong, err)
	}
}

// A whole job with a real daemon. A second prolog adopts the daemon, a rank sees the SMs of the ceiling, and a second
// epilog succeeds.
func TestRealLife(t *testing.T) {
	p := realTestNode(t, "ceiling = 50", `share = "even"`)
	p.Must(0, p.Job(7, "0"), "prolog")
	p.holdsModes(7)
	first := p.Ticket(7)
	p.Must(0, p.Job(7, "0"), "prolog")
	must.Hold(t, p.Ticket(7).Daemons[0].Proc == first.Daemons[0].Proc, "not adopted")
	p.holdsModes(7)
	p.HoldsDaemon(first.Daemons[0])
	device := first.Devices[0]
	want := device.SMs / 2 / device.TPC * device.TPC
	got := e2e.SMCounts(t, p.info(7))
	p.showTree()
	must.Hold(t, len(got) == 1 && got[0] == want,
		"under a ceiling of 50 %% a rank sees %v of %d SMs, want %d", got, device.SMs, want)
	p.Must(0, p.Job(7, "0"), "epilog")
	p.Must(0, p.Job(7, "0"), "epilog")
	p.Clean()
}

// showTree prints the daemon and its servers with their parents and sessions. The programs recognise them by these.
func (p testNode) showTree() {
	tree := must.Get(exec.Command("ps", "-eo", "pid,ppid,pgid,sid,uid,args").CombinedOutput())(p.T)
	for line := range strings.Lines(string(tree)) {
		if strings.Contains(line, "PPID") || strings.Contains(line, "nvidia-cuda-mps") {
			fmt.Print(line)
		}
	}
}

// info returns what a rank sees that asks for the whole GPU by itself. A rank cannot raise the ceiling.
func (p testNode) info(job uint32) string {
	p.T.Helper()
	line := p.Command("mpirun-wrap", "env", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100", p.CudaClient(), "info")
	cmd := p.AsUser(job, line)
	out, err := cmd.CombinedOutput()
	must.Have(p.T, err == nil, "%v: %s", err, out)
	return string(out)
}

// If a control program works for all users except the job's, the cause is that user. The job is refused, the node
// stays in service, and nothing is left. The trial's daemon is a real one that runs as the account nobody.
func TestRealTrial(t *testing.T) {
	p := realTestNode(t)
	script := filepath.Join(filepath.Dir(p.Root), "nvidia-cuda-mps-control")
	p.Write(script, fmt.Sprintf("#!/bin/sh\n[ $(id -u) = %d ] && exit 1\nexec %s \"$@\"\n", e2e.UID, realMachine(t).control))
	must.OK(t, os.Chmod(script, 0o755))
	p.nameControl(script)
	p.Must(0, p.Job(7, "0"), "prolog")
	fmt.Print(p.Log())
	if refused := p.Ticket(7).RefusalReason; !strings.Contains(refused, "submit the job again") {
		t.Errorf("refused: %q", refused)
	}
	p.Must(0, p.Job(7, "0"), "epilog")
	p.Clean()
}

// The tools on a real driver and daemon, with two running ranks. Status and metrics count them, audit finds nothing,
// and doctor finds that control program and driver have the same version.
func TestRealTools(t *testing.T) {
	p := realTestNode(t, `drain_grace = "200ms"`)
	p.Must(0, p.Job(7, "0"), "prolog")
	for range 2 {
		p.Client(7, "spin", "-ms", "5", "-for", "60")
	}
	outputs := map[string]string{}
	if program := realProgram(); program != "" {
		p.nameControl(program) // it does not change the open lease
	}
	for _, tool := range [][]string{{"status"}, {"audit"}, {"metrics"}, {"doctor", "--json", "--slurmd", "none", "--node", "n1", "--slurm-conf", p.Conf}} {
		line := p.Command("mpsctl", tool...)
		out, err := exec.CommandContext(p.Ctx, line[0], line[1:]...).Output()
		fmt.Printf("mpsctl %s: %v\n%s", tool[0], err, out)
		switch {
		case tool[0] == "doctor": // it exits with an error, because no programs are installed on this machine
		case err != nil:
			t.Errorf("mpsctl %s: %v", tool[0], err)
		}
		outputs[tool[0]] = string(out)
	}
	must.Hold(t, regexp.MustCompile(`slurm_mps_gpu_clients\{gpu="0"[^}]*} 2\n`).MatchString(outputs["metrics"]),
		"metrics does not count two clients on GPU 0")
	var doctor struct {
		Checked  struct{ Driver string }
		Findings []struct{ Kind string }
	}
	must.OK(t, json.Unmarshal([]byte(outputs["doctor"]), &doctor))
	must.Hold(t, doctor.Checked.Driver != "", "doctor did not ask the driver")
	for _, finding := range doctor.Findings {
		must.Hold(t, finding.Kind != "control-version" && !strings.HasPrefix(finding.Kind, "driver"), "doctor: %+v", finding)
	}
	p.Must(0, p.Job(7, "0"), "epilog")
	p.Clean()
}

// realProgram returns the control program if a script replaces it on this machine, because doctor reads no scripts.
// Otherwise it returns "".
func realProgram() string {
	const outOfTheWay = "/usr/local/nvidia/bin/nvidia-cuda-mps-control"
	if _, err := os.Stat(outOfTheWay); err == nil {
		return outOfTheWay
	}
	return ""
}

func TestRealEpilogEndsWhatIsLeft(t *testing.T) {
	spin := []string{"spin", "-ms", "400", "-for", "60"}
	for _, c := range []struct {
		name   string
		breaks func(testNode, lease.Daemon)
	}{
		{"an idle daemon", func(testNode, lease.Daemon) {}},
		{"three clients in mid-kernel", func(p testNode, _ lease.Daemon) {
			for range 3 {
				p.Client(7, spin...)
			}
		}},
		{"a client that is stopped", func(p testNode, _ lease.Daemon) { _ = p.Client(7, spin...).Process.Signal(syscall.SIGSTOP) }},
		{"a daemon that is stopped", func(p testNode, d lease.Daemon) { p.Client(7, spin...); _ = d.Proc.Kill(syscall.SIGSTOP) }},
		{"a daemon that was killed", func(p testNode, d lease.Daemon) { _ = d.Proc.Kill(syscall.SIGKILL) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := realTestNode(t, `drain_grace = "200ms"`)
			p.Facts(`epilog_deadline = "30s"`)
			p.Must(0, p.Job(7, "0"), "prolog")
			p.holdsModes(7)
			c.breaks(p, p.Ticket(7).Daemons[0])
			began := time.Now()
			p.Must(0, p.Job(7, "0"), "epilog")
			fmt.Printf("epilog after %s: %v\n%s", c.name, time.Since(began).Round(time.Millisecond), p.Log())
			p.Clean()
		})
	}
}

// A job has two GPUs in reverse order. With each scope, each rank sees the GPU of its placement.
func TestRealPlacementsOnTwoGPUs(t *testing.T) {
	for _, scope := range []string{"job", "gpu"} {
		t.Run(scope, func(t *testing.T) {
			if realMachine(t).gpus < 2 {
				t.Skip("needs two GPUs")
			}
			p := realTestNode(t, fmt.Sprintf("scope = %q", scope))
			p.Must(0, p.Job(7, "1,0"), "prolog")
			p.holdsModes(7)
			ticket := p.Ticket(7)
			must.Hold(t, len(ticket.Daemons) == map[string]int{"job": 1, "gpu": 2}[scope], "daemons %+v", ticket.Daemons)
			for rank, device := range ticket.Devices {
				cmd := p.AsUser(7, p.Command("mpirun-wrap", p.CudaClient(), "info", "-v"))
				cmd.Env = e2e.With(e2e.With(cmd.Env, "SLURM_LOCALID", fmt.Sprint(rank)), "SLURM_GTIDS", "0,1")
				out, err := cmd.CombinedOutput()
				fmt.Printf("scope %s, rank %d on %s: %s", scope, rank, device.UUID, out)
				must.Hold(t, err == nil && strings.Contains(string(out), string(device.UUID)),
					"rank %d does not see %s: %v", rank, device.UUID, err)
			}
			p.Must(0, p.Job(7, "1,0"), "epilog")
			p.Clean()
		})
	}
}

// Each rank sees in CUDA the number of SMs that the plan has for it, while all ranks run at the same time.
func TestRealCounts(t *testing.T) {
	for _, n := range []int{1, 3, 7, 8, 12, 48} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			p := realTestNode(t, `share = "even"`)
			p.Must(0, p.Job(7, "0"), "prolog")
			device := p.Ticket(7).Devices[0]
			shares, err := policy.EvenShares(policy.GPU{SMs: device.SMs, SMsPerTPC: device.TPC}, n, policy.Grant{Share: policy.Overlap(1), Ceiling: 100})
			if err != nil {
				t.Fatal(err)
			}
			ranks := p.Ranks(n, "spin", "-ms", "1", "-for", "2")
			var got, want []string
			for rank, r := range ranks {
				got = append(got, regexp.MustCompile(`sm=\d+`).FindString(r.Ready))
				want = append(want, fmt.Sprintf("sm=%d", shares[rank].SMs))
				_, _ = io.ReadAll(r.Out)
				_ = r.Cmd.Wait()
			}
			fmt.Printf("counts,%d,%s\n", n, strings.Join(got, " "))
			must.Hold(t, slices.Equal(got, want), "%d ranks see %v, planned %v", n, got, want)
			p.Must(0, p.Job(7, "0"), "epilog")
			p.Clean()
		})
	}
}
