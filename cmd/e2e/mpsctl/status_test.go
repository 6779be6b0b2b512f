// SPDX-License-Identifier: Apache-2.0

package mpsctl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"golang.org/x/sys/unix"
)

// seen is the JSON of status, as its documentation describes it.
type seen struct {
	Node string `json:"node"`
	Root bool   `json:"root"`
	Jobs []struct {
		Job     uint32   `json:"job"`
		User    string   `json:"user"`
		Rule    string   `json:"rule"`
		Phase   string   `json:"phase"`
		Since   string   `json:"since"`
		Share   string   `json:"share"`
		Memory  string   `json:"memory"`
		Ceiling *float64 `json:"ceiling"`
		GPUs    []struct {
			UUID    site.UUID    `json:"uuid"`
			Clients []seenClient `json:"clients"`
		} `json:"gpus"`
		Daemons []struct {
			PID     int      `json:"pid"`
			State   string   `json:"state"`
			Ceiling *float64 `json:"ceiling"`
			Servers []struct {
				PID     int     `json:"pid"`
				Status  string  `json:"status"`
				Percent float64 `json:"percent"`
			} `json:"servers"`
		} `json:"daemons"`
	} `json:"jobs"`
	GPUs []struct {
		UUID site.UUID `json:"uuid"`
		Mode string    `json:"mode"`
		Job  *uint32   `json:"job"`
		Held bool      `json:"claimed"`
	} `json:"gpus"`
	Findings []e2e.Finding `json:"findings"`
	Unseen   []string      `json:"errors"`
}

type seenClient struct {
	PID       int      `json:"pid"`
	Percent   *float64 `json:"percent"`
	SMs       int      `json:"sms"`
	MemoryMiB *int     `json:"memory_mib"`
	Unknown   string   `json:"unknown"`
}

// status returns the JSON of status. It checks that the exit code tells whether status found anything.
func (p testNode) status(args ...string) seen {
	p.T.Helper()
	result := p.Ctl(append([]string{"status", "--json"}, args...)...)
	var s seen
	if err := json.Unmarshal([]byte(result.Output), &s); err != nil {
		p.T.Fatalf("%v: %s", err, result.Output)
	}
	if found := len(s.Findings)+len(s.Unseen) > 0; result.Code != map[bool]int{false: 0, true: 1}[found] {
		p.T.Errorf("code %d: %s", result.Code, result.Output)
	}
	return s
}

// kinds returns the sorted kinds of the findings.
func kinds(found []e2e.Finding) string {
	var all []string
	for _, f := range found {
		all = append(all, f.Kind)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// contexts returns the pids of a GPU's clients from the driver.
func (p testNode) contexts(gpu int) []int {
	p.T.Helper()
	held := must.Get(p.Sim.Node.GPU(gpu).Contexts())(p.T)
	var pids []int
	for _, c := range held {
		if c.Type == node.Client {
			pids = append(pids, c.PID)
		}
	}
	slices.Sort(pids)
	return pids
}

// ask asks a daemon a question with the control program, as the job's user.
func (p testNode) ask(d lease.Daemon, line string) string {
	p.T.Helper()
	cmd := exec.CommandContext(p.Ctx, p.Sim.Program("nvidia-cuda-mps-control"))
	cmd.Env, cmd.Dir, cmd.Stdin = []string{"CUDA_MPS_PIPE_DIRECTORY=" + d.PipeDir}, "/", strings.NewReader(line+"\n")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: e2e.UID, Gid: e2e.GID}}
	out, err := cmd.CombinedOutput()
	must.Have(p.T, err == nil, "%s: %v: %s", line, err, out)
	return strings.TrimSpace(string(out))
}

