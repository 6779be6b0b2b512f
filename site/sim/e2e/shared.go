// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// Shared is a job on a simulated node whose clients share one GPU. Only the prolog's daemon and its guard run beside
// the clients.
type Shared struct {
	Node
	Job   testnode.Job
	Env   []string // the environment of a client
	Guard proc.Process
}

// NewShared runs the prolog of job 7 under a policy of one rule.
func NewShared(t *testing.T, attributes ...string) *Shared {
	t.Helper()
	return OpenShared(NewNode(t, testnode.Default(attributes...), node.H200))
}

// OpenShared runs the prolog of job 7 on an existing node.
func OpenShared(p Node) *Shared {
	p.T.Helper()
	return OpenSharedOf(p, UID, GID)
}

// OpenSharedOf is OpenShared for a job of another user.
func OpenSharedOf(p Node, user, group uint32) *Shared {
	p.T.Helper()
	s := &Shared{Node: p, Job: p.Job(7, "0")}
	s.Job.UID, s.Job.GID = user, group
	p.Open(s.Job)
	p.T.Cleanup(func() { p.Must(0, s.Job, "epilog"); p.Clean() })
	ticket := p.Ticket(7)
	s.Env = []string{"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=" + p.Sim.Libraries(), "CUDA_VISIBLE_DEVICES=" + string(ticket.Devices[0].UUID),
		"CUDA_MPS_PIPE_DIRECTORY=" + ticket.Daemons[0].PipeDir, "CUDA_MPS_LOG_DIRECTORY=" + ticket.Daemons[0].LogDir}
	s.Guard = p.Lease(7).Guard
	return s
}

// Running is a client of the job, or the program that started the client.
type Running struct {
	*exec.Cmd
	s     *Shared
	lines Lines
	name  string
	Pid   int // the client's pid in its own pid namespace
}

// Start starts a CUDA client as the job's user, as a launcher does, and waits until the client is ready.
func (s *Shared) Start(args ...string) *Running {
	s.T.Helper()
	return s.Launch(append([]string{s.CudaClient()}, args...)...)
}

// Launch starts a program that becomes a client, as start does.
func (s *Shared) Launch(line ...string) *Running {
	s.T.Helper()
	return s.Begin(s.AsUser(line...))
}

// AsUser returns a command that runs as the job's user.
func (s *Shared) AsUser(line ...string) *exec.Cmd {
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = s.Env
	rights := &syscall.Credential{Uid: s.Job.UID, Gid: s.Job.GID, Groups: []uint32{s.Job.GID}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: rights}
	return cmd
}

// Begin starts a command that runs a client and waits until the client is ready.
func (s *Shared) Begin(cmd *exec.Cmd) *Running {
	s.T.Helper()
	r := s.Open(cmd)
	r.Ready()
	return r
}

// Open starts a command that runs a client.
func (s *Shared) Open(cmd *exec.Cmd) *Running {
	s.T.Helper()
	cmd.Dir = "/"
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	out := must.Get(cmd.StdoutPipe())(s.T)
	must.OK(s.T, cmd.Start())
	r := &Running{cmd, s, LinesOf(s.T, out), strings.Join(cmd.Args, " "), 0}
	s.T.Cleanup(func() { _ = node.SignalGroup(cmd, unix.SIGKILL); _ = cmd.Wait() })
	return r
}

// Ready waits until a client is ready.
func (r *Running) Ready() {
	r.s.T.Helper()
	first, err := r.lines.Next()
	if _, bad := fmt.Sscanf(first, "pid=%d ready", &r.Pid); err != nil || bad != nil {
		r.s.T.Fatalf("%s prints %q, %v\n%s", r.name, first, err, r.s.Log())
	}
}

// Ends waits until every process that has the client's output open has ended. It returns what the client printed.
func (r *Running) Ends() string {
	r.s.T.Helper()
	rest, err := r.lines.Rest()
	if err != nil {
		r.s.T.Fatalf("%s still runs after %v\n%s", r.name, WaitLimit, r.s.Log())
	}
	_ = r.Wait()
	return rest
}

// Held counts how many open files of a device a process has.
func (p Node) Held(pid int, device string) (count int) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasSuffix(target, device) {
			count++
		}
	}
	return count
}

// Holds waits until the guard holds a given number of open files of the memory device.
func (s *Shared) Holds(want int) {
	s.T.Helper()
	if !Comes(func() bool { return s.Held(s.Guard.PID, "/nvidia-uvm") == want }) {
		s.HoldsNow(want)
	}
}

