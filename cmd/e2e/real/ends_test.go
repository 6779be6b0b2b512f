// SPDX-License-Identifier: Apache-2.0

package real_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/rerun"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// Clients of all kinds end in all ways with work in flight, in a job of a real Slurm. The test records whether the
// job's two neighbours live, and whether a new client can start.
//
// ENDS_MINUTES is the time of the trial on each GPU of the machine. With more time, the table of victims and endings
// is fuller. ENDS_PARTS is a pattern for some of the parts: waves, clients, known, bare, old, rates. ENDS_CELLS is a
// pattern for HOW/VICTIM/ENDING. ENDS_SEED repeats the order. ENDS_HOLD is the policy's hold, in seconds.
// ENDS_RESULTS is a folder for the results. The GPUs are simulated unless CONFORMANCE_TARGET=real.
func TestRealEnds(t *testing.T) {
	minutes, _ := strconv.ParseFloat(os.Getenv("ENDS_MINUTES"), 64)
	if minutes <= 0 {
		t.Skip("give ENDS_MINUTES=8")
	}
	e := newEnds(t, time.Duration(minutes*float64(time.Minute)))
	t.Run("GPU", func(t *testing.T) {
		for gpu := range e.gpus {
			t.Run(strconv.Itoa(gpu), func(t *testing.T) {
				t.Parallel()
				for i, part := range e.parts {
					if part.alone && gpu > 0 {
						continue
					}
					e.testNode(t, gpu, part, e.until(gpu, i))
				}
			})
		}
	})
	fmt.Print(e.record.summary(e.record.missing(e.firstRound)))
	e.judge(t)
}

// endsPart is a part of the trial, with its own cluster.
type endsPart struct {
	name     string
	method   string
	weight   float64 // its part of the time
	alone    bool    // on one GPU only
	testNode func(*endsLane, time.Time)
}

var endsParts = []endsPart{
	{"waves", "guard", 60, false, (*endsLane).runWaves},
	{"clients", "guard", 20, true, (*endsLane).runClients},
	{"known", "guard", 6, true, (*endsLane).runKnown},
	{"bare", "bare", 7, false, (*endsLane).runCompared},
	{"old", "old", 7, false, (*endsLane).runCompared},
	{"rates", "guard", 6, true, (*endsLane).runRates},
	{"rates", "bare", 6, true, (*endsLane).runRates},
	{"rates", "guard", 6, true, (*endsLane).runRates},
	{"rates", "bare", 6, true, (*endsLane).runRates},
}

// ends is the whole trial.
type ends struct {
	gpus     int
	deadline time.Time
	parts    []endsPart
	hold     float64
	seed     uint64 // seed of the order
	python   string
	victim   string // path of victim.py
	record   *endsRecord
	planner  endsPlanner
	memory   *endsMemory
	unshare  []string // the command that gives a client a pid namespace

	mutex      sync.Mutex
	waves      []endsWave
	firstRound []endsWave
	compared   map[string][]endsWave
	faulty     map[string]int // starts that failed, by HOW/VICTIM
}

