package cmd_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"golang.org/x/sys/unix"
)

// protection is a job on a simulated node whose ranks run below a wrapper that does nothing but guard.
type protection struct {
	play
	guard string   // the wrapper
	peers string   // folder of the wrappers
	env   []string // of a rank
}

func newProtection(t *testing.T) protection {
	t.Helper()
	p := newPlay(t, "", node.H200)
	p.must(0, p.job(7, "0"), "prolog")
	t.Cleanup(func() { p.must(0, p.job(7, "0"), "epilog"); p.clean() })
	dir := publicDir(t)
	g := protection{play: p, guard: filepath.Join(dir, "guard"), peers: filepath.Join(dir, "peers")}
	build := exec.Command("go", "build", "-o", g.guard, module+"mpirun-wrap/testdata/guard")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build guard: %v: %s", err, out)
	}
	if err := os.Mkdir(g.peers, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(g.peers, uid, gid); err != nil {
		t.Fatal(err)
	}
	ticket := p.ticket(7)
	g.env = []string{"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=" + p.Sim.Libraries(), "CUDA_VISIBLE_DEVICES=" + string(ticket.Devices[0].UUID),
		"CUDA_MPS_PIPE_DIRECTORY=" + ticket.Daemons[0].PipeDir, "CUDA_MPS_LOG_DIRECTORY=" + ticket.Daemons[0].LogDir}
	return g
}

// start starts a CUDA client as the job's user, below a wrapper or bare, and waits until it is at work.
func (g protection) start(wrapper []string, client ...string) *exec.Cmd {
	g.t.Helper()
	cmd := g.launched(append(append([]string{}, wrapper...), append([]string{g.cudaClient()}, client...)...)...)
	g.atWork(cmd.Process.Pid, len(wrapper) > 0)
	return cmd
}

// launched starts a line with a CUDA client in it as the job's user and waits until the client is ready. It has a process
// group of its own, as launchers give their ranks.
func (g protection) launched(line ...string) *exec.Cmd {
	g.t.Helper()
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir, cmd.Env, cmd.Stderr = "/", g.env, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: []uint32{gid}}}
	out, err := cmd.StdoutPipe()
	if err != nil {
		g.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); _ = cmd.Wait() })
	line1, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.Contains(line1, "ready") {
		g.t.Fatalf("the client says %q, %v\n%s", line1, err, g.log())
	}
	return cmd
}

// atWork waits until the client's own thread sleeps in its library until a kernel ends.
func (g protection) atWork(pid int, below bool) {
	g.t.Helper()
	if below {
		pid = g.child(pid).PID
	}
	for {
		call, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", pid, pid))
		if strings.HasPrefix(string(call), fmt.Sprint(unix.SYS_FUTEX)+" ") {
			return
		}
		if !site.Pause(g.ctx, time.Millisecond) {
			g.t.Fatalf("client %d does not come to work", pid)
		}
	}
}

func (g protection) protected(flags ...string) []string {
	return append(append([]string{g.guard, "-broadcast", "-peers", g.peers}, flags...), "--")
}

func (g protection) terminating() []string {
	return g.protected("-control", g.Sim.Program("nvidia-cuda-mps-control"))
}

// cancel ends ranks as a launcher does, by SIGTERM to each one's group, and returns their codes and how long it took.
func (g protection) cancel(ranks ...*exec.Cmd) (codes []int, took time.Duration) {
	g.t.Helper()
	began := time.Now()
	for _, rank := range ranks {
		if err := syscall.Kill(-rank.Process.Pid, syscall.SIGTERM); err != nil {
			g.t.Fatal(err)
		}
	}
	for _, rank := range ranks {
		codes = append(codes, g.code(rank))
	}
	return codes, time.Since(began)
}

// code is how a process ends, as a shell has it.
func (g protection) code(cmd *exec.Cmd) int {
	g.t.Helper()
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-g.ctx.Done():
		g.t.Fatalf("%q does not end", cmd.Args)
	}
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

// survive asks neighbours to end and reports whether every one had no error until then. What a killed client has left on
// the GPU is noticed after 130 ms (measured): a client that comes meanwhile is served or refused after that, so one that
// has come and gone is the proof that it is over.
func (g protection) survive(neighbours ...*exec.Cmd) bool {
	g.t.Helper()
	late := exec.Command(g.cudaClient(), "info")
	late.Dir, late.Env = "/", g.env
	late.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: []uint32{gid}}}
	said, err := late.CombinedOutput()
	alive := true
	for _, neighbour := range neighbours {
		_ = neighbour.Process.Signal(syscall.SIGTERM)
		alive = g.code(neighbour) == 0 && alive
	}
	if alive && err != nil {
		g.t.Errorf("the neighbours live and a client that came afterwards does not: %v: %s", err, said)
	}
	return alive
}