// HoldsNow checks how many open files of the memory device the guard holds.
func (s *Shared) HoldsNow(want int) {
	s.T.Helper()
	if held := s.Held(s.Guard.PID, "/nvidia-uvm"); held != want {
		s.T.Fatalf("the guard holds %d files of nvidia-uvm, want %d\n%s", held, want, s.Log())
	}
}

// Lives checks that a new client of the job works, and asks the neighbours to end. It checks that no neighbour had an
// error.
func (s *Shared) Lives(neighbours ...*Running) {
	s.T.Helper()
	s.Works()
	for _, neighbour := range neighbours {
		_ = neighbour.Process.Signal(syscall.SIGTERM)
		if said := neighbour.Ends(); !strings.Contains(said, "done") {
			s.T.Errorf("the neighbour prints %q\n%s\n%s", said, s.ServerLog(7), s.Log())
		}
	}
}

// Works checks that a new client of the job works.
func (s *Shared) Works() {
	s.T.Helper()
	if out, works := s.info(); !works {
		s.T.Errorf("a new client prints %s\n%s", out, s.ServerLog(7))
	}
}

// info returns what a new client of the job prints, and whether it works.
func (s *Shared) info() (out []byte, works bool) {
	cmd := s.AsUser(s.CudaClient(), "info")
	defer EndAfter(cmd)()
	out, err := cmd.CombinedOutput()
	return out, err == nil && strings.HasPrefix(string(out), "err=0")
}

// EndAfter kills a command that does not end within WaitLimit, until the returned function is called.
func EndAfter(cmd *exec.Cmd) (ended func() bool) {
	return time.AfterFunc(WaitLimit, func() { _ = cmd.Process.Kill() }).Stop
}

// Neighbour starts a client that computes until it is asked to end or a call fails.
func (s *Shared) Neighbour() *Running {
	s.T.Helper()
	return s.Start("spin", "-ms", "1", "-for", "900", "-exit-idle")
}

// Fill starts a neighbour that takes nearly all memory that dead clients leave, and neighbours that may need as much,
// until the guard has closed the files of all dead clients. It returns all clients that live. For the guard, a client may
// grow for 10 s after its start, which on a busy machine pass before it looks.
func (s *Shared) Fill(living ...*Running) []*Running {
	s.T.Helper()
	living = append(living, s.Start("spin", "-ms", "1", "-for", "900", "-exit-idle", "-mib", fmt.Sprint(s.Free()-2000)))
	for range 5 {
		living = append(living, s.Neighbour())
		for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
			if s.Held(s.Guard.PID, "/nvidia-uvm") == 2*len(living) {
				return living
			}
		}
	}
	s.Holds(2 * len(living))
	return living
}

// ShellWords quotes a command line for a shell.
func ShellWords(line []string) string { return "'" + strings.Join(line, "' '") + "'" }

// Setpriv is the start of a command line by which a process of root becomes one of the job's user.
var Setpriv = []string{"setpriv", fmt.Sprint("--reuid=", UID), fmt.Sprint("--regid=", GID), "--clear-groups"}

// Ended reports whether a client has ended.
func (s *Shared) Ended(neighbour *Running) bool {
	stat, err := proc.ReadStat(neighbour.Process.Pid)
	return err != nil || !stat.Running()
}

// Knows checks that the guard has seen at least a given number of clients, and that it could hold all files of each.
// It waits, because the guard writes its state once a second.
func (s *Shared) Knows(seen int) {
	s.T.Helper()
	var state lease.GuardState
	known := Comes(func() bool { state = s.State(); return state.ClientsSeen >= seen && state.Unheld == 0 })
	must.Hold(s.T, known, "the guard's state is %+v, want at least %d clients", state, seen)
}

// State returns the state that the guard last wrote.
func (s *Shared) State() lease.GuardState {
	s.T.Helper()
	state, err := lease.OpenReadOnly(s.Paths().Run(), Boot(s.T)).ReadGuard(7)
	if err != nil {
		s.T.Fatalf("%v\n%s", err, s.Log())
	}
	return state
}

// Kill ends a client with SIGKILL and waits until it has ended.
func (r *Running) Kill() {
	r.s.T.Helper()
	must.OK(r.s.T, node.SignalGroup(r.Cmd, unix.SIGKILL))
	r.Ends()
}

// When waits until a condition holds, and returns that time.
func (s *Shared) When(is func() bool) time.Time {
	s.T.Helper()
	if !Comes(is) {
		s.T.Fatalf("the condition did not become true within %v\n%s", WaitLimit, s.Log())
	}
	return time.Now()
}

// Free returns the free memory of the GPU that a new client sees, in MiB.
func (s *Shared) Free() (mib int) {
	s.T.Helper()
	out, works := s.info()
	_, rest, found := strings.Cut(string(out), "free=")
	if _, bad := fmt.Sscanf(rest, "%dMiB", &mib); !works || !found || bad != nil {
		s.T.Fatalf("a new client prints %q", out)
	}
	return mib
}