func newEnds(t *testing.T, budget time.Duration) *ends {
	t.Helper()
	e := &ends{gpus: 1, deadline: time.Now().Add(budget), compared: map[string][]endsWave{}, faulty: map[string]int{}, hold: 12}
	if end, ok := t.Deadline(); ok && end.Add(-time.Minute).Before(e.deadline) {
		t.Fatalf("%v do not fit into the test's time: give a longer -timeout", budget)
	}
	if endsReal() {
		if e.gpus = testnode.RealGPUs(); e.gpus == 0 {
			t.Fatal("this machine has no GPU, or no " + testnode.RealControl)
		}
	}
	if text := os.Getenv("ENDS_HOLD"); text != "" {
		var err error
		if e.hold, err = strconv.ParseFloat(text, 64); err != nil || e.hold < 3 {
			t.Fatalf("ENDS_HOLD is %q: give seconds, 3 or more", text)
		}
	}
	parts := endsPattern(t, "ENDS_PARTS")
	for _, part := range endsParts {
		if parts.MatchString(part.name) {
			e.parts = append(e.parts, part)
		}
	}
	seed, err := strconv.ParseUint(os.Getenv("ENDS_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	e.seed = seed
	fmt.Printf("ENDS_SEED=%d, %d GPUs, until %s\n", seed, e.gpus, e.deadline.Format("15:04:05"))
	e.findVictim(t)
	host, _ := os.Hostname()
	e.record = newEndsRecord(t, os.Getenv("ENDS_RESULTS"), host)
	e.memory = newEndsMemory(t)
	e.planner = endsPlanner{random: rand.New(rand.NewPCG(seed, 0)), only: endsPattern(t, "ENDS_CELLS"), limit: e.hold - 2, absent: map[string]string{}}
	e.probe(t)
	e.firstRound = e.planner.round()
	e.waves = slices.Clone(e.firstRound)
	for _, method := range []string{"bare", "old"} {
		e.compared[method] = e.planner.compared(3)
	}
	return e
}

func endsReal() bool { return os.Getenv("CONFORMANCE_TARGET") == "real" }

func endsPattern(t *testing.T, name string) *regexp.Regexp {
	t.Helper()
	pattern, err := regexp.Compile(os.Getenv(name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return pattern
}

// findVictim copies victim.py from the pack, or from the source, to a folder that the job's user can read.
func (e *ends) findVictim(t *testing.T) {
	t.Helper()
	built, err := e2e.Built()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(built, "ends", "victim.py"))
	if err != nil {
		text, err = os.ReadFile(filepath.Join("../../..", "site", "lab", "ends", "victim.py"))
	}
	if err != nil {
		t.Fatal(err)
	}
	e.victim = filepath.Join(e2e.PublicDir(t), "victim.py")
	if err := os.WriteFile(e.victim, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// endsModules are the Python modules that victims import.
var endsModules = []string{"torch", "cupy", "jax"}

// probe finds out what this machine cannot do, as the job's user.
func (e *ends) probe(t *testing.T) {
	t.Helper()
	user, err := lab.EnsureUser(e2e.UserName, e2e.UID)
	if err != nil {
		t.Fatal(err)
	}
	try := func(line ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, line[0], line[1:]...)
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1") // not root's home
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: []uint32{user.GID}}}
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	absent := func(what, why string) {
		e.planner.absent[what] = why
		fmt.Printf("left out: %s: %s\n", what, why)
	}
	found, err := "", errors.New("PATH has none")
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) { // the first python3 may be readable by root only, or have no modules
		python := filepath.Join(dir, "python3")
		out, wrong := try(python, "-c", `import importlib.util as u; print(*[m for m in ("torch", "cupy", "jax") if u.find_spec(m)])`)
		if wrong == nil && (err != nil || len(out) > len(found)) {
			e.python, found, err = python, out, nil
		}
	}
	if err != nil {
		t.Fatalf("the job's user has no python3: %v", err)
	}
	fmt.Printf("%s has: %s\n", e.python, found)
	whys := make([]string, len(endsModules))
	var imports sync.WaitGroup
	for i, module := range endsModules {
		imports.Go(func() { // this also loads the module into the page cache
			if !slices.Contains(strings.Fields(found), module) {
				whys[i] = "python3 has no such module"
			} else if out, err := try(e.python, "-c", "import "+module); err != nil {
				whys[i] = fmt.Sprintf("%v: %s", err, out)
			}
		})
	}
	imports.Wait()
	for i, module := range endsModules {
		if whys[i] != "" {
			absent(module, whys[i])
		}
	}
	why := ""
	for _, flags := range [][]string{{"--map-current-user", "--mount-proc"}, {"--map-current-user"}, {"--map-root-user"}} {
		e.unshare = append([]string{"unshare", "--user", "--pid", "--fork"}, flags...)
		out, err := try(append(slices.Clone(e.unshare), "true")...)
		if err == nil {
			why = ""
			break
		}
		why = out
	}
	if why != "" {
		absent("pidns", why)
	}
	if e.memory.why != "" {
		absent("oom", e.memory.why)
	}
}

// until is the time when a part on a GPU must be over. The remaining time is divided among the remaining parts.
func (e *ends) until(gpu, part int) time.Time {
	sum := 0.0
	for _, later := range e.parts[part:] {
		if !later.alone || gpu == 0 {
			sum += later.weight
		}
	}
	left := time.Until(e.deadline).Seconds() * e.parts[part].weight / sum
	return time.Now().Add(time.Duration(left * float64(time.Second)))
}

// endsMin is the minimum time that must be left to start a part or a wave.
const endsMin = 12 * time.Second

func (e *ends) testNode(t *testing.T, gpu int, part endsPart, until time.Time) {
	if time.Until(until) < endsMin {
		e.record.tell(gpu, fmt.Sprintf("no time for the part %s: %v", part.name, time.Until(until).Round(time.Second)), "")
		return
	}
	t.Run(part.name, func(t *testing.T) {
		l := e.newLane(t, gpu, part.method)
		part.testNode(l, until)
		l.end()
	})
}

// next is the next wave.
func (e *ends) next() (endsWave, bool) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if len(e.waves) == 0 {
		e.waves = e.planner.round()
	}
	if len(e.waves) == 0 {
		return endsWave{}, false
	}
	w := e.waves[0]
	e.waves = e.waves[1:]
	return w, true
}

func (e *ends) nextCompared(method string) (endsWave, bool) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	waves := e.compared[method]
	if len(waves) == 0 {
		return endsWave{}, false
	}
	e.compared[method] = waves[1:]
	return waves[0], true
}

// judge checks the promises with the guard. It also checks that a neighbour dies on bare MPS, because otherwise the
// trial shows nothing.
func (e *ends) judge(t *testing.T) {
	t.Helper()
	bare, harmed := 0, 0
	for _, row := range e.record.rows {
		switch row.method {
		case "guard":
			if row.harmed() {
				t.Errorf("%s by %s, %d at once, ends by %s: %d of %d neighbours live\n%s", row.kind, row.how, row.atOnce,
					row.ending, row.alive, row.before, e.again(t, row))
			}
			if !row.client {
				t.Errorf("%s by %s ends by %s: the new client fails\n%s", row.kind, row.how, row.ending, e.again(t, row))
			}
		case "bare":
			bare++
			if row.harmed() {
				harmed++
			}
		}
	}
	if bare >= 4 && harmed == 0 {
		t.Errorf("on bare MPS no neighbour died in %d endings: the trial shows nothing", bare)
	}
	if len(e.record.rows) == 0 && slices.ContainsFunc(e.parts, func(p endsPart) bool { return p.name == "waves" }) {
		t.Error("there was no ending")
	}
}

// again is the command that tries only this ending.
func (e *ends) again(t *testing.T, row endsRow) string {
	return fmt.Sprintf("to run it again: ENDS_MINUTES=1 ENDS_PARTS=waves ENDS_SEED=%d ENDS_CELLS='^%s/%s/%s$' %s",
		e.seed, row.how, row.kind, row.ending, rerun.Command(t, "CONFORMANCE_TARGET", "ALLOW_MODE_CHANGES", "ENDS_HOLD"))
}

