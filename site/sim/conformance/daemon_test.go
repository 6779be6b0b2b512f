// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// daemon is a control daemon in directories of its own.
type daemon struct {
	t           *testing.T
	dir         string
	environment []string // of the daemon and of its clients; only the daemon also has a list of devices
	uid         int
}

// directories makes the pipe and log directories p and l of a daemon.
func directories(t *testing.T, uid int) *daemon {
	t.Helper()
	dir := must.Get(os.MkdirTemp(under(t).scratch, "d"))(t)
	for _, path := range []string{dir, filepath.Join(dir, "p"), filepath.Join(dir, "l")} {
		os.Mkdir(path, 0o755)
		os.Chmod(path, 0o755)
		must.OK(t, os.Chown(path, uid, -1))
	}
	d := &daemon{t: t, dir: dir, uid: uid}
	d.environment = []string{"CUDA_MPS_PIPE_DIRECTORY=" + d.pipe(), "CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(dir, "l")}
	t.Cleanup(d.kill)
	return d
}

func (d *daemon) pipe() string { return filepath.Join(d.dir, "p") }

// start runs a daemon with these extra variables. When start returns, the daemon serves.
func start(t *testing.T, variables ...string) *daemon {
	t.Helper()
	d := directories(t, under(t).uid)
	d.again(variables...)
	return d
}

func (d *daemon) again(variables ...string) {
	d.t.Helper()
	out := d.control(d.uid, variables, "-d").run()
	must.Have(d.t, out.code == 0, "-d: exit code %d, %q %q", out.code, out.stdout, out.stderr)
}

func (d *daemon) control(uid int, variables []string, args ...string) *call {
	return under(d.t).command(append(append([]string{}, d.environment...), variables...), uid, under(d.t).control, args...)
}

// ask sends a command as the daemon's user and returns the answer. The test fails if the daemon does not answer.
func (d *daemon) ask(command string) string {
	d.t.Helper()
	out := d.tell(command, answerDeadline)
	must.Have(d.t, !out.late && out.stderr == "", "%s: late=%v, %q %q", command, out.late, out.stdout, out.stderr)
	return strings.TrimSuffix(out.stdout, "\n")
}

func (d *daemon) tell(command string, deadline time.Duration) outcome {
	c := d.control(d.uid, nil)
	c.stdin, c.deadline = command+"\n", deadline
	return c.run()
}

// server starts a server, waits for it and returns its pid.
func (d *daemon) server() int {
	d.t.Helper()
	d.ask(fmt.Sprintf("start_server -uid %d", d.uid))
	return d.servers()[0]
}

func (d *daemon) servers() []int {
	d.t.Helper()
	var pids []int
	for _, word := range strings.Fields(d.ask("get_server_list")) {
		pid, err := strconv.Atoi(word)
		must.Have(d.t, err == nil, "get_server_list: %q", word)
		pids = append(pids, pid)
	}
	must.Have(d.t, len(pids) != 0, "get_server_list: no server")
	return pids
}

// pid is the daemon's process number, from the pid file. It is 0 if there is no such file.
func (d *daemon) pid() int {
	text, err := os.ReadFile(filepath.Join(d.pipe(), "nvidia-cuda-mps-control.pid"))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// kill ends what the test has left: every daemon with this pipe directory, and its servers.
func (d *daemon) kill() {
	for _, pid := range d.daemons() {
		family := append(children(pid), pid)
		for _, member := range family {
			syscall.Kill(member, syscall.SIGCONT)
		}
		syscall.Kill(pid, syscall.SIGKILL)
		for _, member := range family {
			eventually(d.t, "the daemon and its servers are gone", soon, func() bool { return !alive(member) })
		}
	}
	os.RemoveAll(d.dir)
}

// daemons are the control daemons with this pipe directory in their environment, with or without a pid file.
func (d *daemon) daemons() []int {
	var found []int
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !strings.Contains(cmdline(pid), "nvidia-cuda-mps-control") {
			continue
		}
		environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if strings.Contains(string(environment), "CUDA_MPS_PIPE_DIRECTORY="+d.pipe()+"\x00") {
			found = append(found, pid)
		}
	}
	return found
}

func (d *daemon) log(name string) string {
	text, _ := os.ReadFile(filepath.Join(d.dir, "l", name))
	return string(text)
}

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool {
	state, _ := stat(pid)
	return state != "" && state != "Z" && state != "X"
}

// stat returns the fields of /proc/PID/stat, from field 3 to the last.
func stat(pid int) (state string, fields []string) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", nil
	}
	fields = strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return fields[0], fields
}

func children(pid int) []int {
	var found []int
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if _, fields := stat(child); len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			found = append(found, child)
		}
	}
	return found
}