// Released checks that the guard has closed a client's files for a given reason.
func (s *Shared) Released(why string) {
	s.T.Helper()
	if !Comes(func() bool { return s.State().Released[why] > 0 }) {
		s.T.Fatalf("no client is let go for the reason %q: %+v\n%s", why, s.State(), s.Log())
	}
}

// HeldFor returns for how long the guard held a dead client's files, from the guard's log. The test itself may notice
// the death much later, on a busy machine.
func (s *Shared) HeldFor(client *Running) time.Duration {
	s.T.Helper()
	found := regexp.MustCompile(fmt.Sprintf(`"pid":%d,"end":"[^"]*","reason":"[^"]+","held_ms":([0-9]+)`, client.Pid)).FindStringSubmatch(s.Log())
	if found == nil {
		s.T.Fatalf("the guard's log has no line about pid %d\n%s", client.Pid, s.Log())
	}
	held, _ := strconv.Atoi(found[1])
	return time.Duration(held) * time.Millisecond
}

// ByHand runs a guard until it exits.
func (s *Shared) ByHand(args ...string) (code int, output string) {
	s.T.Helper()
	ctx, cancel := Limited()
	defer cancel()
	result := must.Get(s.Run(ctx, nil, "guard", args...))(s.T)
	return result.Code, result.Output
}

// Resident returns the resident memory of processes in MiB.
func Resident(t *testing.T, pids ...int) (mib float64) {
	t.Helper()
	for _, pid := range pids {
		_, rest, _ := strings.Cut(Read(t, fmt.Sprintf("/proc/%d/status", pid)), "\nVmRSS:")
		kib := 0.0
		if _, err := fmt.Sscan(rest, &kib); err != nil {
			t.Fatal(err)
		}
		mib += kib / 1024
	}
	return mib
}

// Outsiders returns the processes that a command of mpsctl reports as no clients of MPS, and the report on each.
// status reports them with the job's guard, audit reports them as findings.
func (s *Shared) Outsiders(command string) map[int]string {
	s.T.Helper()
	var report struct {
		Jobs []struct {
			Guard struct{ Outside []lease.Outside }
		}
		Findings []struct {
			Kind, What string
			PID        int
		}
	}
	result := s.Ctl(command, "--json")
	if err := json.Unmarshal([]byte(result.Output), &report); err != nil {
		s.T.Fatalf("%s: %v: %s", command, err, result.Output)
	}
	found := map[int]string{}
	for _, j := range report.Jobs {
		for _, o := range j.Guard.Outside {
			found[o.Proc.PID] += o.Cause + "\n"
		}
	}
	for _, f := range report.Findings {
		if f.Kind == "process-without-mps" {
			found[f.PID] += f.What + "\n"
		}
	}
	return found
}

// HitBy is the time in which neighbours are hit after files were closed too early: 130 to 190 ms (measured), more
// on a busy machine.
const HitBy = 500 * time.Millisecond

// Together starts clients at the same time and waits until each is ready.
func (s *Shared) Together(n int, args ...string) (clients []*Running) {
	s.T.Helper()
	for range n {
		clients = append(clients, s.Open(s.AsUser(append([]string{s.CudaClient()}, args...)...)))
	}
	for _, client := range clients {
		client.Ready()
	}
	return clients
}

// Neighbours starts n clients at the same time. They compute until they are asked to end, and each has MiB of memory.
func (s *Shared) Neighbours(n, mib int) []*Running {
	s.T.Helper()
	return s.Together(n, "spin", "-ms", "5", "-for", "900", "-exit-idle", "-mib", fmt.Sprint(mib))
}

// Alive counts the clients that have not ended.
func (s *Shared) Alive(clients []*Running) (count int) {
	for _, client := range clients {
		if !s.Ended(client) {
			count++
		}
	}
	return count
}

// Wrapped returns a command of the job's user that runs mpirun-wrap.
func (s *Shared) Wrapped(args ...string) *exec.Cmd {
	cmd := s.Node.AsUser(7, s.Command("mpirun-wrap", args...))
	cmd.SysProcAttr.Setpgid = true
	return cmd
}

// RoomSoon waits until a new client works. It is a plain program, which cannot wait for room itself.
func (s *Shared) RoomSoon() {
	s.T.Helper()
	var out []byte
	works := Comes(func() (works bool) { out, works = s.info(); return works })
	must.Hold(s.T, works, "%v after the death, a new client prints %s", WaitLimit, out)
}