// endsLane is one GPU with its own cluster and one long job, in which steps start and end.
type endsLane struct {
	*ends
	*lab.Cluster
	t          *testing.T
	ctx        context.Context
	node       testnode.Node
	user       lab.User
	home       string
	client     string // path of cuda-client
	gpu, job   int
	method     string
	commands   *os.File // for lines that the job's batch script runs
	orders     *os.File // for lines to the fork server
	server     *endsStream
	neighbours []*endsStream
	waves      int
	pending    []endsRow // rows of the last wave, until the next wave shows whether its neighbours still live
	pendingAt  time.Time
}

// endsPolicy is the policy for a method. The product before the guard has no option hold.
func (e *ends) endsPolicy(method string) string {
	switch method {
	case "guard":
		return testnode.Default(testnode.Compute(), fmt.Sprintf(`hold = "%gs"`, e.hold))
	case "bare":
		return testnode.Default(testnode.Compute(), `hold = "0s"`)
	}
	return testnode.Default(testnode.Compute())
}

func (e *ends) newLane(t *testing.T, gpu int, method string) *endsLane {
	t.Helper()
	l := &endsLane{ends: e, t: t, gpu: gpu, method: method}
	built, err := e2e.Built()
	if err != nil {
		t.Fatal(err)
	}
	if l.user, err = lab.EnsureUser(e2e.UserName, e2e.UID); err != nil {
		t.Fatal(err)
	}
	dir := e2e.PublicDir(t)
	var cancel context.CancelFunc
	l.ctx, cancel = context.WithDeadline(context.Background(), e.deadline.Add(time.Minute))
	t.Cleanup(cancel)
	if endsReal() {
		l.node, err = testnode.Real(filepath.Join(dir, "n"), built, e.endsPolicy(method))
	} else {
		l.node, err = testnode.New(filepath.Join(dir, "n"), built, e.endsPolicy(method), node.H200)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.client = filepath.Join(built, "sim", "bin", "cuda-client")
	if method == "old" {
		l.node.Bin = filepath.Join(built, "old", "bin")
		if _, err := os.Stat(l.node.Bin); err != nil {
			t.Skipf("%v: make gpu-pack builds the product before the guard", err)
		}
	}
	t.Cleanup(l.killLeft)
	o := lab.Options{Dir: filepath.Join(dir, "lab"), GPUs: 1, CPUs: 96, Features: "mps", PrologFlags: "Alloc", SameName: true, Bundle: os.Getenv("SLURM_BUNDLE")}
	if l.node.Sim == nil {
		o.DevDir, o.GresConf = "/dev", fmt.Sprintf("Name=gpu File=/dev/nvidia%d\n", gpu)
	}
	o.Prolog, o.Epilog, o.TaskProlog = l.node.Command("prolog"), l.node.Command("epilog"), l.node.Command("task-prolog")
	if l.Cluster, err = lab.Start(l.ctx, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
	})
	l.allocate()
	return l
}

// killLeft kills the MPS processes that a failed trial has left. The test node proves that their pids are its own.
func (l *endsLane) killLeft() {
	pids, _ := l.node.Processes()
	for _, pid := range pids {
		if stat, err := proc.ReadStat(pid); err == nil {
			_ = stat.Kill(unix.SIGKILL)
		}
	}
}

func (l *endsLane) log() string {
	content, _ := os.ReadFile(l.node.Paths().Log())
	return string(content)
}

// environment is what the programs of steps need in addition to Slurm's variables. It does not change NVLink
// multicast.
func (l *endsLane) environment() []string {
	libraries := os.Getenv("LD_LIBRARY_PATH")
	if l.node.Sim != nil {
		libraries = l.node.Sim.Libraries()
	}
	env := []string{"LD_LIBRARY_PATH=" + libraries, "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1", "OMP_NUM_THREADS=1"}
	return append(env, machineEnvironment()...)
}

// allocate starts the job. Its batch script runs the lines that the test writes.
func (l *endsLane) allocate() {
	l.t.Helper()
	var err error
	if l.home, err = l.Home(l.user); err != nil {
		l.t.Fatal(err)
	}
	commands := l.fifo("commands")
	if l.commands, err = os.OpenFile(commands, os.O_RDWR, 0); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { l.commands.Close() })
	exports := ""
	for _, entry := range l.environment() {
		name, value, _ := strings.Cut(entry, "=")
		if name == "LD_LIBRARY_PATH" {
			value += ":$LD_LIBRARY_PATH" // the libraries of Open MPI
		}
		exports += fmt.Sprintf("export %s=%s\n", name, value)
	}
	script := filepath.Join(l.home, "job.sh")
	text := fmt.Sprintf("#!/bin/bash\nulimit -c 0\n%swhile read -r line; do bash -c \"$line\" & done <%s\n", exports, commands)
	if err := node.WriteProgram(script, []byte(text)); err != nil {
		l.t.Fatal(err)
	}
	l.job, err = l.Submit(l.ctx, l.user, "--constraint=mps", "--gres=gpu:1", "-N1", "-n40", "-o", filepath.Join(l.home, "job.out"), script)
	if err != nil {
		l.t.Fatal(err)
	}
	job, err := l.WaitJobUntil(l.ctx, l.job, func(j lab.Job) bool { return j.State == "RUNNING" || j.Over() || j.Held() })
	if err != nil || job.State != "RUNNING" {
		l.t.Fatalf("%+v, %v\n%s", job, err, l.log())
	}
	ticket := filepath.Join(l.node.Paths().Run(), "tickets", fmt.Sprintf("%d.json", l.job))
	if !l.wait(20*time.Second, func() bool { _, err := os.Stat(ticket); return err == nil }) {
		l.t.Fatalf("job %d has no ticket:\n%s", l.job, l.log())
	}
}

// fifo makes a named pipe that belongs to the job's user.
func (l *endsLane) fifo(name string) string {
	l.t.Helper()
	path := filepath.Join(l.home, name)
	if err := errors.Join(unix.Mkfifo(path, 0o600), os.Chown(path, int(l.user.UID), int(l.user.GID))); err != nil {
		l.t.Fatal(err)
	}
	return path
}

