// SPDX-License-Identifier: Apache-2.0

package own_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"golang.org/x/sys/unix"
)

// testNode is a simulated node without a prolog. Its user has a copy of mpirun-wrap, and no other program of ours.
type testNode struct {
	e2e.Node
	home string // with mpirun-wrap
	tmp  string // $TMPDIR
}

func newTestNode(t *testing.T, models ...node.Model) testNode {
	t.Helper()
	n := testNode{Node: e2e.NewNode(t, "", models...)}
	n.install()
	return n
}

// install makes the user's folders and the copy of mpirun-wrap.
func (n *testNode) install() {
	n.T.Helper()
	top := filepath.Dir(n.Root)
	n.home, n.tmp = filepath.Join(top, "home"), filepath.Join(top, "t")
	program, err := os.ReadFile(n.Command("mpirun-wrap")[0])
	for _, dir := range []string{n.home, n.tmp} {
		err = errors.Join(err, os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o777|os.ModeSticky))
	}
	if err = errors.Join(err, node.WriteProgram(n.wrapper(), program)); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(n.killStrangers)
}

func (n testNode) wrapper() string { return filepath.Join(n.home, "mpirun-wrap") }

// killStrangers kills what a failed test has left.
func (n testNode) killStrangers() {
	for _, text := range n.Strangers() {
		var pid int
		if _, err := fmt.Sscanf(text, "process %d", &pid); err == nil && pid != os.Getpid() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// wrap is the command line of a rank under --own. Its first words may be flags.
func (n testNode) wrap(line ...string) []string {
	return append([]string{n.wrapper(), "--own", "--root", n.Root}, line...)
}

// spin is a rank that computes for some seconds, or until SIGTERM.
func (n testNode) spin(seconds string, flags ...string) []string {
	return append(n.wrap(flags...), n.CudaClient(), "spin", "-ms", "1", "-for", seconds, "-exit-idle")
}

// environment is that of a user's shell on the node.
func (n testNode) environment() []string {
	return []string{"PATH=" + filepath.Dir(n.Sim.Program("x")) + ":/usr/bin:/bin", "LD_LIBRARY_PATH=" + n.Sim.Libraries(), "TMPDIR=" + n.tmp,
		"HOME=" + n.home}
}

// inStep is what Slurm adds to the environment of a rank.
func inStep(job, step, rank, ranks int) []string {
	gtids := "0"
	for i := 1; i < ranks; i++ {
		gtids += fmt.Sprintf(",%d", i)
	}
	return []string{fmt.Sprintf("SLURM_JOB_ID=%d", job), fmt.Sprintf("SLURM_STEP_ID=%d", step), "SLURM_NODEID=0", "SLURMD_NODENAME=n1",
		fmt.Sprintf("SLURM_PROCID=%d", rank), fmt.Sprintf("SLURM_LOCALID=%d", rank), "SLURM_GTIDS=" + gtids}
}

// process is a process of the user, with what it has printed.
type process struct {
	watch.Output
	n     testNode
	cmd   *exec.Cmd
	took  time.Duration // until it was reaped
	ended chan struct{}
}

// start starts a program of the user. A variable in env replaces one of environment.
func (n testNode) start(env []string, line ...string) *process {
	n.T.Helper()
	return n.startAs(e2e.UID, env, line...)
}

func (n testNode) startAs(uid uint32, env []string, line ...string) *process {
	n.T.Helper()
	p := &process{n: n, cmd: exec.Command(line[0], line[1:]...), ended: make(chan struct{})}
	p.cmd.Env = n.environment()
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		p.cmd.Env = e2e.With(p.cmd.Env, name, value)
	}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr, p.cmd.WaitDelay = n.home, p, p, time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	must.OK(n.T, p.cmd.Start())
	began := time.Now()
	go func() {
		_ = p.cmd.Wait()
		p.took = time.Since(began)
		close(p.ended)
	}()
	n.T.Cleanup(func() { _ = node.SignalGroup(p.cmd, unix.SIGKILL); <-p.ended })
	return p
}

// step starts the ranks of a step at the same time.
func (n testNode) step(job, step, ranks int, line ...string) (all []*process) {
	n.T.Helper()
	for rank := range ranks {
		all = append(all, n.start(inStep(job, step, rank, ranks), line...))
	}
	return all
}

func (p *process) over() bool { return watch.Closed(p.ended) }

// end waits for the end of a process, and returns its exit code, or 128 and the number of the signal, as a shell does.
func (p *process) end() int {
	p.n.T.Helper()
	select {
	case <-p.ended:
	case <-time.After(e2e.WaitLimit):
		p.n.T.Fatalf("%q still runs: it prints %s\n%s", p.cmd.Args, p.Text(), p.n.state())
	}
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// ends checks the exit codes of processes.
func ends(want int, all ...*process) {
	for i, p := range all {
		p.n.T.Helper()
		if got := p.end(); got != want {
			p.n.T.Errorf("process %d of %d ends with %d, want %d: it prints %s", i, len(all), got, want, p.Text())
		}
	}
}

// says waits for the end of a process that cannot be placed, and checks its message.
func (p *process) says(want string) {
	p.n.T.Helper()
	if code := p.end(); code != 125 || !strings.Contains(p.Text(), want) {
		p.n.T.Errorf("code %d, want 125: it prints\n%swant %q", code, p.Text(), want)
	}
}

// ready waits until a client computes.
func ready(all ...*process) {
	for _, p := range all {
		p.n.T.Helper()
		p.n.Until("client that computes", func() bool { return p.pid() != 0 || p.over() })
		if p.pid() == 0 {
			p.n.T.Errorf("%q ends with %d and has not computed: it prints\n%s", p.cmd.Args, p.end(), p.Text())
			for _, other := range all { // one of several ranks prints the reason of all
				if other != p && other.pid() == 0 && other.over() {
					p.n.T.Errorf("another one ends with %d: it prints\n%s", other.end(), other.Text())
				}
			}
			p.n.T.Fatal(p.n.state())
		}
	}
}

var readyPID = regexp.MustCompile(`pid=(\d+) ready `)

// pid is that of the client, or 0 if it does not compute yet.
func (p *process) pid() int {
	found := readyPID.FindStringSubmatch(p.Text())
	if found == nil {
		return 0
	}
	pid, _ := strconv.Atoi(found[1])
	return pid
}

// lives checks that clients compute on, and ends them.
func lives(all ...*process) {
	for _, p := range all {
		p.n.T.Helper()
		if p.over() {
			p.n.T.Errorf("a neighbour has ended: it prints %s", p.Text())
			continue
		}
		_ = p.cmd.Process.Signal(unix.SIGTERM)
	}
	for _, p := range all {
		p.n.T.Helper()
		if p.end(); !strings.Contains(p.Text(), " done ") {
			p.n.T.Errorf("a neighbour prints %s", p.Text())
		}
	}
}

// of returns the living processes with a mode of --own, such as "--own-keep".
func (n testNode) of(mode string) (found []proc.Process) {
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		line, _ := os.ReadFile(folder + "/cmdline")
		args := strings.Split(string(line), "\x00")
		pid, _ := strconv.Atoi(filepath.Base(folder))
		if len(args) < 4 || args[1] != mode || args[len(args)-2] != n.Root {
			continue
		}
		if stat, err := proc.ReadStat(pid); err == nil && stat.Running() {
			found = append(found, stat.Process)
		}
	}
	return found
}

// one returns the only process with a mode. It waits for those that see that they are not needed.
func (n testNode) one(mode string) proc.Process {
	n.T.Helper()
	var all []proc.Process
	if !e2e.Comes(func() bool { all = n.of(mode); return len(all) == 1 }) {
		n.T.Fatalf("%d processes %s, want one\n%s", len(all), mode, n.state())
	}
	return all[0]
}

// bases are the folders of the node in which a step may have one.
func (n testNode) bases() []string {
	return []string{filepath.Join(n.Root, "tmp"), filepath.Join(n.Root, "dev/shm")}
}

// folders are those of steps.
func (n testNode) folders() (found []string) {
	for _, base := range n.bases() {
		more, _ := filepath.Glob(filepath.Join(base, "slurm-mps-*"))
		found = append(found, more...)
	}
	return found
}

// daemons are the processes of MPS: for each step a daemon and its server.
func (n testNode) daemons() []proc.Process {
	n.T.Helper()
	return must.Get(n.Below(n.Root + "/"))(n.T)
}

// serving returns the number of daemons when so many run. One that forks or asks is two for a moment.
func (n testNode) serving(want int) (got int) {
	n.T.Helper()
	e2e.Comes(func() bool { got = len(n.daemons()); return got == want })
	return got
}

// state is what is on the node, for messages.
func (n testNode) state() string { return strings.Join(append(n.Strangers(), n.folders()...), "\n") }

// left is what a step has left.
func (n testNode) left() []string { return append(n.Strangers(), n.folders()...) }

// clean checks that nothing is left of any step, and that all ranks have run under MPS.
func (n testNode) clean() {
	n.T.Helper()
	var left []string
	gone := e2e.Comes(func() bool { left = n.left(); return len(left) == 0 })
	must.Have(n.T, gone, "left behind: %q", left)
	if pids := strings.Fields(e2e.Read(n.T, filepath.Join(n.Sim.Node.Dir, "without_mps"))); len(pids) > 0 {
		n.T.Errorf("these processes have computed without MPS: %q", pids)
	}
}

// kill kills processes at the same time.
func kill(all ...proc.Process) {
	for _, p := range all {
		_ = p.Kill(unix.SIGKILL)
	}
}
