// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// sharedGPU runs the prolog of a job whose GPU keeps its mode, so that CUDA also starts without MPS.
func sharedGPU(t *testing.T, attributes ...string) testNode {
	t.Helper()
	p := newTestNode(t, testnode.Default(append([]string{`compute_mode = "unchanged"`}, attributes...)...), node.H200)
	p.Open(p.Job(7, "0"))
	t.Cleanup(func() { p.Must(0, p.Job(7, "0"), "epilog"); p.Clean() })
	return p
}

// inFault brings the job's server into FAULT. The server stays in FAULT until the returned process has ended.
func (p testNode) inFault() *exec.Cmd {
	p.T.Helper()
	holder := p.Client(7, "spin", "-ms", "1", "-for", "100", "-hold", "100")
	faulty := p.AsUser(7, p.Command("mpirun-wrap", p.CudaClient(), "fault"))
	if out, _ := faulty.CombinedOutput(); !bytes.Contains(out, []byte("err=700")) {
		p.T.Fatalf("the client does not cause a fault: %s", out)
	}
	late := p.AsUser(7, []string{p.CudaClient(), "info"})
	d := p.Ticket(7).Daemons[0]
	late.Env = append(late.Env, "CUDA_MPS_PIPE_DIRECTORY="+d.PipeDir)
	if out, _ := late.CombinedOutput(); !bytes.Contains(out, []byte("err=807")) {
		p.T.Fatalf("a new client does not see a server in FAULT: %s", out)
	}
	return holder
}

const waiting = `^mpirun-wrap: waiting up to 30s for the MPS server of GPU-\S+, which recovers from a fatal GPU error: these processes that it hit are still there: \d+\n$`

// New clients get error 807 while the server is in FAULT. Ranks wait until the server recovers, print this once, and
// start.
//
// Contract: K2
func TestRanksWaitWhileTheServerRecovers(t *testing.T) {
	p := sharedGPU(t, `scope = "gpu"`)
	holder := p.inFault()
	table := filepath.Join(p.Ticket(7).ExchangeDir, "printed")
	printed := func() (at time.Time) {
		if info, err := os.Stat(table); err == nil {
			at = info.ModTime()
		}
		return at
	}
	before := printed()
	ranks := p.Launch(4, p.CudaClient(), "info")
	p.Until("entry of what the ranks print", func() bool { return !printed().Equal(before) })
	must.OK(t, holder.Process.Kill())
	codes, said := ranks.End()
	if fmt.Sprint(codes) != "[0 0 0 0]" || strings.Count(ranks.Out(), "err=0(") != 4 {
		t.Errorf("codes %d\n%s", codes, ranks.Out())
	}
	if len(said) != 1 || !regexp.MustCompile(waiting).MatchString(said[0]) {
		t.Errorf("the ranks print %q, want %s", said, waiting)
	}
}

// killDaemon kills the job's daemon, as a failure on the node does.
func (p testNode) killDaemon() lease.Daemon {
	p.T.Helper()
	d := p.Ticket(7).Daemons[0]
	must.OK(p.T, d.Proc.Kill(syscall.SIGKILL))
	p.Gone(d.Proc)
	return d
}

// If the daemon is gone and the policy allows it, the ranks run without MPS. Each runs on its own GPU without a
// variable that points to the daemon, and one rank reports this.
//
// Contract: K3
func TestRanksWithoutMPS(t *testing.T) {
	p := sharedGPU(t, `on_failure = "run_without"`)
	d := p.killDaemon()
	stale := []string{"CUDA_MPS_PIPE_DIRECTORY=" + d.PipeDir, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50", "CUDA_VISIBLE_DEVICES=3"}
	ranks := p.LaunchAs(e2e.UID, 2, stale, "sh", "-c", `env | grep CUDA; exec "$0" info`, p.CudaClient())
	codes, said := ranks.End()
	want := fmt.Sprintf("mpirun-wrap: running without MPS, as this site's policy allows: cannot use MPS on %s: its control daemon (%s) is gone\n",
		p.UUID(0), d.Proc)
	if fmt.Sprint(codes) != "[0 0]" || !slices.Equal(said, []string{want}) {
		t.Errorf("codes %d, %q, want %q", codes, said, want)
	}
	pattern := fmt.Sprintf(`^(CUDA_VISIBLE_DEVICES=%s\nerr=0\(cudaSuccess\) sm=132 ndev=1 .*\n){2}$`, p.UUID(0))
	if !regexp.MustCompile(pattern).MatchString(ranks.Out()) {
		t.Errorf("the programs print\n%s", ranks.Out())
	}
}

// With driver 590, MPS serves 60 clients on a GPU. Sixty ranks run at the same time, one more client gets CUDA's
// error 46, and one of 61 ranks prints the limit.
func TestSixtyRanksOnAGPU(t *testing.T) {
	p := newTestNode(t, testnode.Default(`drain_grace = "200ms"`), node.H200)
	must.OK(t, p.Sim.Node.Set("driver_version", "590.44.01"))
	p.Open(p.Job(7, "0"))
	defer p.Must(0, p.Job(7, "0"), "epilog")
	p.Launch(60, p.CudaClient(), "stay", "context", "100")
	p.Until("60 ranks with a context", func() bool { return strings.Count(p.ServerLog(7), " is ACTIVE") == 60 })
	one := p.AsUser(7, p.Command("mpirun-wrap", p.CudaClient(), "info"))
	if out, _ := one.CombinedOutput(); !bytes.Contains(out, []byte("err=46(")) {
		t.Errorf("client 61: %s", out)
	}
	codes, said := p.Launch(61, "echo", "ran").End()
	want := "61 ranks share it, and at most 60 can: use more GPUs or fewer ranks"
	if slices.ContainsFunc(codes, func(code int) bool { return code != 125 }) || !strings.Contains(strings.Join(said, ""), want) {
		t.Errorf("codes %d, %q", codes, said)
	}
}

// In the namespaces of a container, a rank cannot see the daemon's process, and the ticket belongs to an unmapped
// user. mpirun-wrap then checks the socket that the ticket names.
//
// Contract: K1
func TestARankInNamespaces(t *testing.T) {
	p := sharedGPU(t)
	run := func() string {
		cmd := p.AsUser(7, slices.Concat([]string{"unshare", "--pid", "--net", "--fork", "--mount-proc", "--kill-child"}, e2e.Setpriv,
			[]string{"unshare", "--map-current-user"}, p.Command("mpirun-wrap", p.CudaClient(), "info")))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // unshare runs as root
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if out := run(); !strings.HasPrefix(out, "err=0(") {
		t.Errorf("the rank does not run under MPS: %s\n%s", out, p.Log())
	}
	daemon := p.Ticket(7).Daemons[0]
	must.OK(t, daemon.Proc.Kill(syscall.SIGKILL))
	p.Until("end of the daemon", func() bool { return !e2e.Alive(daemon.Proc) })
	if out := run(); !strings.Contains(out, "no control daemon has the socket "+daemon.PipeDir+"/control") {
		t.Errorf("a rank without a daemon prints %s", out)
	}
}