// Eight ranks run on two GPUs. Status prints the SMs that CUDA gave each rank, the pids that the driver and the
// daemon report, and the daemon's limits.
func TestStatusAgrees(t *testing.T) {
	policy := testnode.Default("ceiling = 50", `share = "even"`, `memory = "even"`, `drain_grace = "1s"`)
	p := newTestNode(t, policy, node.H200, node.H200, node.H200)
	p.Open(p.Job(7, "0,1"))
	told := map[int]int{} // the number of SMs by pid, as CUDA reports it
	for _, rank := range p.Ranks(8, "spin", "-ms", "1", "-for", "100") {
		said := regexp.MustCompile(`pid=(\d+) ready .* sm=(\d+)`).FindStringSubmatch(rank.Ready)
		must.Have(t, said != nil, "a client prints %q", rank.Ready)
		pid, _ := strconv.Atoi(said[1])
		told[pid], _ = strconv.Atoi(said[2])
	}
	s := p.status()
	must.Have(t, len(s.Jobs) == 1 && len(s.GPUs) == 3 && len(s.Findings) == 0 && len(s.Unseen) == 0 && s.Root,
		"seen %+v", s)
	j, d := s.Jobs[0], p.Ticket(7).Daemons[0]
	if j.Job != 7 || j.User != "hpc1" || j.Rule != "mps" || j.Phase != "open" || j.Share != "even" || j.Memory != "even" || *j.Ceiling != 50 {
		t.Errorf("job %+v", j)
	}
	if since, err := time.Parse(time.RFC3339Nano, j.Since); err != nil || time.Since(since) < 0 || time.Since(since) > time.Minute {
		t.Errorf("since %s, %v", j.Since, err)
	}
	server := p.ask(d, "get_server_list")
	if got := j.Daemons[0]; got.PID != d.Proc.PID || got.State != "serving" || *got.Ceiling != 50 || len(got.Servers) != 1 ||
		fmt.Sprint(got.Servers[0].PID) != server || got.Servers[0].Status != "ACTIVE" || got.Servers[0].Percent != 50 {
		t.Errorf("daemon %+v, and it reports the server %s", got, server)
	}
	served := strings.Fields(p.ask(d, "get_client_list "+server))
	for gpu, held := range j.GPUs {
		var pids []int
		for _, c := range held.Clients {
			pids = append(pids, c.PID)
			if c.SMs != told[c.PID] || c.SMs == 0 || c.MemoryMiB == nil || c.Unknown != "" {
				t.Errorf("client %+v, and CUDA reports %d SMs", c, told[c.PID])
			}
			must.Hold(t, slices.Contains(served, strconv.Itoa(c.PID)), "client %d is not among the daemon's %v", c.PID, served)
		}
		if want := p.contexts(gpu); len(want) != 4 || !slices.Equal(pids, want) {
			t.Errorf("clients of GPU %d: %v, and the driver reports %v", gpu, pids, want)
		}
	}
	modes := ""
	for _, g := range s.GPUs {
		modes += fmt.Sprint(map[string]int{"default": 0, "exclusive_process": 3}[g.Mode])
		if held := g.Mode == "exclusive_process"; g.Held != held || held != (g.Job != nil && *g.Job == 7) {
			t.Errorf("GPU %+v", g)
		}
	}
	must.Equal(t, "modes", modes, p.Modes())
	if found := p.Audit(); len(found) != 0 {
		t.Errorf("audit found %+v", found)
	}
	p.looksFromOutside(t, s)
	p.Must(0, p.Job(7, "0,1"), "epilog")
	if s := p.status(); len(s.Jobs) != 0 || len(s.Findings) != 0 {
		t.Errorf("after the epilog: %+v", s)
	}
	p.Clean()
}

