// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// shared is a job on a simulated node whose clients share one GPU. Only the prolog's daemon and its guard run beside
// the clients.
type shared struct {
	testNode
	job   testnode.Job
	env   []string // the environment of a client
	guard site.Process
}

// newShared runs the prolog of job 7 under a policy of one rule.
func newShared(t *testing.T, attributes ...string) *shared {
	t.Helper()
	return openShared(newTestNode(t, testnode.Default(attributes...), node.H200))
}

// openShared runs the prolog of job 7 on an existing node.
func openShared(p testNode) *shared {
	p.t.Helper()
	return openSharedOf(p, uid, gid)
}

// openSharedOf is openShared for a job of another user.
func openSharedOf(p testNode, user, group uint32) *shared {
	p.t.Helper()
	s := &shared{testNode: p, job: p.job(7, "0")}
	s.job.UID, s.job.GID = user, group
	p.must(0, s.job, "prolog")
	p.t.Cleanup(func() { p.must(0, s.job, "epilog"); p.clean() })
	ticket := p.ticket(7)
	s.env = []string{"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=" + p.Sim.Libraries(), "CUDA_VISIBLE_DEVICES=" + string(ticket.Devices[0].UUID),
		"CUDA_MPS_PIPE_DIRECTORY=" + ticket.Daemons[0].PipeDir, "CUDA_MPS_LOG_DIRECTORY=" + ticket.Daemons[0].LogDir}
	s.guard = p.lease(7).Guard
	return s
}

// running is a client of the job, or the program that started the client.
type running struct {
	*exec.Cmd
	s     *shared
	lines *bufio.Reader
	name  string
	pid   int // the client's pid in its own pid namespace
}

// start starts a CUDA client as the job's user, as a launcher does, and waits until the client is ready.
func (s *shared) start(args ...string) *running {
	s.t.Helper()
	return s.launch(append([]string{s.cudaClient()}, args...)...)
}

// launch starts a program that becomes a client, as start does.
func (s *shared) launch(line ...string) *running {
	s.t.Helper()
	cmd := s.asUser(line...)
	return s.begin(cmd)
}

// asUser returns a command that runs as the job's user.
func (s *shared) asUser(line ...string) *exec.Cmd {
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = s.env
	rights := &syscall.Credential{Uid: s.job.UID, Gid: s.job.GID, Groups: []uint32{s.job.GID}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: rights}
	return cmd
}

// begin starts a command that runs a client and waits until the client is ready.
func (s *shared) begin(cmd *exec.Cmd) *running {
	s.t.Helper()
	r := s.open(cmd)
	r.ready()
	return r
}

// open starts a command that runs a client.
func (s *shared) open(cmd *exec.Cmd) *running {
	s.t.Helper()
	cmd.Dir = "/"
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	r := &running{cmd, s, bufio.NewReader(out), strings.Join(cmd.Args, " "), 0}
	s.t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); _ = cmd.Wait() })
	return r
}

// ready waits until a client is ready.
func (r *running) ready() {
	r.s.t.Helper()
	first, err := r.lines.ReadString('\n')
	if _, bad := fmt.Sscanf(first, "pid=%d ready", &r.pid); err != nil || bad != nil {
		r.s.t.Fatalf("%s prints %q, %v\n%s", r.name, first, err, r.s.log())
	}
}

// ends waits until every process that has the client's output open has ended. It returns what the client printed.
func (r *running) ends() string {
	r.s.t.Helper()
	printed := make(chan string, 1)
	go func() {
		rest, _ := io.ReadAll(r.lines)
		printed <- string(rest)
	}()
	select {
	case rest := <-printed:
		_ = r.Wait()
		return rest
	case <-time.After(30 * time.Second):
		r.s.t.Fatalf("%s still runs after 30 s\n%s", r.name, r.s.log())
		return ""
	}
}

// held counts how many open files of a device a process has.
func (p testNode) held(pid int, device string) (count int) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasSuffix(target, device) {
			count++
		}
	}
	return count
}

// holds waits until the guard holds a given number of open files of the memory device.
func (s *shared) holds(want int, within time.Duration) {
	s.t.Helper()
	deadline := time.Now().Add(within)
	for s.held(s.guard.PID, "/nvidia-uvm") != want {
		if time.Now().After(deadline) || !site.Sleep(s.ctx, time.Millisecond) {
			s.t.Fatalf("the guard holds %d files of nvidia-uvm, want %d\n%s", s.held(s.guard.PID, "/nvidia-uvm"), want, s.log())
		}
	}
}