// Survive waits until the work of the dead is over and the neighbours' errors would be seen. Then it checks that all
// neighbours live and that a new client works.
func (s *Shared) Survive(neighbours []*Running, work time.Duration) {
	s.T.Helper()
	wait.Sleep(s.Ctx, work+HitBy)
	alive := s.Alive(neighbours)
	s.T.Logf("%d of %d neighbours live", alive, len(neighbours))
	if alive < len(neighbours) {
		s.T.Fatalf("%d of %d neighbours died\n%s", len(neighbours)-alive, len(neighbours), s.Closings())
	}
	s.Lives(neighbours...)
}

// Closings returns how many dead clients' files the guard closed for each reason, and the shortest time in ms for which
// it held them.
func (s *Shared) Closings() string {
	count, shortest := map[string]int{}, map[string]int{}
	for _, found := range regexp.MustCompile(`"reason":"([^"]+)","held_ms":([0-9]+)`).FindAllStringSubmatch(s.Log(), -1) {
		held, _ := strconv.Atoi(found[2])
		if count[found[1]]++; count[found[1]] == 1 || held < shortest[found[1]] {
			shortest[found[1]] = held
		}
	}
	var guard strings.Builder
	for line := range strings.Lines(s.Log()) {
		if strings.Contains(line, `"program":"guard"`) {
			guard.WriteString(line)
		}
	}
	return fmt.Sprintf("files closed: %v, after %v ms or more\n%s\n%s", count, shortest, &guard, s.ServerLog(7))
}

// TwoPrograms starts ranks that each run two short CUDA programs, one after the other. Both end with nothing in
// flight. All ranks must be able to run both. The second program does not wait for room, so on a machine that pauses it
// may start before the guard has run. Then all ranks get another try, of three.
func (p Node) TwoPrograms(ranks int) {
	p.T.Helper()
	const script = `"$0" spin -ms 20 -for 0.3 && exec "$0" spin -ms 20 -for 2`
	var said string
	for range 3 {
		c := p.Launch(ranks, "sh", "-c", script, p.CudaClient())
		codes, _ := c.End()
		failed := len(slices.DeleteFunc(codes, func(code int) bool { return code == 0 }))
		p.T.Logf("%d of %d ranks could run both programs", ranks-failed, ranks)
		if failed == 0 {
			return
		}
		said += fmt.Sprintf("%d of %d ranks could not run both programs\n%s\n", failed, ranks, Failures(c.Out()))
	}
	p.T.Errorf("in none of three launches could all ranks run both programs\n%s", said)
}

// Failures returns the lines of clients that failed, each different one once.
func Failures(said string) string {
	lines := regexp.MustCompile(`(?m)err=[1-9].*$`).FindAllString(said, -1)
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

// Ensemble runs members as xargs does, some at a time. It returns what they print. In the script, $1 is the number of
// the member, WRAP the command of the wrapper and CLIENT the CUDA client.
func (s *Shared) Ensemble(members, atOnce int, script string) string {
	s.T.Helper()
	wrap := ShellWords(s.Command("mpirun-wrap", fmt.Sprintf("--slots=%d", atOnce)))
	path := filepath.Join(PublicDir(s.T), "member")
	s.Write(path, strings.NewReplacer("WRAP", wrap, "CLIENT", s.CudaClient()).Replace(script)+"\ntrue\n") // xargs ends if a member is killed
	cmd := s.Node.AsUser(7, []string{"sh", "-c", fmt.Sprintf("seq %d | xargs -P%d -n1 sh %s", members, atOnce, path)})
	cmd.SysProcAttr.Setpgid = true
	out, err := cmd.CombinedOutput()
	must.Hold(s.T, err == nil, "xargs: %v", err)
	return string(out)
}

// BigMembers runs 12 members of 66,000 MiB for 1 s each, two at a time. All must be able to run.
func (s *Shared) BigMembers() {
	s.T.Helper()
	const members = 12
	out := s.Ensemble(members, 2, "WRAP CLIENT spin -ms 5 -for 1 -mib 66000")
	done := strings.Count(out, " done ")
	s.T.Logf("%d of %d members worked", done, members)
	if done < members {
		s.T.Errorf("%d of %d members worked\n%s\n%s", done, members, Failures(out), s.Closings())
	}
}

// Plain runs n clients at once and returns how many worked.
func (s *Shared) Plain(n int, args ...string) (worked int) {
	s.T.Helper()
	var clients []*Running
	for range n {
		clients = append(clients, s.Open(s.AsUser(append([]string{s.CudaClient()}, args...)...)))
	}
	for _, client := range clients {
		if strings.Contains(client.Ends(), " done ") {
			worked++
		}
	}
	return worked
}