// looksFromOutside compares status as text, and status without queries, with what was seen.
func (p testNode) looksFromOutside(t *testing.T, s seen) {
	t.Helper()
	silent := p.status("--no-queries")
	if d := silent.Jobs[0].Daemons[0]; d.State != "alive" || d.Ceiling != nil || len(d.Servers) != 0 {
		t.Errorf("without queries, the daemon is %+v", d)
	}
	if !reflect.DeepEqual(silent.Jobs[0].GPUs, s.Jobs[0].GPUs) {
		t.Errorf("without queries: %+v\nwith queries:    %+v", silent.Jobs[0].GPUs, s.Jobs[0].GPUs)
	}
	text := p.Ctl("status").Output
	for _, c := range s.Jobs[0].GPUs[0].Clients {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^ +- +0 +%d  cuda-client +%d SMs +[1-9]\d* MiB +%d MiB$`, c.PID, c.SMs, *c.MemoryMiB)).MatchString(text) {
			t.Errorf("client %d is not in\n%s", c.PID, text)
		}
	}
	must.Hold(t, !strings.Contains(text, "\x1b"), "there is colour on a pipe: %q", text)
}

// scene is a node with two GPUs and a job on GPU 0. A test then makes something go wrong.
type scene struct {
	testNode
	daemon lease.Daemon
}

func newScene(t *testing.T, attributes ...string) scene {
	p := newTestNode(t, testnode.Default(attributes...), node.H200, node.H200)
	p.Open(p.Job(7, "0"))
	return scene{p, p.Ticket(7).Daemons[0]}
}

func (s scene) path(name string) string { return filepath.Join(s.Paths().Run(), name) }

// remove removes a file of the state.
func (s scene) remove(name string) {
	s.T.Helper()
	must.OK(s.T, os.Remove(s.path(name)))
}

// start starts a control daemon for a GPU by hand, as the job's user.
func (s scene) start(pipe string, gpu int) {
	s.T.Helper()
	log := filepath.Join(filepath.Dir(s.Root), "log")
	for _, dir := range []string{pipe, log} {
		must.OK(s.T, errors.Join(os.MkdirAll(dir, 0o755), os.Chown(dir, int(e2e.UID), int(e2e.GID))))
	}
	cmd := exec.Command(s.Sim.Program("nvidia-cuda-mps-control"), "-d")
	cmd.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe, "CUDA_MPS_LOG_DIRECTORY=" + log, "CUDA_VISIBLE_DEVICES=" + string(s.UUID(gpu))}
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: e2e.UID, Gid: e2e.GID}}
	e2e.Runs(s.T, cmd)
	s.T.Cleanup(func() { s.killServing(pipe) })
}

// killServing ends the daemons and servers of a pipe folder.
func (s scene) killServing(pipe string) {
	comms, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, comm := range comms {
		environment, _ := os.ReadFile(filepath.Join(filepath.Dir(comm), "environ"))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(comm)))
		name, _ := os.ReadFile(comm)
		if !bytes.HasPrefix(name, []byte("nvidia-cuda-mps")) || !bytes.Contains(environment, []byte("CUDA_MPS_PIPE_DIRECTORY="+pipe+"\x00")) {
			continue
		}
		if stat, err := proc.ReadStat(pid); err == nil {
			_ = stat.Kill(unix.SIGKILL)
		}
	}
}

// bare starts a client of the job's user without the wrapper, with an environment of its own.
func (s scene) bare(environment ...string) *exec.Cmd {
	s.T.Helper()
	cmd := s.AsUser(7, []string{s.CudaClient(), "spin", "-ms", "1", "-for", "100"})
	cmd.Env = []string{"LD_LIBRARY_PATH=" + s.Sim.Libraries(), "CUDA_VISIBLE_DEVICES=" + string(s.UUID(0))}
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		cmd.Env = e2e.With(cmd.Env, name, value)
	}
	return s.Ready(cmd)
}

func (s scene) pipe() string { return "CUDA_MPS_PIPE_DIRECTORY=" + s.daemon.PipeDir }

func (s scene) mode(gpu, mode int) {
	s.T.Helper()
	must.OK(s.T, s.Sim.Node.GPU(gpu).SetMode(mode))
}

// stop stops a process until the test ends.
func (s scene) stop(pid int) {
	s.T.Helper()
	must.OK(s.T, syscall.Kill(pid, syscall.SIGSTOP))
	s.T.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
}

// server waits for the daemon's server and returns its pid.
func (s scene) server() int {
	s.T.Helper()
	return must.Get(strconv.Atoi(s.ask(s.daemon, "get_server_list")))(s.T)
}

// Status reports a disagreement between lease and node, and nothing else. Here are those that a daemon's answers show.
// TestJudge of package state has all.
func TestStatusMarksDisagreements(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(scene)
		want  string
	}{
		{"nothing", func(s scene) { s.remove("jobs/7/0/lock") }, ""}, // status does not make the file again
		{"another daemon took its folder", func(s scene) {
			_ = s.daemon.Proc.Kill(9)
			s.Gone(s.daemon.Proc)
			s.start(s.daemon.PipeDir, 0)
		}, "daemon-replaced"},
		{"the server is stopped", func(s scene) { s.stop(s.server()) }, "daemon-wedged"},
		{"a client failed", func(s scene) {
			victim := s.bare(s.pipe())
			s.stop(victim.Process.Pid)
			cmd := s.AsUser(7, []string{s.CudaClient(), "fault"})
			cmd.Env = []string{"LD_LIBRARY_PATH=" + s.Sim.Libraries(), "CUDA_VISIBLE_DEVICES=" + string(s.UUID(0)), s.pipe()}
			_ = cmd.Run()
		}, "server-fault"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t, "ceiling = 50")
			s.server()
			c.spoil(s)
			before := s.files()
			var found []e2e.Finding
			// On a busy machine a daemon that is not stopped may be late to answer, too.
			e2e.Comes(func() bool { found = s.status().Findings; return kinds(found) == c.want })
			if got := kinds(found); got != c.want {
				t.Errorf("found %q, want %q: %+v", got, c.want, found)
			}
			var text string
			e2e.Comes(func() bool {
				text = s.Ctl("status").Output
				return !slices.ContainsFunc(found, func(f e2e.Finding) bool {
					return !strings.Contains(text, "! "+f.Kind+"  "+f.Where+"\n")
				})
			})
			for _, f := range found {
				must.Hold(t, f.Where != "" && f.What != "" && f.Do != "" && !strings.Contains(f.What+f.Do, "\x1b"),
					"%+v lacks where, what or fix", f)
				if marks := strings.Count(text, "! "+f.Kind); marks < 1 || !strings.Contains(text, "! "+f.Kind+"  "+f.Where+"\n") {
					t.Errorf("%s is not in\n%s", f.Kind, text)
				}
			}
			if after := s.files(); !slices.Equal(before, after) {
				t.Errorf("status changed a file:\nbefore %q\nafter  %q", before, after)
			}
		})
	}
}

// files returns all files of the state, with the attributes that a change would change. It leaves out files of guards
// and recorders, because these write at any time. For the same reason it leaves out the time of a job's folder.
func (p testNode) files() []string {
	var all []string
	_ = filepath.WalkDir(p.Paths().Run(), func(path string, entry os.DirEntry, err error) error {
		written := []string{"/log", "/guards", "/room.json", usage.Running}
		if err == nil && !slices.ContainsFunc(written, func(part string) bool { return strings.Contains(path, part) }) {
			var st unix.Stat_t
			_ = unix.Lstat(path, &st)
			if filepath.Base(filepath.Dir(path)) == "jobs" {
				st.Mtim = unix.Timespec{}
			}
			all = append(all, fmt.Sprintf("%s %o %d %d %d.%d", path, st.Mode, st.Uid, st.Ino, st.Mtim.Sec, st.Mtim.Nsec))
		}
		return nil
	})
	return all
}

// Audit finds exactly the planted problem, of each kind.
func TestAuditFindsWhatWasPlanted(t *testing.T) {
	t.Parallel()
	const unchanged = `compute_mode = "unchanged"`
	for _, c := range []struct {
		name       string
		attributes []string
		plant      func(scene)
		want       string
	}{
		{"nothing", nil, func(s scene) { s.Ranks(3, "spin", "-ms", "1", "-for", "100") }, ""},
		{"ranks of an even share", []string{`share = "even"`, `memory = "even"`},
			func(s scene) { s.Ranks(3, "spin", "-ms", "1", "-for", "100") }, ""},
		{"a process without MPS", []string{unchanged}, func(s scene) { s.Client(7, "spin", "-ms", "1", "-for", "100"); s.bare() }, "process-without-mps"},
		{"a client of another daemon", []string{unchanged}, func(s scene) {
			own := filepath.Join(filepath.Dir(s.Root), "own")
			s.start(own, 0)
			s.bare("CUDA_MPS_PIPE_DIRECTORY=" + own)
		}, "client-of-another-daemon daemon-not-of-a-lease process-without-mps"}, // the process is that daemon's server
		{"a client without a share", []string{`share = "even"`},
			func(s scene) { s.Ranks(2, "spin", "-ms", "1", "-for", "100"); s.bare(s.pipe()) }, "client-without-share"},
		{"a client with a share that CUDA ignores", []string{`share = "even"`}, func(s scene) {
			s.Ranks(2, "spin", "-ms", "1", "-for", "100")
			s.bare(s.pipe(), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=0")
		}, "client-without-share"},
		{"a client with a share of its own", []string{`share = "even"`}, func(s scene) {
			s.Ranks(2, "spin", "-ms", "1", "-for", "100")
			s.bare(s.pipe(), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=80")
		}, ""},
		{"a client without a limit of memory", []string{`memory = "4G"`, `share = "none"`},
			func(s scene) { s.Client(7, "spin", "-ms", "1", "-for", "100"); s.bare(s.pipe()) }, "client-without-memory-limit"},
		{"a limit that names a GPU that is not seen", []string{`memory = "4G"`, `share = "none"`}, func(s scene) {
			s.bare(s.pipe(), fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=%s=4G,%s=4G", s.UUID(0), s.UUID(1)))
		}, "client-without-memory-limit"},
		{"a ceiling that was lifted", []string{"ceiling = 50"},
			func(s scene) { s.ask(s.daemon, fmt.Sprintf("set_active_thread_percentage %d 100", s.server())) }, "ceiling-lifted"},
		{"an exclusive GPU without a lease", nil, func(s scene) { s.mode(1, node.ExclusiveProcess) }, "exclusive-without-lease"},
		{"a daemon of slurm-mps without a lease", nil, func(s scene) { s.start(s.path("elsewhere/pipe"), 1) }, "daemon-without-lease"},
		{"a user's own daemon", nil, func(s scene) { s.start(filepath.Join(filepath.Dir(s.Root), "own"), 1) }, "daemon-not-of-a-lease"},
		{"a process without MPS on a GPU of no job", nil, func(s scene) { s.bare("CUDA_VISIBLE_DEVICES=" + string(s.UUID(1))) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t, c.attributes...)
			s.server()
			c.plant(s)
			found := s.Audit()
			if got := kinds(found); got != c.want {
				t.Errorf("found %q, want %q: %+v", got, c.want, found)
			}
			text := s.Ctl("audit").Output
			words := strings.Join(strings.Fields(text), " ") // a repair has a line for each step
			for _, f := range found {
				fix := "fix: " + strings.ReplaceAll(f.Do, "; ", " ")
				must.Hold(t, strings.Contains(text, fmt.Sprintf("! %s  %s\n", f.Kind, f.Where)) && strings.Contains(words, fix),
					"%+v is not in\n%s", f, text)
			}
		})
	}
}

// A user sees all of the user's own job, and only the numbers of other users' jobs. Status reports what it may not
// read.
func TestStatusForAUser(t *testing.T) {
	p := newTestNode(t, testnode.Default(`drain_grace = "200ms"`), node.H200, node.H200)
	p.Open(p.Job(7, "0"))
	other := p.Job(8, "1")
	other.UID, other.GID = e2e.OtherUID, e2e.OtherUID
	p.Open(other)
	refused := p.Job(9, "") // a job without a GPU has a ticket without a lease
	refused.UID, refused.GID = e2e.OtherUID, e2e.OtherUID
	p.Must(0, refused, "prolog")
	p.Ranks(4, "spin", "-ms", "1", "-for", "100")
	code, out := p.MpsctlAs(e2e.UID, "status", "--json")
	var s seen
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 {
		t.Fatalf("code %d, %v: %s", code, err, out)
	}
	must.Have(t, len(s.Jobs) == 1 && s.Jobs[0].Job == 7 && s.Jobs[0].Daemons[0].State == "serving" && !s.Root,
		"seen %s", out)
	want := p.contexts(0)
	for i, c := range s.Jobs[0].GPUs[0].Clients {
		if c.PID != want[i] || c.SMs != 66 {
			t.Errorf("client %+v, want %d", c, want[i])
		}
	}
	if len(s.Jobs[0].GPUs[0].Clients) != 4 || s.GPUs[0].Job == nil || *s.GPUs[0].Job != 7 || !s.GPUs[1].Held || s.GPUs[1].Job != nil {
		t.Errorf("seen %s", out)
	}
	if !slices.Contains(s.Unseen, "the leases of other users: root's to read (jobs 8, 9)") || len(s.Findings) != 0 {
		t.Errorf("unseen %q, found %+v", s.Unseen, s.Findings)
	}
	if code, out := p.MpsctlAs(e2e.UID+2, "status"); code != 0 || !strings.Contains(out, "root's to read (jobs 7, 8, 9)") ||
		!strings.Contains(out, "another job") || strings.Contains(out, "hpc1") {
		t.Errorf("status of a third user: code %d\n%s", code, out)
	}
	if code, out := p.MpsctlAs(e2e.UID, "audit"); code != 1 || !strings.Contains(out, "\nnot seen\n  the leases of other users: root's to read (jobs 8, 9)\n") {
		t.Errorf("a user's audit: code %d\n%s", code, out)
	}
	// While an epilog works, the ticket is withdrawn, and the job's own user cannot read its lease.
	ticket := filepath.Join(p.Paths().Run(), "tickets", "7.json")
	must.OK(t, os.Rename(ticket, ticket+".away"))
	if code, out := p.MpsctlAs(e2e.UID, "status"); code != 0 || strings.Contains(out, "! ") || !strings.Contains(out, "jobs 7, 8, 9") {
		t.Errorf("status beside an epilog: code %d\n%s", code, out)
	}
	must.OK(t, os.Rename(ticket+".away", ticket))
	// A user may not read the copy of the policy that is used in place of a broken one.
	p.Write(p.Paths().Policy(), "version = 1\nrule {")
	if code, out := p.MpsctlAs(e2e.UID, "status"); code != 1 || strings.Contains(out, "was kept:") || !strings.Contains(out, "which root can see") {
		t.Errorf("status with a broken policy: code %d\n%s", code, out)
	}
	p.Must(0, p.Job(7, "0"), "epilog")
	p.Must(0, other, "epilog")
	p.Close(refused)
}

// Status waits while others ask the daemon. An epilog goes on beside a status that hangs on a stopped daemon.
func TestStatusBesideOthers(t *testing.T) {
	s := newScene(t)
	s.server()
	results := make(chan seen)
	for range 4 {
		go func() { results <- s.status() }()
	}
	for range 4 {
		if got := <-results; len(got.Findings) != 0 || got.Jobs[0].Daemons[0].State != "serving" {
			t.Errorf("seen %+v", got)
		}
	}
	s.stop(s.daemon.Proc.PID)
	go func() { results <- s.status() }()
	s.Must(0, s.Job(7, "0"), "epilog")
	<-results
	s.Clean()
	if got := s.status(); len(got.Jobs) != 0 || len(got.Findings) != 0 {
		t.Errorf("after the epilog: %+v", got)
	}
}

// While prologs and epilogs run, status reports no finding about work that is only in progress.
func TestStatusWhileJobsComeAndGo(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	ctx, cancel := context.WithCancel(p.Ctx)
	defer cancel()
	done := make(chan int)
	go func() {
		jobs := 0
		for id := uint32(100); ctx.Err() == nil; id++ {
			p.Open(p.Job(id, "0"))
			p.Must(0, p.Job(id, "0"), "epilog")
			jobs++
		}
		done <- jobs
	}()
	for range 15 {
		if got := p.status(); len(got.Findings) != 0 {
			t.Errorf("found %+v", got.Findings)
		}
	}
	cancel()
	if jobs := <-done; jobs < 2 {
		t.Errorf("only %d jobs ran at the same time", jobs)
	}
	p.Clean()
}

// testNode is the node of one test, with the methods of these tests alone.
type testNode struct{ e2e.Node }

func newTestNode(t *testing.T, policy string, models ...node.Model) testNode {
	t.Helper()
	return testNode{e2e.NewNode(t, policy, models...)}
}
