// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// crew is the set of ranks of one launch on a node.
type crew struct {
	p     testNode
	ranks []*exec.Cmd
	said  []*bytes.Buffer // the stdout and stderr of each rank; read them when the rank has ended
	ended []chan struct{}
}

// launch starts n ranks of the job's user at the same time. Each is mpirun-wrap with the given command line.
func (p testNode) launch(n int, line ...string) crew {
	p.t.Helper()
	return p.launchAs(uid, n, nil, line...)
}

// launchAs starts the ranks as another user and with more variables. PMIX_NAMESPACE distinguishes the launches of one
// job.
func (p testNode) launchAs(user uint32, n int, extra []string, line ...string) crew {
	p.t.Helper()
	c := crew{p: p}
	places := "0"
	for rank := 1; rank < n; rank++ {
		places += fmt.Sprintf(",%d", rank)
	}
	for rank := range n {
		cmd := p.asUser(7, p.Command("mpirun-wrap", line...))
		cmd.Env = append(cmd.Env, append([]string{fmt.Sprintf("SLURM_LOCALID=%d", rank), "SLURM_GTIDS=" + places}, extra...)...)
		cmd.SysProcAttr.Credential.Uid, cmd.SysProcAttr.Setpgid = user, true
		said, ended := &bytes.Buffer{}, make(chan struct{})
		cmd.Stdout, cmd.Stderr = said, said
		if err := cmd.Start(); err != nil {
			p.t.Fatal(err)
		}
		go func() { _ = cmd.Wait(); close(ended) }()
		p.t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); <-ended })
		c.ranks, c.said, c.ended = append(c.ranks, cmd), append(c.said, said), append(c.ended, ended)
	}
	return c
}

// end waits for all ranks and returns their exit codes, and the lines that mpirun-wrap printed.
func (c crew) end() (codes []int, lines []string) {
	c.p.t.Helper()
	for i, ended := range c.ended {
		select {
		case <-ended:
		case <-c.p.ctx.Done():
			c.p.t.Fatalf("rank %d still runs", i)
		}
		codes = append(codes, c.ranks[i].ProcessState.ExitCode())
		for line := range strings.Lines(c.said[i].String()) {
			if strings.HasPrefix(line, "mpirun-wrap: ") {
				lines = append(lines, line)
			}
		}
	}
	return codes, lines
}

// out returns what the programs printed themselves.
func (c crew) out() string {
	var all strings.Builder
	for _, said := range c.said {
		for line := range strings.Lines(said.String()) {
			if !strings.HasPrefix(line, "mpirun-wrap: ") {
				all.WriteString(line)
			}
		}
	}
	return all.String()
}

// sharedGPU runs the prolog of a job whose GPU keeps its mode, so that CUDA also starts without MPS.
func sharedGPU(t *testing.T, attributes ...string) testNode {
	t.Helper()
	p := newTestNode(t, testnode.Default(append([]string{`compute_mode = "unchanged"`}, attributes...)...), node.H200)
	p.must(0, p.job(7, "0"), "prolog")
	t.Cleanup(func() { p.must(0, p.job(7, "0"), "epilog"); p.clean() })
	return p
}