// wait polls until done is true, and reports whether that was in time.
func (l *endsLane) wait(limit time.Duration, done func() bool) bool {
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	for !done() {
		if !wait.Sleep(ctx, 2*time.Millisecond) {
			return false
		}
	}
	return true
}

// end ends the job. It checks that nothing is left of the job, and that the node is in service.
func (l *endsLane) end() {
	l.t.Helper()
	l.settle()
	if result, err := l.Run(l.ctx, l.user, "scancel", strconv.Itoa(l.job)); err != nil || result.Exit != 0 {
		l.t.Fatalf("%+v, %v", result, err)
	}
	if _, err := l.WaitJob(l.ctx, l.job); err != nil {
		l.t.Fatalf("%v\n%s", err, l.log())
	}
	var left []string
	if !l.wait(20*time.Second, func() bool { left, _ = l.node.Left(); return len(left) == 0 }) {
		l.t.Errorf("left behind: %q\n%s", left, l.log())
	}
	state, reason, err := l.NodeState(l.ctx, l.Nodes()[0])
	if err != nil || strings.Contains(strings.ToLower(state), "drain") {
		l.t.Errorf("the node is %s: %s, %v", state, reason, err)
	}
}

// endsStream is what a launcher and its processes print.
type endsStream struct {
	signal func(unix.Signal) error // sends a signal to the launcher
	ended  chan struct{}           // closed when the launcher has ended
	mutex  sync.Mutex
	lines  []endsLine
	rest   []byte
	told   time.Time // time of the last "at work"
	over_  time.Time // time when the launcher ended
}

type endsLine struct {
	at   time.Time
	text string
}

// endsLines is the maximum number of lines that a stream keeps.
const endsLines = 4000

func (s *endsStream) Write(p []byte) (int, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.rest = append(s.rest, p...)
	for {
		line, rest, found := bytes.Cut(s.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		s.rest = rest
		if bytes.Contains(line, []byte(" at work ")) {
			s.told = time.Now()
			continue
		}
		s.lines = append(s.lines, endsLine{time.Now(), string(line)})
		s.lines = s.lines[max(0, len(s.lines)-endsLines):]
	}
}

// heard returns the lines that match, with their submatches.
func (s *endsStream) heard(pattern *regexp.Regexp) (at []time.Time, found [][]string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, line := range s.lines {
		if m := pattern.FindStringSubmatch(line.text); m != nil {
			at, found = append(at, line.at), append(found, m)
		}
	}
	return at, found
}

func (s *endsStream) text() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var all strings.Builder
	for _, line := range s.lines[max(0, len(s.lines)-200):] {
		fmt.Fprintf(&all, "%s %s\n", line.at.Format("15:04:05.000"), line.text)
	}
	return all.String()
}

func (s *endsStream) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

func (s *endsStream) lastTold() time.Time {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.told
}

var (
	endsPID    = regexp.MustCompile(`\bpid=(\d+)`)
	endsErr    = regexp.MustCompile(`\berr=[^0]`)
	endsStep   = regexp.MustCompile(`^step (\d+)$`)
	endsLeader = regexp.MustCompile(`^leader (\d+)$`)
	endsFirst  = regexp.MustCompile(`^first kernel pid=\d+ err=0 `)
	endsServes = regexp.MustCompile(`^pid=\d+ serves$`)
)

// srun starts a step in the job. A user may do this from anywhere. The first task prints the step's number.
func (l *endsLane) srun(tasks int, program ...string) *endsStream {
	l.t.Helper()
	line := []string{fmt.Sprintf("--jobid=%d", l.job), "--overlap", "--mpi=none", "--gres=gpu:1", fmt.Sprintf("-n%d", tasks),
		"sh", "-c", `ulimit -c 0; [ $SLURM_PROCID != 0 ] || echo step $SLURM_STEP_ID; exec "$@"`, "sh"}
	cmd, err := l.Command(l.ctx, l.user, "srun", append(line, program...)...)
	if err != nil {
		l.t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, l.environment()...) // the last value counts
	s := &endsStream{ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = s, s
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	s.signal = func(signal unix.Signal) error { return cmd.Process.Signal(signal) }
	go func() {
		_ = cmd.Wait()
		s.mutex.Lock()
		s.over_ = time.Now()
		s.mutex.Unlock()
		close(s.ended)
	}()
	return s
}

// mpirun starts ranks with Open MPI's mpirun in the job's batch step.
func (l *endsLane) mpirun(ranks int, program ...string) *endsStream {
	l.t.Helper()
	out := l.fifo(fmt.Sprintf("out%d", l.waves))
	s := &endsStream{ended: make(chan struct{})}
	s.signal = func(unix.Signal) error { return errors.New("mpirun has not started") }
	go func() {
		defer close(s.ended)
		if from, err := os.Open(out); err == nil { // blocks until mpirun starts
			_, _ = io.Copy(s, from)
			from.Close()
		}
	}()
	_, err := fmt.Fprintf(l.commands,
		"exec >%s 2>&1; echo leader $$; exec mpirun.openmpi --oversubscribe --bind-to none -np %d %s\n", out, ranks, strings.Join(program, " "))
	if err != nil {
		l.t.Fatal(err)
	}
	if l.wait(20*time.Second, func() bool { _, found := s.heard(endsLeader); return len(found) > 0 }) {
		_, found := s.heard(endsLeader)
		if p := endsProc(found[0][1]); p.PID > 0 {
			s.signal = p.Kill
		}
	}
	return s
}

// endsProc is the process that has this pid now.
func endsProc(pid string) proc.Process {
	n, _ := strconv.Atoi(pid)
	stat, err := proc.ReadStat(n)
	if err != nil {
		return proc.Process{}
	}
	return stat.Process
}

// wrapped is the command line that starts a program below the wrapper.
func (l *endsLane) wrapped(program ...string) []string {
	return append(l.node.Command("mpirun-wrap"), program...)
}

// launch starts the victims of a wave.
func (l *endsLane) launch(w endsWave, dir string) *endsStream {
	l.t.Helper()
	line := []string{l.python, l.victim, "run", dir, l.client}
	var specs []string
	for _, v := range w.victims {
		specs = append(specs, v.spec())
	}
	line = append(line, specs...)
	n := len(w.victims)
	switch w.how {
	case "fork":
		s := l.forkServer()
		if _, err := fmt.Fprintf(l.orders, "%s %d %s\n", dir, n, strings.Join(specs, " ")); err != nil {
			l.t.Fatal(err)
		}
		return s
	case "srun":
		return l.srun(n, line...)
	case "pidns":
		return l.srun(n, l.wrapped(append(slices.Clone(l.unshare), line...)...)...)
	case "mpirun":
		return l.mpirun(n, l.wrapped(line...)...)
	}
	return l.srun(n, l.wrapped(line...)...)
}

// forkServer is the process that has loaded PyTorch and forks clients.
func (l *endsLane) forkServer() *endsStream {
	l.t.Helper()
	if l.server != nil && !l.server.over() {
		return l.server
	}
	if l.orders == nil {
		var err error
		if l.orders, err = os.OpenFile(l.fifo("orders"), os.O_RDWR, 0); err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { l.orders.Close() })
	}
	line := l.wrapped(l.python, l.victim, "serve", l.orders.Name(), l.client)
	if l.planner.absent["torch"] == "" {
		line = append(line, "torch")
	}
	l.server = l.srun(1, line...)
	if !l.wait(time.Minute, func() bool { _, found := l.server.heard(endsServes); return len(found) > 0 || l.server.over() }) || l.server.over() {
		l.t.Fatalf("the fork server does not start:\n%s", l.server.text())
	}
	return l.server
}