func cmdline(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimRight(strings.ReplaceAll(string(text), "\x00", " "), " ")
}

// client runs the CUDA program and waits for its end.
func (d *daemon) client(variables []string, args ...string) outcome {
	d.t.Helper()
	return d.clientOf(d.uid, variables, args...)
}

func (d *daemon) clientOf(uid int, variables []string, args ...string) outcome {
	d.t.Helper()
	environment := append(append([]string{}, d.environment...), variables...)
	out := under(d.t).command(environment, uid, under(d.t).client, args...).run()
	must.Have(d.t, !out.late, "cuda-client %v hangs: %q", args, out.stdout)
	return out
}

// info is what `cuda-client info` prints.
type info struct{ err, sms, devices, free, total int }

var infoLine = regexp.MustCompile(`^err=(\d+)\(\w+\) sm=(\d+) ndev=(\d+) init=[\d.]+ free=(\d+)MiB total=(\d+)MiB`)

func (d *daemon) info(variables ...string) info {
	d.t.Helper()
	return read(d.t, d.client(variables, "info"))
}

func read(t *testing.T, out outcome) info {
	t.Helper()
	words := infoLine.FindStringSubmatch(out.stdout)
	must.Have(t, words != nil, "cannot read the output of cuda-client info: %q %q", out.stdout, out.stderr)
	var number [5]int
	for i := range number {
		number[i], _ = strconv.Atoi(words[i+1])
	}
	return info{number[0], number[1], number[2], number[3], number[4]}
}

// spinner is a client that runs kernels.
type spinner struct {
	t     *testing.T
	call  *call
	mutex sync.Mutex
	lines []string
	done  chan struct{}

	endless bool // it computes until SIGTERM
}

// spin starts a client that runs kernels. When spin returns, the client is ready.
func (d *daemon) spin(variables []string, args ...string) *spinner {
	d.t.Helper()
	s := d.launch(variables, args...)
	eventually(d.t, "a client is ready", answerDeadline, func() bool { return s.line(0) != "" })
	if !strings.Contains(s.line(0), " ready ") {
		d.t.Fatalf("client: %q", s.line(0))
	}
	return s
}

// neighbour starts a client that computes until survives or the end of the test ends it.
func (d *daemon) neighbour() *spinner {
	d.t.Helper()
	s := d.spin(nil, "-ms", "1", "-for", "60", "-exit-idle")
	s.endless = true
	return s
}

func (d *daemon) launch(variables []string, args ...string) *spinner {
	d.t.Helper()
	return d.run(variables, append([]string{"spin"}, args...)...)
}

// run starts the CUDA program and does not wait for its end.
func (d *daemon) run(variables []string, args ...string) *spinner {
	d.t.Helper()
	c := under(d.t).command(append(append([]string{}, d.environment...), variables...), d.uid, under(d.t).client, args...)
	stdout := must.Get(c.StdoutPipe())(d.t)
	s := &spinner{t: d.t, call: c, done: make(chan struct{})}
	must.OK(d.t, c.Start())
	go func() {
		for scan := bufio.NewScanner(stdout); scan.Scan(); {
			s.mutex.Lock()
			s.lines = append(s.lines, scan.Text())
			s.mutex.Unlock()
		}
		c.Wait()
		close(s.done)
	}()
	d.t.Cleanup(func() { c.Process.Kill(); <-s.done })
	return s
}

func (s *spinner) line(i int) string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if i < len(s.lines) {
		return s.lines[i]
	}
	return ""
}

func (s *spinner) pid() int { return s.call.Process.Pid }

func (s *spinner) signal(signal syscall.Signal) { syscall.Kill(s.pid(), signal) }

// end waits for the client's end and returns its last line.
func (s *spinner) end() string {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(answerDeadline):
		s.t.Fatalf("client %d does not end: %q", s.pid(), s.lines)
	}
	return s.line(len(s.lines) - 1)
}

// faultDelay is longer than a client can compute after an event that kills it: at most 0.19 s (measured on an H200).
const faultDelay = time.Second

// survives fails the test if the client has ended with a CUDA error. It first ends a client that computes without end.
func (s *spinner) survives(what string) {
	s.t.Helper()
	if s.endless {
		time.Sleep(faultDelay)
		s.signal(syscall.SIGTERM)
	}
	if last := s.end(); !strings.Contains(last, " done ") {
		s.t.Errorf("%s: the neighbour ended with %q", what, last)
	}
}

// fails fails the test if the client does not end with this CUDA error.
func (s *spinner) fails(what string, code int) {
	s.t.Helper()
	if last := s.end(); !strings.Contains(last, fmt.Sprintf(" err=%d ", code)) {
		s.t.Errorf("%s: the client ended with %q, not with error %d", what, last, code)
	}
}