// lives checks that a new client of the job works, and asks the neighbours to end. It checks that no neighbour had an
// error.
func (s *shared) lives(neighbours ...*running) {
	s.t.Helper()
	s.works()
	for _, neighbour := range neighbours {
		_ = neighbour.Process.Signal(syscall.SIGTERM)
		if said := neighbour.ends(); !strings.Contains(said, "done") {
			s.t.Errorf("the neighbour prints %q\n%s\n%s", said, s.serverLog(7), s.log())
		}
	}
}

// works checks that a new client of the job works.
func (s *shared) works() {
	s.t.Helper()
	if out, err := s.asUser(s.cudaClient(), "info").CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "err=0") {
		s.t.Errorf("a new client: %s, %v\n%s", out, err, s.serverLog(7))
	}
}

// neighbour starts a client that computes until it is asked to end or a call fails.
func (s *shared) neighbour() *running {
	s.t.Helper()
	return s.start("spin", "-ms", "1", "-for", "100", "-exit-idle")
}

// fills starts a neighbour that takes nearly all memory that dead clients leave. So the guard closes their files.
func (s *shared) fills() *running {
	s.t.Helper()
	return s.start("spin", "-ms", "1", "-for", "100", "-exit-idle", "-mib", fmt.Sprint(s.free()-2000))
}

// shellWords quotes a command line for a shell.
func shellWords(line []string) string { return "'" + strings.Join(line, "' '") + "'" }

// setpriv is the start of a command line by which a process of root becomes one of the job's user.
var setpriv = []string{"setpriv", fmt.Sprint("--reuid=", uid), fmt.Sprint("--regid=", gid), "--clear-groups"}

// ways are the ways in which a client is started.
var ways = []struct {
	name  string
	start func(s *shared, client []string) *running
}{
	{"plain", func(s *shared, client []string) *running { return s.launch(client...) }},
	{"a child of a shell", func(s *shared, client []string) *running {
		return s.launch("sh", "-c", shellWords(client)+" & wait")
	}},
	{"an orphan in a session of its own", func(s *shared, client []string) *running {
		return s.launch("sh", "-c", "setsid "+shellWords(client)+" & exit 0")
	}},
	{"in a pid namespace", func(s *shared, client []string) *running {
		inside := slices.Concat(setpriv, []string{"sh", "-c", shellWords(client) + "; exit 0"})
		cmd := exec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc", "--kill-child"}, inside...)...)
		cmd.Env = s.env
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return s.begin(cmd)
	}},
	{"in a user namespace", func(s *shared, client []string) *running {
		if err := s.asUser("unshare", "-U", "true").Run(); err != nil {
			s.t.Skip("this machine allows no user namespaces: ", err)
		}
		return s.launch(append([]string{"unshare", "-U", "--map-root-user"}, client...)...)
	}},
	{"not dumpable", func(s *shared, client []string) *running {
		library, err := undumpable()
		if err != nil {
			s.t.Fatal(err)
		}
		r := s.launch(append([]string{"env", "LD_PRELOAD=" + library}, client...)...)
		info, err := os.Stat(fmt.Sprintf("/proc/%d/fd", r.pid))
		if err == nil && info.Sys().(*syscall.Stat_t).Uid != 0 {
			s.t.Error("the client is dumpable")
		}
		return r
	}},
}

// undumpable builds the library of testdata/undumpable.c once and returns its path.
var undumpable = sync.OnceValues(func() (string, error) {
	folder, err := testnode.Shared()
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "undumpable.so")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-o", path, "testdata/undumpable.c").CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build %s: %w: %s", path, err, out)
	}
	return path, nil
})

// endings are the ways in which a client ends while its kernels are queued.
var endings = []string{"signal:9", "signal:15", "signal:11", "signal:6", "exit:0", "_exit:0", "_exit:1", "alloc"}

// loads are the kernels that a client has queued when it ends, and how long they take together. Most of them take
// long enough for a guard on a loaded machine, on which other tests run too. The last load ends as early as a client
// with queued kernels can end.
var loads = []struct {
	name  string
	args  []string
	takes time.Duration
}{
	{"150 x 5 ms", []string{"-ms", "5", "-queue", "150", "-after", "0.3"}, 750 * time.Millisecond},
	{"1 x 400 ms", []string{"-ms", "400", "-after", "0.2"}, 400 * time.Millisecond},
	{"20 x 5 ms", []string{"-ms", "5", "-queue", "20", "-after", "0.02"}, 100 * time.Millisecond},
}