// accompany makes sure that two neighbours live. The first clients after a death may be refused.
func (l *endsLane) accompany() {
	l.t.Helper()
	for try := 0; l.alive(time.Time{}) < 2; try++ {
		l.dismiss()
		if try == 20 {
			l.t.Fatalf("no neighbours start:\n%s", l.neighbours[0].text()+l.neighbours[1].text())
		}
		client := l.wrapped(l.client, "spin", "-ms", "1", "-queue", "1", "-tell", "0.05", "-for", "3600")
		second := client
		if l.planner.absent["torch"] == "" {
			second = l.wrapped(l.python, l.victim, "neighbour")
		}
		l.neighbours = []*endsStream{l.srun(1, client...), l.srun(1, second...)}
		l.wait(90*time.Second, func() bool {
			return l.alive(time.Time{}) == 2 || slices.ContainsFunc(l.neighbours, func(n *endsStream) bool { return endsLost(n) })
		})
	}
}

// dismiss ends the neighbours.
func (l *endsLane) dismiss() {
	for _, n := range l.neighbours {
		if step := endsStepOf(n); step != "" && !n.over() {
			_, _ = l.Run(l.ctx, l.user, "scancel", fmt.Sprintf("%d.%s", l.job, step))
		} else if !n.over() {
			_ = n.signal(unix.SIGTERM)
		}
	}
	for _, n := range l.neighbours {
		if !l.wait(20*time.Second, n.over) {
			l.t.Fatalf("a neighbour does not end:\n%s", n.text())
		}
	}
}

func endsStepOf(s *endsStream) string {
	if _, found := s.heard(endsStep); len(found) > 0 {
		return found[0][1]
	}
	return ""
}

// endsLost reports whether a neighbour has failed or gone.
func endsLost(n *endsStream) bool {
	_, failed := n.heard(endsErr)
	return n.over() || len(failed) > 0
}

// alive counts the neighbours that have reported work after a time.
func (l *endsLane) alive(after time.Time) (count int) {
	for _, n := range l.neighbours {
		if !endsLost(n) && n.lastTold().After(after) {
			count++
		}
	}
	return count
}

// firstLoss is when the first neighbour was lost: when the neighbour printed an error, or when its launcher ended.
func (l *endsLane) firstLoss() time.Time {
	first := time.Now()
	for _, n := range l.neighbours {
		if at, _ := n.heard(endsErr); len(at) > 0 && at[0].Before(first) {
			first = at[0]
		}
		n.mutex.Lock()
		if !n.over_.IsZero() && n.over_.Before(first) {
			first = n.over_
		}
		n.mutex.Unlock()
	}
	return first
}

// settle writes the rows of the last wave. A neighbour that has died since the wave was checked counts as harmed by
// that wave.
func (l *endsLane) settle() {
	if len(l.pending) == 0 {
		return
	}
	if alive := l.alive(time.Time{}); alive < l.pending[0].alive {
		died := l.firstLoss().Sub(l.pendingAt)
		for i := range l.pending {
			l.pending[i].alive, l.pending[i].died = alive, died
			l.pending[i].note = strings.TrimSpace(l.pending[i].note + " died later")
		}
		l.record.tell(l.gpu, fmt.Sprintf("%s: a neighbour died %v after the wave", l.method, died), l.testimony())
	}
	l.record.add(l.pending)
	l.pending = nil
}