// fault sets a knob until the end of the test.
func fault(t *testing.T, knob, text string) {
	t.Helper()
	path := filepath.Join(under(t).node.Dir, "faults", knob)
	must.OK(t, os.WriteFile(path, []byte(text), 0o644))
	t.Cleanup(func() { os.Remove(path) })
}

// Other tests rely on the knobs of the simulation. This test checks that the knobs do what control/README.md
// describes.
func TestKnobs(t *testing.T) {
	alone(t)
	onlySimulated(t, "a real daemon has no knobs")
	const hang = 500 * time.Millisecond
	asked := func(d *daemon) outcome { return d.tell("get_server_list", answerDeadline) }
	hangs := func(d *daemon) outcome { return d.tell("get_server_list", hang) }
	started := func(d *daemon) outcome { return d.control(d.uid, nil, "-d").run() }
	late := func(o outcome) bool { return o.late }
	for _, k := range []struct {
		name, value string
		running     bool // the daemon runs before the knob is set
		do          func(*daemon) outcome
		good        func(outcome) bool
	}{
		{"slow_ms", "300", true, asked, func(o outcome) bool { return !o.late && o.took >= 300*time.Millisecond }},
		{"deaf", "", true, hangs, late},
		{"dies_at_start", "", false, started, func(o outcome) bool { return o.code == 1 && o.stdout+o.stderr == "" }},
		{"silent_start", "", false, func(d *daemon) outcome { d.again(); return asked(d) }, func(o outcome) bool { return o.code == 1 }},
		{"holds_fds", "", false, started, func(o outcome) bool { return o.code == 0 && strings.Contains(o.stderr, "holds the streams") }},
		{"quit_status", "1", true, func(d *daemon) outcome { return d.tell("quit", answerDeadline) }, func(o outcome) bool { return o.code == 1 }},
		{"ignore_quit", "", true, func(d *daemon) outcome {
			d.ask("quit")
			syscall.Kill(d.pid(), syscall.SIGTERM)
			return d.tell("get_default_client_priority", answerDeadline)
		}, func(o outcome) bool { return o.stdout == "0\n" }},
		{"server_start_ms", "1000", true, func(d *daemon) outcome {
			begin := time.Now()
			d.server()
			return outcome{took: time.Since(begin)}
		}, func(o outcome) bool { return o.took >= time.Second }},
		{"server_dies_at_start", "", true, func(d *daemon) outcome {
			return outcome{code: d.info().err, stdout: d.ask("get_server_list")}
		}, func(o outcome) bool { return o.code == 805 && o.stdout == "" }},
		{"garbage_answer", "\x01\xff 17 \x00 ACTIVE-ish\n", true, asked, func(o outcome) bool { return o.stdout == "\x01\xff 17 \x00 ACTIVE-ish\n" }},
		{"endless_answer", "", true, hangs, func(o outcome) bool { return o.late && len(o.stdout) >= 1<<16 }},
	} {
		t.Run(k.name, func(t *testing.T) {
			d := directories(t, under(t).uid)
			if k.running {
				d.again()
			}
			fault(t, k.name, k.value)
			if out := k.do(d); !k.good(out) {
				t.Errorf("%+v", out)
			}
		})
	}
	t.Run("wedge_after_terminate", func(t *testing.T) {
		d := start(t)
		d.server()
		client := d.spin(nil, "-ms", "1", "-for", "20")
		fault(t, "wedge_after_terminate", "")
		d.tell("terminate_client "+d.ask("get_server_list")+" "+client.line(0)[len("pid="):strings.Index(client.line(0), " ")], answerDeadline)
		client.fails("terminate_client", 810)
		if out := hangs(d); !out.late {
			t.Errorf("%+v", out)
		}
	})
}

// stay starts a client that stops at a stage and stays there. When stay returns, the client is at this stage.
func (d *daemon) stay(stage string, variables ...string) *spinner {
	d.t.Helper()
	s := d.run(variables, "stay", stage, "20")
	eventually(d.t, "a client is at its stage", answerDeadline, func() bool { return s.line(0) != "" })
	if !strings.Contains(s.line(0), fmt.Sprintf("stays at %s err=0 ", stage)) {
		d.t.Fatalf("client: %q", s.line(0))
	}
	return s
}

// opened counts the driver's files that a process has open, by their names without the folder.
func opened(pid int) map[string]int {
	found := map[string]int{}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		to, _ := os.Readlink(link)
		if at := strings.LastIndex(to, "/dev/nvidia"); at >= 0 {
			found[to[at+len("/dev/"):]]++
		}
	}
	return found
}