// A client that ends harms no neighbour, however it ends, however it was started and whatever kernels it has queued.
// The neighbour lives while the guard holds the client's files and after it closes them, and new clients work.
func TestClientsThatEndHarmNoNeighbour(t *testing.T) {
	t.Parallel()
	for _, way := range ways {
		for _, load := range loads {
			if way.name != "plain" && load.name != loads[0].name {
				continue
			}
			t.Run(way.name+", "+load.name, func(t *testing.T) {
				s := newShared(t, `hold = "10s"`)
				neighbour := s.neighbour()
				for _, ending := range endings {
					victim := way.start(s, slices.Concat([]string{s.cudaClient(), "spin", "-for", "60", "-end", ending}, load.args))
					victim.ends()
					s.works()
					// Otherwise the queued kernels add up, and the next client makes the guard close the files.
					site.Sleep(s.ctx, load.takes)
					if s.ended(neighbour) {
						t.Fatalf("after %s\n%s\n%s", ending, s.serverLog(7), s.log())
					}
				}
				newcomer := s.fills()
				s.holds(4, 30*time.Second) // the files of the two clients that live
				s.lives(neighbour, newcomer)
				s.knows(len(endings) + 2)
			})
		}
	}
}

// ended reports whether a client has ended.
func (s *shared) ended(neighbour *running) bool {
	stat, err := site.ReadStat(neighbour.Process.Pid)
	return err != nil || !stat.Running()
}

// knows checks that the guard has seen at least a given number of clients, and that it could hold all files of each.
// It waits, because the guard writes its state once a second.
func (s *shared) knows(seen int) {
	s.t.Helper()
	for began := time.Now(); ; {
		state := s.state()
		if state.ClientsSeen >= seen && state.Unheld == 0 {
			return
		}
		if time.Since(began) > 5*time.Second || !site.Sleep(s.ctx, 50*time.Millisecond) {
			s.t.Errorf("the guard's state is %+v, want at least %d clients", state, seen)
			return
		}
	}
}

// state returns the state that the guard last wrote.
func (s *shared) state() lease.GuardState {
	s.t.Helper()
	boot, err := site.BootID()
	if err != nil {
		s.t.Fatal(err)
	}
	state, err := lease.OpenReadOnly(s.Paths().Run(), boot).ReadGuard(7)
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.log())
	}
	return state
}

// Eight clients that end together queue more kernels than one client does. The kernels are done before the guard
// closes the clients' files, so the neighbour lives.
func TestManyClientsThatEndTogetherHarmNoNeighbour(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		signals []syscall.Signal
	}{
		{"SIGKILL", []syscall.Signal{syscall.SIGKILL}},
		{"one of four signals each", []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSEGV, syscall.SIGABRT}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newShared(t, `hold = "8s"`)
			neighbour := s.neighbour()
			var victims []*running
			for range 8 {
				victims = append(victims, s.start("spin", "-ms", "5", "-queue", "150", "-for", "60"))
			}
			s.holds(18, 10*time.Second)
			for i, victim := range victims {
				_ = victim.Process.Signal(c.signals[i%len(c.signals)])
			}
			for _, victim := range victims {
				victim.ends()
			}
			site.Sleep(s.ctx, 7*time.Second) // the clients' kernels take 6 s, one after the other
			s.holds(18, 0)
			newcomer := s.fills()
			s.holds(4, 30*time.Second)
			s.lives(neighbour, newcomer)
		})
	}
}

// Without a guard, a client that ends in one of these ways also ends its neighbour. If the neighbour lived, the other
// tests of the guard would prove nothing.
func TestClientsThatEndWithoutAGuardHarmTheirNeighbour(t *testing.T) {
	t.Parallel()
	for _, ending := range []string{"signal:9", "signal:15", "exit:0", "_exit:0"} {
		for _, load := range loads[:2] {
			t.Run(ending+", "+load.name, func(t *testing.T) {
				s := newShared(t)
				if err := s.guard.Kill(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				s.gone(s.guard)
				neighbour := s.neighbour()
				s.start(slices.Concat([]string{"spin", "-for", "60", "-end", ending}, load.args)...).ends()
				if said := neighbour.ends(); !strings.Contains(said, "err=700") {
					t.Errorf("the neighbour prints %q", said)
				}
			})
		}
	}
}