// testimony is what all processes printed, what the guard let go and why, and the node's memory.
func (l *endsLane) testimony() string {
	text := ""
	for i, n := range l.neighbours {
		text += fmt.Sprintf("--- neighbour %d\n%s", i, n.text())
	}
	log := l.log()
	text += "--- log\n" + log[max(0, len(log)-20000):]
	states, _ := filepath.Glob(filepath.Join(l.node.Paths().Run(), "guards", "*"))
	for _, path := range append(states, "/proc/meminfo") {
		content, _ := os.ReadFile(path)
		text += fmt.Sprintf("--- %s\n%.600s\n", path, content)
	}
	logs, _ := filepath.Glob(filepath.Join(l.node.Paths().Run(), "jobs", "*", "*", "server.log"))
	more, _ := filepath.Glob(filepath.Join(l.node.Paths().Run(), "jobs", "*", "*", "*", "server.log"))
	for _, path := range append(logs, more...) {
		content, _ := os.ReadFile(path)
		text += fmt.Sprintf("--- %s\n%s", filepath.Base(path), content[max(0, len(content)-6000):])
	}
	return text
}

func (l *endsLane) runWaves(until time.Time) {
	l.runAll(until, l.next)
}

func (l *endsLane) runCompared(until time.Time) {
	l.runAll(until, func() (endsWave, bool) { return l.nextCompared(l.method) })
}

func (l *endsLane) runAll(until time.Time, next func() (endsWave, bool)) {
	for time.Until(until) > endsMin {
		w, more := next()
		if !more {
			return
		}
		if w = l.sound(w); len(w.victims) == 0 {
			continue
		}
		l.settle()
		l.accompany()
		l.wave(w)
	}
	l.settle()
}

// endsAtWork is one victim, as the test sees it.
type endsAtWork struct {
	endsVictim
	rank     int
	proc     proc.Process
	inFlight float64
	took     time.Duration
	note     string
}

// wave ends the victims of a wave, checks the neighbours, and starts a new client.
func (l *endsLane) wave(w endsWave) {
	l.t.Helper()
	l.waves++
	name := fmt.Sprintf("%s%d-%d", l.method, l.gpu, l.waves)
	dir := filepath.Join(l.home, name)
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, int(l.user.UID), int(l.user.GID))); err != nil {
		l.t.Fatal(err)
	}
	s := l.launch(w, dir)
	loading := len(w.victims) > 0 && w.victims[0].ending == endsLoading
	var all []endsAtWork
	var began time.Time
	var before int
	if loading {
		all, began, before = l.killLoading(w, s, name)
	} else {
		if !l.ready(w, s, name, dir, "warm") || !l.ready(w, s, name, dir, "ready") {
			l.blame(w, s, name)
			l.record.tell(l.gpu, fmt.Sprintf("%s: %s (%s): victims do not start", l.method, w, w.list()), s.text()+l.testimony())
			l.abandon(w, s, name)
			return
		}
		failed := l.blame(w, s, name)
		for rank, v := range l.victims(w, s, name) {
			if !failed[rank] {
				all = append(all, v)
			}
		}
		if l.alive(time.Time{}) < 2 { // the last wave or these starts ended a neighbour
			l.settle()
			l.record.tell(l.gpu, fmt.Sprintf("%s: a neighbour died before %s ended", l.method, w), l.testimony())
			l.abandon(w, s, name)
			return
		}
		before = 2
		began = time.Now()
		l.endAll(w, s, dir, all)
	}
	if all == nil {
		return
	}
	l.gone(w, s, name, all, began)
	ended := began
	for _, v := range all {
		if end := began.Add(v.took); end.After(ended) {
			ended = end
		}
	}
	works, took, text := l.newClient()
	wait.Sleep(l.ctx, time.Until(ended.Add(3*time.Second)))
	after := time.Now()
	l.wait(2*time.Second, func() bool { return l.alive(after) == 2 || l.alive(time.Time{}) < 2 })
	alive := l.alive(after)
	died := time.Duration(0)
	if alive < before {
		died = l.firstLoss().Sub(began)
	}
	if alive < before || !works {
		l.record.tell(l.gpu, fmt.Sprintf("%s: %s (%s): %d of %d neighbours live, new client works: %v", l.method, w, w.list(), alive, before, works),
			"began at "+began.Format("15:04:05.000")+"\n--- victims\n"+s.text()+"--- new client\n"+text+l.testimony())
	}
	l.pendingAt = began
	for _, v := range all {
		l.pending = append(l.pending, endsRow{at: began, gpu: l.gpu, method: l.method, how: w.how, atOnce: len(all), kind: v.kind.name, ending: v.ending,
			inFlight: v.inFlight, before: before, alive: alive, died: died, client: works, clientTook: took, end: v.took, note: v.note})
	}
	fmt.Printf("GPU %d %s: %s: %d of %d neighbours live, new client %v after %s s\n", l.gpu, l.method, w, alive, before, works, endsSeconds(took))
}

// lines are the lines of a wave's victims that contain a word, by rank.
func (l *endsLane) lines(s *endsStream, name, word string) map[int]string {
	at := map[int]string{}
	_, found := s.heard(regexp.MustCompile(`^wave=` + regexp.QuoteMeta(name) + ` rank=(\d+) .*\b` + word + `.*`))
	for _, m := range found {
		rank, _ := strconv.Atoi(m[1])
		_, line, _ := strings.Cut(m[0], " ")
		at[rank] = line
	}
	return at
}