// inFault brings the job's server into FAULT. The server stays in FAULT until the returned process has ended.
func (p testNode) inFault() *exec.Cmd {
	p.t.Helper()
	holder := p.client(7, "spin", "-ms", "1", "-for", "100", "-hold", "100")
	faulty := p.asUser(7, p.Command("mpirun-wrap", p.cudaClient(), "fault"))
	if out, _ := faulty.CombinedOutput(); !bytes.Contains(out, []byte("err=700")) {
		p.t.Fatalf("the client does not cause a fault: %s", out)
	}
	late := p.asUser(7, []string{p.cudaClient(), "info"})
	d := p.ticket(7).Daemons[0]
	late.Env = append(late.Env, "CUDA_MPS_PIPE_DIRECTORY="+d.PipeDir)
	if out, _ := late.CombinedOutput(); !bytes.Contains(out, []byte("err=807")) {
		p.t.Fatalf("a new client does not see a server in FAULT: %s", out)
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
	ranks := p.launch(4, p.cudaClient(), "info")
	p.until("file of a rank that waits", func() bool {
		marks, _ := filepath.Glob(filepath.Join(p.ticket(7).ExchangeDir, "*.waits"))
		return len(marks) == 1
	})
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	codes, said := ranks.end()
	if fmt.Sprint(codes) != "[0 0 0 0]" || strings.Count(ranks.out(), "err=0(") != 4 {
		t.Errorf("codes %d\n%s", codes, ranks.out())
	}
	if len(said) != 1 || !regexp.MustCompile(waiting).MatchString(said[0]) {
		t.Errorf("the ranks print %q, want %s", said, waiting)
	}
}

// mpirun-wrap refuses to start a rank if the server has not recovered within the wait.
//
// Contract: K2
func TestAServerThatDoesNotRecover(t *testing.T) {
	p := sharedGPU(t)
	p.inFault()
	began := time.Now()
	codes, said := p.launch(1, "echo", "ran").end()
	if took := time.Since(began); took < 29*time.Second {
		t.Errorf("refused after %v", took)
	}
	const refused = `^mpirun-wrap: cannot use MPS on GPU-\S+: its server \(pid \d+\) has not recovered from a fatal GPU error within 30s: these processes that it hit are still there: \d+: end what is left of the ranks that it hit, or submit the job again\n$`
	if codes[0] != 125 || len(said) != 2 || !regexp.MustCompile(waiting).MatchString(said[0]) || !regexp.MustCompile(refused).MatchString(said[1]) {
		t.Errorf("code %d, %q", codes[0], said)
	}
}

// killDaemon kills the job's daemon, as a failure on the node does.
func (p testNode) killDaemon() lease.Daemon {
	p.t.Helper()
	d := p.ticket(7).Daemons[0]
	if err := d.Proc.Kill(syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	p.gone(d.Proc)
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
	ranks := p.launchAs(uid, 2, stale, "sh", "-c", `env | grep CUDA; exec "$0" info`, p.cudaClient())
	codes, said := ranks.end()
	want := fmt.Sprintf("mpirun-wrap: running without MPS, as this site's policy allows: cannot use MPS on %s: its control daemon (%s) is gone\n", p.uuid(0), d.Proc)
	if fmt.Sprint(codes) != "[0 0]" || !slices.Equal(said, []string{want}) {
		t.Errorf("codes %d, %q, want %q", codes, said, want)
	}
	pattern := fmt.Sprintf(`^(CUDA_VISIBLE_DEVICES=%s\nerr=0\(cudaSuccess\) sm=132 ndev=1 .*\n){2}$`, p.uuid(0))
	if !regexp.MustCompile(pattern).MatchString(ranks.out()) {
		t.Errorf("the programs print\n%s", ranks.out())
	}
}

// In EXCLUSIVE_PROCESS mode only one process could run without MPS, so no rank does.
//
// Contract: K3
func TestNoRankRunsWithoutMPSOnAnExclusiveGPU(t *testing.T) {
	p := newTestNode(t, testnode.Default(`on_failure = "run_without"`), node.H200)
	p.must(0, p.job(7, "0"), "prolog")
	d := p.killDaemon()
	codes, said := p.launch(1, "echo", "ran").end()
	want := fmt.Sprintf("mpirun-wrap: cannot use MPS on %s: its control daemon (%s) is gone: the job's epilog cleans up; submit the job again; the policy's run_without does not help: the GPU is in EXCLUSIVE_PROCESS mode, in which one process alone could use it\n", p.uuid(0), d.Proc)
	if codes[0] != 125 || !slices.Equal(said, []string{want}) {
		t.Errorf("code %d, %q, want %q", codes[0], said, want)
	}
	p.must(0, p.job(7, "0"), "epilog")
	p.clean()
}

// Before driver 590, MPS serves 48 clients on a GPU. All of 49 ranks fail, and one of them prints why. If a busy
// node starts the ranks over more than a second, one rank in each further second also prints it.
func TestRanksThatFailAlikePrintOnce(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	p.must(0, p.job(7, "0"), "prolog")
	defer p.must(0, p.job(7, "0"), "epilog")
	codes, said := p.launch(49, "echo", "ran").end()
	pattern := fmt.Sprintf(`^(mpirun-wrap: cannot place rank \d+ on %s: 49 ranks share it, and at most 48 can: `+
		`use more GPUs or fewer ranks \(printed once for this node\)\n){1,4}$`, p.uuid(0))
	if slices.ContainsFunc(codes, func(code int) bool { return code != 125 }) || !regexp.MustCompile(pattern).MatchString(strings.Join(said, "")) {
		t.Errorf("codes %d, %q", codes, said)
	}
}

// With driver 590, MPS serves 60 clients on a GPU. Sixty ranks run at the same time, one more client gets CUDA's
// error 46, and one of 61 ranks prints the limit.
func TestSixtyRanksOnAGPU(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	if err := p.Sim.Node.Set("driver_version", "590.44.01"); err != nil {
		t.Fatal(err)
	}
	p.must(0, p.job(7, "0"), "prolog")
	defer p.must(0, p.job(7, "0"), "epilog")
	p.launch(60, p.cudaClient(), "stay", "context", "100")
	p.until("60 ranks with a context", func() bool { return strings.Count(p.serverLog(7), " is ACTIVE") == 60 })
	one := p.asUser(7, p.Command("mpirun-wrap", p.cudaClient(), "info"))
	if out, _ := one.CombinedOutput(); !bytes.Contains(out, []byte("err=46(")) {
		t.Errorf("client 61: %s", out)
	}
	codes, said := p.launch(61, "echo", "ran").end()
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
		cmd := p.asUser(7, slices.Concat([]string{"unshare", "--pid", "--net", "--fork", "--mount-proc", "--kill-child"}, setpriv,
			[]string{"unshare", "--map-current-user"}, p.Command("mpirun-wrap", p.cudaClient(), "info")))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // unshare runs as root
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if out := run(); !strings.HasPrefix(out, "err=0(") {
		t.Errorf("the rank does not run under MPS: %s\n%s", out, p.log())
	}
	daemon := p.ticket(7).Daemons[0]
	if err := daemon.Proc.Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.until("end of the daemon", func() bool { return !daemon.Proc.Running() })
	if out := run(); !strings.Contains(out, "no control daemon has the socket "+daemon.PipeDir+"/control") {
		t.Errorf("a rank without a daemon prints %s", out)
	}
}