// After cuInit a process has the driver's files open, with MPS and without. A process that has only loaded the
// library has none of them open. The library is mapped at each stage.
func TestWhatAProcessOpens(t *testing.T) {
	alone(t)
	d := start(t, "CUDA_VISIBLE_DEVICES="+under(t).gpus[0])
	d.server()
	for _, c := range []struct {
		stage string
		opens bool
	}{{"load", false}, {"init", true}, {"context", true}} {
		for _, pipe := range []string{d.pipe(), "/nonexistent"} {
			s := d.stay(c.stage, "CUDA_MPS_PIPE_DIRECTORY="+pipe)
			files := opened(s.pid())
			gpus := 0
			for name := range files {
				if rest := strings.TrimPrefix(name, "nvidia"); rest != "" && strings.Trim(rest, "0123456789") == "" {
					gpus++
				}
			}
			if got := []bool{gpus > 0, files["nvidiactl"] > 0, files["nvidia-uvm"] > 0}; got[0] != c.opens || got[1] != c.opens || got[2] != c.opens {
				t.Errorf("%s, pipe folder %s: %v", c.stage, pipe, files)
			}
			maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", s.pid()))
			if !strings.Contains(string(maps), "/libcuda.so") {
				t.Errorf("%s: libcuda is not mapped", c.stage)
			}
			s.signal(syscall.SIGKILL)
			s.end()
		}
	}
}

// The server's log names every client after its cuInit, and no other process. The list of clients names a client
// after its first context.
func TestClientsAreLogged(t *testing.T) {
	alone(t)
	d := start(t)
	server := d.server()
	for _, c := range []struct {
		stage          string
		mps            bool
		logged, listed bool
	}{{"load", true, false, false}, {"init", true, true, false}, {"context", true, true, true}, {"context", false, false, false}} {
		var variables []string
		if !c.mps {
			variables = []string{"CUDA_MPS_PIPE_DIRECTORY=/nonexistent"}
		}
		s := d.stay(c.stage, variables...)
		line := fmt.Sprintf("Client {PID: %d, Context ID: 0} connected", s.pid())
		logged := func() bool { return strings.Contains(d.log("server.log"), line) }
		if c.logged {
			eventually(t, "server.log has "+line, soon, logged)
		} else if logged() {
			t.Errorf("%+v: logged", c)
		}
		list := strings.Fields(d.ask(fmt.Sprintf("get_client_list %d", server)))
		if got := len(list) == 1 && list[0] == fmt.Sprint(s.pid()); got != c.listed {
			t.Errorf("%+v: listed %v: %q", c, got, list)
		}
		s.signal(syscall.SIGKILL)
		s.end()
		eventually(t, "get_client_list lists no client", answerDeadline, func() bool { return d.ask(fmt.Sprintf("get_client_list %d", server)) == "" })
	}
}

// A fault lasts until every process that it hit has ended. Until then new clients get 807 at once, and the log has
// the reason. After that the same server serves new clients.
func TestAFaultLastsAsLongAsItsClients(t *testing.T) {
	alone(t)
	d, server, victim, neighbour := beside(t, "-ms", "1", "-hold", "60")
	d.client(nil, "fault")
	neighbour.fails("illegal access", 700)
	eventually(t, "the victim has its error", answerDeadline, func() bool { return strings.Contains(victim.line(1), " err=700 ") })
	for range 3 {
		must.Equal(t, "status", d.ask(fmt.Sprintf("get_server_status %d", server)), "FAULT")
		if got := d.info(); got.err != 807 {
			t.Errorf("new client: %+v", got)
		}
	}
	log := d.log("server.log")
	_, sticky, _ := strings.Cut(log, "The following client process have a sticky error set:\n")
	if want := fmt.Sprintf("] %d\n", victim.pid()); !strings.Contains(sticky, want) {
		t.Errorf("server.log lacks %q after the first line of the list:\n%s", want, sticky)
	}
	for _, want := range []string{"Server teardown in progress. Refusing to accept new client {PID: ", "Context ID: 0} with status 807\n"} {
		if got := strings.Count(log, want); got < 3 {
			t.Errorf("server.log has %q %d times", want, got)
		}
	}
	victim.signal(syscall.SIGKILL)
	eventually(t, "new clients work", soon, func() bool { return d.info().err == 0 })
	must.Equal(t, "status", d.ask(fmt.Sprintf("get_server_status %d", server)), "ACTIVE")
	if line := fmt.Sprintf("Client process %d disconnected\n", victim.pid()); !strings.Contains(d.log("server.log"), line) {
		t.Errorf("server.log lacks %q", line)
	}
}