// ready waits until every victim of a wave is warm, or has its work in flight, or has failed. It returns false if no
// victim is left. A cuda-client prints another line, with its pid.
func (l *endsLane) ready(w endsWave, s *endsStream, name, dir, word string) bool {
	if word == "ready" {
		if err := os.WriteFile(filepath.Join(dir, "fill"), nil, 0o644); err != nil {
			l.t.Fatal(err)
		}
	}
	var failed map[int]bool
	var looked time.Time
	came := l.wait(75*time.Second, func() bool {
		if s.over() {
			return true
		}
		answered := map[int]bool{}
		for rank := range l.lines(s, name, word) {
			answered[rank] = true
		}
		for rank, line := range l.lines(s, name, "execs") {
			_, own := s.heard(regexp.MustCompile(`^pid=` + endsPID.FindStringSubmatch(line)[1] + ` ready `))
			answered[rank] = len(own) > 0
		}
		if time.Since(looked) > 100*time.Millisecond { // not more often, because failed reads /proc
			looked, failed = time.Now(), l.failed(w, s, name)
		}
		for rank := range failed {
			answered[rank] = true
		}
		for rank := range w.victims {
			if !answered[rank] {
				return false
			}
		}
		return true
	})
	return came && !s.over() && len(failed) < len(w.victims)
}

// failed are the ranks of a wave that have ended too early, or have printed an error.
func (l *endsLane) failed(w endsWave, s *endsStream, name string) map[int]bool {
	failed := map[int]bool{}
	for rank := range l.lines(s, name, "err=") {
		failed[rank] = true
	}
	if w.how == "pidns" { // the pids are those of the namespace
		return failed
	}
	for rank, line := range l.lines(s, name, "started") {
		if p := endsProc(endsPID.FindStringSubmatch(line)[1]); !p.Running() {
			failed[rank] = true
		}
	}
	return failed
}

// blame records the victims of a wave that failed before their ending.
func (l *endsLane) blame(w endsWave, s *endsStream, name string) map[int]bool {
	failed := l.failed(w, s, name)
	if len(failed) == 0 {
		return nil
	}
	var kinds []string
	l.mutex.Lock()
	for rank := range failed {
		kind := w.how + "/" + w.victims[rank].kind.name
		l.faulty[kind]++
		kinds = append(kinds, kind)
	}
	l.mutex.Unlock()
	l.record.tell(l.gpu, fmt.Sprintf("%s: %s: did not start: %s", l.method, w, strings.Join(kinds, " ")), s.text())
	return failed
}

// endsFaulty is the number of failures after which a kind is left out, because it cannot be done here.
const endsFaulty = 3

// sound is a wave without the kinds that fail too often.
func (l *endsLane) sound(w endsWave) endsWave {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	w.victims = slices.DeleteFunc(slices.Clone(w.victims), func(v endsVictim) bool { return l.faulty[w.how+"/"+v.kind.name] >= endsFaulty })
	return w
}

var endsInFlight = regexp.MustCompile(`inflight=([\d.]+)`)

// victims are the processes of a wave that is ready.
func (l *endsLane) victims(w endsWave, s *endsStream, name string) []endsAtWork {
	started, ready := l.lines(s, name, "started"), l.lines(s, name, "ready")
	var all []endsAtWork
	for rank, v := range w.victims {
		one := endsAtWork{endsVictim: v, rank: rank, inFlight: v.seconds}
		if m := endsInFlight.FindStringSubmatch(ready[rank]); m != nil {
			one.inFlight, _ = strconv.ParseFloat(m[1], 64)
		} else if v.kind.program == "client" && v.seconds <= 0.4 {
			one.inFlight = 0.4 // the length of its one kernel
		}
		if w.how == "pidns" {
			one.proc = endsInNamespace(filepath.Join(l.home, name), rank)
		} else if m := endsPID.FindStringSubmatch(started[rank]); m != nil {
			one.proc = endsProc(m[1])
		}
		all = append(all, one)
	}
	return all
}

// endsInNamespace finds the victim that is the first process of its pid namespace.
func endsInNamespace(dir string, rank int) proc.Process {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		line, _ := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		if !bytes.Contains(line, []byte("\x00"+dir+"\x00")) {
			continue
		}
		environment, _ := os.ReadFile("/proc/" + entry.Name() + "/environ")
		status, _ := os.ReadFile("/proc/" + entry.Name() + "/status")
		_, names, _ := strings.Cut(string(status), "NSpid:")
		names, _, _ = strings.Cut(names, "\n")
		if fields := strings.Fields(names); len(fields) > 1 && fields[len(fields)-1] == "1" &&
			slices.Contains(strings.Split(string(environment), "\x00"), fmt.Sprintf("SLURM_PROCID=%d", rank)) {
			return endsProc(entry.Name())
		}
	}
	return proc.Process{}
}

// endAll ends a wave by Slurm, by signals, or by a file that tells the victims to end.
func (l *endsLane) endAll(w endsWave, s *endsStream, dir string, all []endsAtWork) {
	l.t.Helper()
	var errs []error
	switch w.step {
	case "":
		for i, v := range all {
			if v.ending == "oom" {
				if err := l.memory.limit(v.proc); err != nil {
					all[i].note = "no limit"
					errs = append(errs, err)
				}
			}
		}
		errs = append(errs, os.WriteFile(filepath.Join(dir, "end"), nil, 0o644))
		for _, v := range all {
			client := v.kind.program == "client"
			switch {
			case v.ending == "kill":
				errs = append(errs, v.proc.Kill(unix.SIGKILL))
			case v.ending == "term":
				errs = append(errs, v.proc.Kill(unix.SIGTERM))
			case v.ending == "segv" && client:
				errs = append(errs, v.proc.Kill(unix.SIGSEGV))
			case v.ending == "abort" && client:
				errs = append(errs, v.proc.Kill(unix.SIGABRT))
			}
		}
	case "scancel":
		errs = append(errs, l.scancel(s))
	case "scancel-term":
		errs = append(errs, l.scancel(s, "--signal=TERM"))
	case "interrupts": // after the first interrupt, srun only prints the state of its tasks
		errs = append(errs, s.signal(unix.SIGINT))
		l.wait(2*time.Second, func() bool { _, found := s.heard(regexp.MustCompile(`one more within 1 sec`)); return len(found) > 0 })
		errs = append(errs, s.signal(unix.SIGINT))
	case "kill-srun", "kill-mpirun":
		errs = append(errs, s.signal(unix.SIGKILL))
	case "term-mpirun":
		errs = append(errs, s.signal(unix.SIGTERM))
	}
	if err := errors.Join(errs...); err != nil {
		l.record.tell(l.gpu, fmt.Sprintf("%s: %s: %v", l.method, w, err), s.text())
	}
}