// trial cancels ranks with work in flight, beside two neighbours.
func (g protection) trial(wrapper []string, ranks int, work ...string) (alive bool, codes []int, took time.Duration) {
	g.t.Helper()
	neighbour := []string{"spin", "-ms", "1", "-for", "60", "-exit-idle"}
	first, second := g.start(nil, neighbour...), g.start(nil, neighbour...)
	var cancelled []*exec.Cmd
	for range ranks {
		cancelled = append(cancelled, g.start(wrapper, append([]string{"spin", "-for", "60"}, work...)...))
	}
	codes, took = g.cancel(cancelled...)
	return g.survive(first, second), codes, took
}

const trials = 3

// A rank that is cancelled with work in flight harms no neighbour. Facts: mps.md 4, stop, drain, kill.
func TestACancelledRankHarmsNoNeighbour(t *testing.T) {
	for _, c := range []struct {
		name      string
		work      []string
		terminate bool
	}{
		{"kernels of 20 ms", []string{"-ms", "20"}, false},
		{"kernels of 50 ms", []string{"-ms", "50"}, false},
		{"kernels of 400 ms", []string{"-ms", "400"}, false},
		{"a queue of 40 x 5 ms", []string{"-ms", "5", "-queue", "40"}, false},
		{"a queue of 200 x 5 ms, terminated", []string{"-ms", "5", "-queue", "200"}, true},
		{"kernels of 5 s, terminated", []string{"-ms", "5000"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newProtection(t)
			wrapper := g.protected()
			if c.terminate {
				wrapper = g.terminating()
			}
			for range trials {
				alive, codes, took := g.trial(wrapper, 1, c.work...)
				if !alive || codes[0] != 128+15 {
					t.Errorf("neighbours alive %v, codes %d, after %v", alive, codes, took)
				}
				if took > 3*time.Second {
					t.Errorf("the end took %v", took)
				}
			}
		})
	}
}

// Without a guard the same cancel takes the neighbours along: else the tests above would prove nothing.
func TestACancelledRankWithoutAGuardTakesItsNeighboursAlong(t *testing.T) {
	for trial := range trials { // each with a server of its own: one in FAULT takes no client until the last victim has gone
		t.Run(fmt.Sprint(trial), func(t *testing.T) {
			if alive, _, _ := newProtection(t).trial(nil, 1, "-ms", "400"); alive {
				t.Error("the neighbours live")
			}
		})
	}
}

// Many ranks at once: no wrapper ends before the others have drained.
func TestRanksCancelledTogether(t *testing.T) {
	for _, c := range []struct {
		name string
		work []string
	}{{"kernels of 20 ms", []string{"-ms", "20"}}, {"kernels of 400 ms", []string{"-ms", "400"}}} {
		t.Run(c.name, func(t *testing.T) {
			g := newProtection(t)
			alive, codes, took := g.trial(g.terminating(), 8, c.work...)
			if want := "[143 143 143 143 143 143 143 143]"; !alive || fmt.Sprint(codes) != want {
				t.Errorf("neighbours alive %v, codes %d, after %v", alive, codes, took)
			}
			if left, err := os.ReadDir(g.peers); err != nil || len(left) > 1 { // the lock
				t.Errorf("left in the peers' folder: %v, %v", left, err)
			}
		})
	}
}

// Open MPI sends SIGKILL one second after SIGTERM: by then work that a drain can wait for is done.
func TestALauncherThatKillsAfterASecond(t *testing.T) {
	g := newProtection(t)
	neighbour := g.start(nil, "spin", "-ms", "1", "-for", "60", "-exit-idle")
	rank := g.start(g.protected("-drain", "30s"), "spin", "-ms", "400", "-for", "60")
	program := g.child(rank.Process.Pid)
	killed := time.AfterFunc(time.Second, func() { _ = syscall.Kill(rank.Process.Pid, syscall.SIGKILL) })
	defer killed.Stop()
	if codes, _ := g.cancel(rank); codes[0] != 128+9 {
		t.Errorf("codes %d", codes)
	}
	g.gone(program)
	if !g.survive(neighbour) {
		t.Error("the neighbour died")
	}
}

// child is the program of a wrapper.
func (g protection) child(wrapper int) site.Proc {
	g.t.Helper()
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", wrapper))
	for _, list := range lists {
		var pid int
		if n, _ := fmt.Sscan(read(g.t, list), &pid); n == 1 {
			stat, err := site.ReadStat(pid)
			if err != nil {
				g.t.Fatal(err)
			}
			return stat.Proc
		}
	}
	g.t.Fatalf("wrapper %d has no program", wrapper)
	return site.Proc{}
}