func (l *endsLane) scancel(s *endsStream, flags ...string) error {
	result, err := l.Run(l.ctx, l.user, "scancel", append(flags, fmt.Sprintf("%d.%s", l.job, endsStepOf(s)))...)
	if err == nil && result.Exit != 0 {
		err = errors.New(result.Stderr)
	}
	return err
}

// killLoading kills each victim at a random moment after its start. For PyTorch, the first 4 s contain its load,
// cuInit and the first kernels. For a small client, the first 0.5 s do.
func (l *endsLane) killLoading(w endsWave, s *endsStream, name string) (all []endsAtWork, began time.Time, before int) {
	l.t.Helper()
	if !l.wait(30*time.Second, func() bool { return len(l.lines(s, name, "started")) == len(w.victims) || s.over() }) || s.over() {
		l.record.tell(l.gpu, fmt.Sprintf("%s: %s: victims do not start", l.method, w), s.text())
		l.abandon(w, s, name)
		return nil, began, 0
	}
	all = l.victims(w, s, name)
	before = l.alive(time.Time{})
	var killed sync.WaitGroup
	for i, v := range all {
		within := 4 * time.Second
		if v.kind.needs == "" {
			within = 500 * time.Millisecond
		}
		after := rand.N(within)
		all[i].note = fmt.Sprintf("killed %s s after its start", endsSeconds(after))
		killed.Go(func() { wait.Sleep(l.ctx, after); _ = v.proc.Kill(unix.SIGKILL) })
	}
	killed.Wait()
	began = time.Now()
	for i, v := range all { // how far each victim had come
		all[i].inFlight = 0
		if _, computes := l.lines(s, name, "ready")[i]; computes {
			all[i].inFlight = v.seconds
		}
	}
	return all, began, before
}

// gone waits until the victims of a wave have ended. Victims that still live after a while are killed one by one.
func (l *endsLane) gone(w endsWave, s *endsStream, name string, all []endsAtWork, began time.Time) {
	l.t.Helper()
	left := func() (count int) {
		for i, v := range all {
			if v.proc.Running() {
				count++
			} else if all[i].took == 0 {
				all[i].took = max(time.Since(began), time.Millisecond)
			}
		}
		return count
	}
	if !l.wait(4*time.Second, func() bool { return left() == 0 }) {
		for i, v := range all {
			if v.proc.Running() {
				all[i].note = strings.TrimSpace(v.note + " SIGKILL after 4 s")
			}
		}
		// If srun or mpirun was killed, no process ends its ranks: see the note in the rows.
		if w.step != "kill-srun" && w.step != "kill-mpirun" {
			l.record.tell(l.gpu, fmt.Sprintf("%s: %s: %d victims live on after 4 s", l.method, w, left()), s.text())
		}
		for _, v := range all {
			_ = v.proc.Kill(unix.SIGKILL)
		}
		if !l.wait(30*time.Second, func() bool { return left() == 0 }) {
			l.t.Fatalf("%s: victims do not end:\n%s", w, s.text())
		}
	}
	errs := l.lines(s, name, "err=")
	for _, v := range all {
		if err := errs[v.rank]; err != "" {
			l.record.tell(l.gpu, fmt.Sprintf("%s: %s: %s did not end as asked: %s", l.method, w, v.endsVictim, err), s.text())
		}
	}
	l.leave(w, s)
}

// leave waits for the end of a wave's launcher.
func (l *endsLane) leave(w endsWave, s *endsStream) {
	l.t.Helper()
	if w.how == "fork" || l.wait(8*time.Second, s.over) {
		return
	}
	l.record.tell(l.gpu, fmt.Sprintf("%s: %s: its launcher does not end with its victims", l.method, w), s.text())
	l.endLauncher(w, s)
}

// endLauncher ends a launcher and all that it has started.
func (l *endsLane) endLauncher(w endsWave, s *endsStream) {
	l.t.Helper()
	if step := endsStepOf(s); step != "" {
		_ = l.scancel(s, "--signal=KILL")
	} else {
		_ = s.signal(unix.SIGTERM)
	}
	if !l.wait(10*time.Second, s.over) {
		_ = s.signal(unix.SIGKILL)
		if !l.wait(10*time.Second, s.over) {
			l.t.Fatalf("%s: its launcher does not end:\n%s", w, s.text())
		}
	}
}

// abandon ends a wave that does not count as a trial.
func (l *endsLane) abandon(w endsWave, s *endsStream, name string) {
	l.t.Helper()
	victims := l.victims(w, s, name)
	for _, v := range victims {
		_ = v.proc.Kill(unix.SIGKILL)
	}
	if w.how != "fork" {
		l.endLauncher(w, s)
	}
	l.wait(10*time.Second, func() bool { return !slices.ContainsFunc(victims, func(v endsAtWork) bool { return v.proc.Running() }) })
}

// newClient runs one kernel in a new step.
func (l *endsLane) newClient() (works bool, took time.Duration, text string) {
	l.t.Helper()
	began := time.Now()
	s := l.srun(1, l.wrapped(l.client, "first")...)
	if !l.wait(40*time.Second, s.over) {
		_ = s.signal(unix.SIGKILL)
	}
	_, found := s.heard(endsFirst)
	return len(found) == 1, time.Since(began), s.text()
}
