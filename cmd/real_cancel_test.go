package cmd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/stage"
	"golang.org/x/sys/unix"
)

// Ranks of a step are cancelled through a real Slurm with work in flight; neighbours in another step of the job compute
// on, or not. protect and pass are side by side. CANCEL_TRIALS says how many trials of protect a cell has, the others have
// half as many; CANCEL_CELLS is a pattern for some cells only; CANCEL_RESULTS a folder for what was seen. On GPUs that are
// simulated unless CONFORMANCE_TARGET=real; every GPU of the machine has a cluster of its own, and they share the cells.
func TestRealCancelUnderSlurm(t *testing.T) {
	trials, _ := strconv.Atoi(os.Getenv("CANCEL_TRIALS"))
	if trials == 0 {
		t.Skip("give CANCEL_TRIALS=10")
	}
	only, err := regexp.Compile(os.Getenv("CANCEL_CELLS"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRecord(t, os.Getenv("CANCEL_RESULTS"))
	todo := make(chan cell, 100)
	for _, c := range cells() {
		if only.MatchString(c.String()) {
			todo <- c
		}
	}
	close(todo)
	gpus := 1
	if onRealGPUs() {
		gpus = stage.RealGPUs()
	}
	t.Run("GPU", func(t *testing.T) {
		for gpu := range gpus {
			t.Run(strconv.Itoa(gpu), func(t *testing.T) {
				t.Parallel()
				l := newLane(t, gpu)
				for c := range todo {
					l.play(c, trials, r)
				}
				l.settle(r)
				l.end()
			})
		}
	})
	r.judge(t)
}

// longestTrial is what a trial of 40 ranks and the end of the job take.
const longestTrial = 45 * time.Second

func onRealGPUs() bool { return os.Getenv("CONFORMANCE_TARGET") == "real" }

// cell is one kind of work in flight, and one way to cancel it.
type cell struct {
	ranks     int
	ms, queue int
	by        string
	signals   string
}

// The ways to cancel a step. Of the first three a rank hears before it is killed. The others are Slurm's own short cuts:
// scancel without a signal kills at once, and srun does so within 10 ms of the second of two interrupts. Nothing that
// is killed with the rank can protect its neighbours then; what becomes of them is written down, not held.
const (
	bySignal     = "scancel --signal=TERM of the step"
	byInterrupt  = "SIGINT to srun -X"
	byMpirun     = "SIGTERM to mpirun"
	byKill       = "scancel of the step"
	byInterrupts = "SIGINT to srun twice"
)

func (c cell) promised() bool {
	return c.signals == "protect" && c.by != byKill && c.by != byInterrupts
}

func (c cell) String() string {
	work := fmt.Sprintf("%d ms", c.ms)
	if c.queue > 1 {
		work = fmt.Sprintf("%d x %d ms", c.queue, c.ms)
	}
	return fmt.Sprintf("%d of %s, %s, %s", c.ranks, work, c.by, c.signals)
}

func (c cell) client() []string {
	return []string{"spin", "-ms", strconv.Itoa(c.ms), "-queue", strconv.Itoa(c.queue), "-for", "60"}
}

// cells are the shortest ones first, so that a run that is cut short has most of them.
func cells() []cell {
	var all []cell
	for _, signals := range []string{"protect", "pass"} {
		for _, work := range [][2]int{{20, 1}, {50, 1}, {400, 1}, {5000, 1}, {5, 200}} {
			all = append(all, cell{1, work[0], work[1], bySignal, signals})
		}
	}
	crowds := func(by, signals string, ranks ...int) {
		for _, n := range ranks {
			all = append(all, cell{n, 20, 1, by, signals}, cell{n, 400, 1, by, signals})
		}
	}
	crowds(byKill, "protect", 1, 8)
	crowds(byInterrupts, "protect", 1, 8)
	for _, n := range []int{8, 40} {
		for _, signals := range []string{"protect", "pass"} {
			for _, by := range []string{bySignal, byInterrupt, byMpirun} {
				crowds(by, signals, n)
			}
		}
	}
	return all
}

// outcome is what one trial came to.
type outcome struct {
	cell
	trial, gpu int
	started    time.Duration // from the launch until every rank computes
	alive      int           // neighbours that computed on after the ranks had gone
	took       time.Duration // from the signal to the end of the last rank and of its launcher
	died       time.Duration // from the signal to a neighbour's error, 0 where there was none
	said       string        // what is worth to be known of it where a neighbour died
}

const neighbours = 2

// record is what was seen of all trials, on file as they come: a run may be cut short.
type record struct {
	mutex            sync.Mutex
	all              []*outcome
	trials, evidence io.Writer
	cells            string // path of the table
}

func newRecord(t *testing.T, dir string) *record {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	r := &record{cells: filepath.Join(dir, "cells.txt")}
	for name, into := range map[string]*io.Writer{"trials.csv": &r.trials, "evidence.txt": &r.evidence} {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		*into = file
	}
	fmt.Fprintln(r.trials, "ranks,work,by,signals,trial,gpu,neighbours alive,of,ms to start,ms to the end,ms to a neighbour's error")
	return r
}

func (r *record) add(o *outcome) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.all = append(r.all, o)
	row := fmt.Sprintf("%d,%d x %d ms,%s,%s,%d,%d,%d,%d,%d,%d,%d\n", o.ranks, o.queue, o.ms, o.by, o.signals, o.trial, o.gpu, o.alive, neighbours, o.started.Milliseconds(), o.took.Milliseconds(), o.died.Milliseconds())
	fmt.Print(row)
	fmt.Fprint(r.trials, row)
	if o.alive < neighbours && o.signals == "protect" {
		fmt.Fprintf(r.evidence, "=== %s, trial %d: %d of %d neighbours alive\n%s\n", o.cell, o.trial, o.alive, neighbours, o.said)
	}
}

// judge holds what is promised: under protect every neighbour lives. And that under pass the neighbours of a rank in
// mid-kernel do not, since nothing would be shown otherwise.
func (r *record) judge(t *testing.T) {
	t.Helper()
	byCell := map[cell][]*outcome{}
	for _, o := range r.all {
		byCell[o.cell] = append(byCell[o.cell], o)
	}
	table, passed, died := "", 0, 0
	for _, c := range cells() {
		outcomes := byCell[c]
		if len(outcomes) == 0 {
			continue
		}
		lived := len(outcomes) - len(slices.DeleteFunc(slices.Clone(outcomes), func(o *outcome) bool { return o.alive == neighbours }))
		table += fmt.Sprintf("%-66s all neighbours alive in %2d of %2d, end after %s\n", c, lived, len(outcomes), times(outcomes))
		if c.promised() && lived < len(outcomes) {
			t.Errorf("%s: all neighbours alive in %d of %d trials", c, lived, len(outcomes))
		}
		if c.signals == "pass" && c.ms >= 50 {
			passed, died = passed+len(outcomes), died+len(outcomes)-lived
		}
	}
	if died < passed/2 {
		t.Errorf("of %d trials of pass, in %d a neighbour died: the trials of protect prove nothing", passed, died)
	}
	fmt.Print(table)
	if err := os.WriteFile(r.cells, []byte(table), 0o644); err != nil {
		t.Error(err)
	}
}

// times are the median, the shortest and the longest from the signal to the end.
func times(outcomes []*outcome) string {
	slices.SortFunc(outcomes, func(a, b *outcome) int { return int(a.took - b.took) })
	return fmt.Sprintf("%d ms (%d to %d)", outcomes[len(outcomes)/2].took.Milliseconds(), outcomes[0].took.Milliseconds(), outcomes[len(outcomes)-1].took.Milliseconds())
}

// lane is one GPU with a cluster of its own and one long job on it, in which steps come and go.
type lane struct {
	*cluster
	gpu        int
	job        int
	commands   *os.File // lines that the job's batch script runs
	launches   int
	neighbours *launch
	last       *outcome // of a trial, until it is settled
}

// laneLimit bounds all trials of a lane.
const laneLimit = 20 * time.Minute

func newLane(t *testing.T, gpu int) *lane {
	t.Helper()
	bundle := os.Getenv("SLURM_BUNDLE")
	if missing := lab.Missing(); bundle == "" && len(missing) > 0 {
		t.Fatalf("packages are missing: %q: run make setup", missing)
	}
	user, err := lab.EnsureUser("hpc1", uid)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, user: user, dir: publicDir(t), stages: map[string]play{}}
	var cancel context.CancelFunc
	c.ctx, cancel = context.WithTimeout(context.Background(), laneLimit)
	t.Cleanup(cancel)
	o := lab.Options{Dir: filepath.Join(c.dir, "lab"), GPUs: 1, CPUs: 64, Features: "mps", PrologFlags: "Alloc", SameName: true, Bundle: bundle}
	p := laneStage(c, o)
	if p.Sim == nil {
		o.DevDir, o.GresConf = "/dev", fmt.Sprintf("Name=gpu File=/dev/nvidia%d\n", gpu)
	}
	o.Prolog, o.Epilog, o.TaskProlog = p.Command("prolog"), p.Command("epilog"), p.Command("task-prolog")
	if c.Cluster, err = lab.Start(c.ctx, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	l := &lane{cluster: c, gpu: gpu}
	l.allocate()
	return l
}

// laneStage is the stage of a lane's only node.
func laneStage(c *cluster, o lab.Options) play {
	c.t.Helper()
	built, err := built()
	if err != nil {
		c.t.Fatal(err)
	}
	dir, policy := filepath.Join(c.dir, "n"), stage.Default(stage.Compute())
	var s stage.Stage
	if onRealGPUs() {
		s, err = stage.Real(dir, built, policy)
	} else {
		s, err = stage.New(dir, built, policy, node.H200)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	p := play{s, c.t, c.ctx, ""}
	c.stages[names(c.t, o)[0]] = p
	c.t.Cleanup(p.killLeft)
	c.t.Cleanup(p.closeLeft)
	return p
}

// holdsMode holds that the job's GPU is exclusive, where modes are changed, and leaves the others to their own lanes, which
// change them meanwhile.
func (l *lane) holdsMode() {
	l.t.Helper()
	name, p := l.Nodes()[0], l.first()
	l.published(p)
	own := p.ticket(uint32(l.job)).Devices[0].UUID
	p.Before = slices.DeleteFunc(slices.Clone(p.Before), func(g stage.GPU) bool { return g.UUID != own })
	l.stages[name] = p
	p.holdsModes(uint32(l.job))
}

// published waits for the job's ticket, the last that a prolog does: a job may be RUNNING before.
func (l *lane) published(p play) {
	l.t.Helper()
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithTimeout(l.ctx, patience)
	defer cancel()
	p.until("ticket", func() bool {
		_, err := os.Stat(filepath.Join(p.Paths().Run(), "tickets", fmt.Sprintf("%d.json", l.job)))
		return err == nil
	})
}

// allocate starts the job, whose batch script runs what it is told to.
func (l *lane) allocate() {
	l.t.Helper()
	home, err := l.Home(l.user)
	if err != nil {
		l.t.Fatal(err)
	}
	commands := l.fifo("commands")
	if l.commands, err = os.OpenFile(commands, os.O_RDWR, 0); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { l.commands.Close() })
	script := filepath.Join(home, "job.sh")
	text := fmt.Sprintf("#!/bin/bash\nexport LD_LIBRARY_PATH=%s:$LD_LIBRARY_PATH\nwhile read -r line; do bash -c \"$line\" & done <%s\n", l.libraries(), commands)
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		l.t.Fatal(err)
	}
	l.job, err = l.Submit(l.ctx, l.user, "--constraint=mps", "--gres=gpu:1", "-N1", "-n40", "-o", filepath.Join(home, "job.out"), script)
	if err != nil {
		l.t.Fatal(err)
	}
	job, err := l.WaitJobUntil(l.ctx, l.job, func(j lab.Job) bool { return j.State == "RUNNING" })
	if err != nil {
		l.t.Fatalf("%+v, %v\n%s", job, err, l.log())
	}
	l.holdsMode()
}

// libraries are where the ranks find CUDA.
func (l *lane) libraries() string {
	if p := l.first(); p.Sim != nil {
		return p.Sim.Libraries()
	}
	return os.Getenv("LD_LIBRARY_PATH")
}

// fifo is a pipe with a name, the job's user's own.
func (l *lane) fifo(name string) string {
	l.t.Helper()
	home, err := l.Home(l.user)
	if err != nil {
		l.t.Fatal(err)
	}
	path := filepath.Join(home, name)
	if err := errors.Join(unix.Mkfifo(path, 0o600), os.Chown(path, int(l.user.UID), int(l.user.GID))); err != nil {
		l.t.Fatal(err)
	}
	return path
}

// end ends the job and holds that nothing is left of it.
func (l *lane) end() {
	l.t.Helper()
	if result, err := l.Run(l.ctx, l.user, "scancel", strconv.Itoa(l.job)); err != nil || result.Exit != 0 {
		l.t.Fatalf("%+v, %v", result, err)
	}
	l.ended(l.job)
	l.quiet()
}

// play makes all trials of a cell.
func (l *lane) play(c cell, trials int, r *record) {
	l.t.Helper()
	if !c.promised() {
		trials = (trials + 1) / 2
	}
	for trial := range trials {
		l.settle(r)
		if deadline, ok := l.t.Deadline(); ok && time.Until(deadline) < longestTrial {
			l.t.Errorf("%s: no time left for %d trials: give a longer -timeout, or CANCEL_CELLS", c, trials-trial)
			return
		}
		l.accompany()
		l.last = l.trial(c)
		l.last.trial, l.last.gpu = trial, l.gpu
	}
}

// settle records the last trial. A neighbour that has died since that was looked at is its doing too.
func (l *lane) settle(r *record) {
	if l.last == nil {
		return
	}
	if l.last.alive == neighbours && !l.accompanied() {
		l.last.alive, l.last.said = 0, "died after the trial\n"+l.neighbours.text()
	}
	r.add(l.last)
	l.last = nil
}

// mostLines is how many lines of a launch are kept: neighbours go on telling for minutes.
const mostLines = 1000

// launch is what a launcher has started.
type launch struct {
	signal func(unix.Signal) error // signals the launcher
	ended  chan struct{}           // closed when it has gone
	mutex  sync.Mutex
	lines  []said
	rest   []byte
}

// said is a line, and when it came.
type said struct {
	at   time.Time
	text string
}

// Write takes what the launcher and its ranks print.
func (a *launch) Write(p []byte) (int, error) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.rest = append(a.rest, p...)
	for {
		line, rest, found := bytes.Cut(a.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		a.lines = append(a.lines, said{time.Now(), string(line)})
		a.lines = a.lines[max(0, len(a.lines)-mostLines):]
		a.rest = rest
	}
}

// heard are the lines with a pattern in them.
func (a *launch) heard(pattern *regexp.Regexp) []said {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	var found []said
	for _, line := range a.lines {
		if pattern.MatchString(line.text) {
			found = append(found, line)
		}
	}
	return found
}

func (a *launch) text() string {
	all := ""
	for _, line := range a.heard(regexp.MustCompile(``)) {
		all += line.at.Format("15:04:05.000 ") + line.text + "\n"
	}
	return all
}

func (a *launch) over() bool {
	select {
	case <-a.ended:
		return true
	default:
		return false
	}
}

var (
	ready    = regexp.MustCompile(`^pid=(\d+) ready `)
	atWork   = regexp.MustCompile(`^pid=(\d+) at work `)
	erred    = regexp.MustCompile(`^pid=\d+ (init )?err=`)
	stepLine = regexp.MustCompile(`^step (\d+)$`)
	leader   = regexp.MustCompile(`^leader (\d+)$`)
)

// procs are the processes that said so.
func (a *launch) procs(pattern *regexp.Regexp) []site.Proc {
	var found []site.Proc
	for _, line := range a.heard(pattern) {
		pid, _ := strconv.Atoi(pattern.FindStringSubmatch(line.text)[1])
		if stat, err := site.ReadStat(pid); err == nil {
			found = append(found, stat.Proc)
		}
	}
	return found
}

// step starts ranks by srun in the job, as its user may from anywhere. The first one says the step's number.
func (l *lane) step(ranks int, flags []string, program ...string) *launch {
	l.t.Helper()
	line := append(flags, fmt.Sprintf("--jobid=%d", l.job), "--overlap", "--mpi=none", "--gres=gpu:1", fmt.Sprintf("-n%d", ranks),
		"sh", "-c", `[ $SLURM_PROCID != 0 ] || echo step $SLURM_STEP_ID; exec "$@"`, "sh")
	line = append(line, program...)
	cmd, err := l.Command(l.ctx, l.user, "srun", line...)
	if err != nil {
		l.t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+l.libraries()) // the last one counts
	a := &launch{ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = a, a
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	a.signal = func(s unix.Signal) error { return cmd.Process.Signal(s) }
	go func() { _ = cmd.Wait(); close(a.ended) }()
	return a
}

// mpirun starts ranks by Open MPI's mpirun in the job's batch step.
func (l *lane) mpirun(ranks int, program ...string) *launch {
	l.t.Helper()
	l.launches++
	out := l.fifo(fmt.Sprintf("out%d", l.launches))
	a := &launch{ended: make(chan struct{})}
	go func() {
		defer close(a.ended)
		if from, err := os.Open(out); err == nil { // waits for mpirun
			_, _ = io.Copy(a, from)
			from.Close()
		}
	}()
	_, err := fmt.Fprintf(l.commands, "exec >%s 2>&1; echo leader $$; exec mpirun.openmpi --bind-to none -np %d %s\n", out, ranks, strings.Join(program, " "))
	if err != nil {
		l.t.Fatal(err)
	}
	l.hear(a, leader, 1)
	self := a.procs(leader)
	if len(self) == 0 {
		l.t.Fatalf("mpirun does not start:\n%s", a.text())
	}
	a.signal = func(s unix.Signal) error { return self[0].Kill(s) }
	return a
}

const patience = 30 * time.Second

// hear waits for so many lines of a launch, and reports whether they came before its end.
func (l *lane) hear(a *launch, pattern *regexp.Regexp, n int) bool {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	for len(a.heard(pattern)) < n {
		if a.over() || len(a.heard(erred)) > 0 {
			return len(a.heard(pattern)) >= n
		}
		if !site.Pause(ctx, 2*time.Millisecond) {
			l.t.Fatalf("%d of %d lines came:\n%s\n%s", len(a.heard(pattern)), n, a.text(), l.log())
		}
	}
	return true
}

// rank is the command line of a rank.
func (l *lane) rank(flags []string, client ...string) []string {
	return append(append(l.first().Command("mpirun-wrap", flags...), l.first().cudaClient()), client...)
}

func (l *lane) accompanied() bool {
	return l.neighbours != nil && !l.neighbours.over() && len(l.neighbours.heard(erred)) == 0
}

// accompany makes sure of living neighbours.
func (l *lane) accompany() {
	l.t.Helper()
	if l.accompanied() {
		return
	}
	for try := 0; ; try++ {
		l.neighbours = l.step(neighbours, nil, l.rank([]string{"--signals=pass"}, "spin", "-ms", "1", "-tell", "0.05", "-for", "3600")...)
		if l.hear(l.neighbours, ready, neighbours) {
			return
		}
		if try == 10 { // the first clients after a death may be refused, as error 46 or 807
			l.t.Fatalf("no neighbours start:\n%s", l.neighbours.text())
		}
		l.gone(l.neighbours, l.neighbours.procs(ready))
	}
}

// gone waits for the end of a launcher and of its ranks.
func (l *lane) gone(a *launch, ranks []site.Proc) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	for !a.over() || slices.ContainsFunc(ranks, site.Proc.Alive) {
		if !site.Pause(ctx, time.Millisecond) {
			l.t.Fatalf("ranks do not end:\n%s\n%s", a.text(), l.serverLog())
		}
	}
}

// victims starts the ranks of a cell and returns when all of them compute.
func (l *lane) victims(c cell) *launch {
	l.t.Helper()
	line := l.rank([]string{"--signals=" + c.signals, "-v"}, c.client()...)
	for range 3 {
		var a *launch
		switch c.by {
		case byMpirun:
			a = l.mpirun(c.ranks, line...)
		case byInterrupt:
			a = l.step(c.ranks, []string{"-X"}, line...)
		default:
			a = l.step(c.ranks, nil, line...)
		}
		if l.hear(a, ready, c.ranks) {
			return a
		}
		fmt.Printf("GPU %d: ranks of %s did not start:\n%s", l.gpu, c, a.text())
		_ = a.signal(unix.SIGTERM)
		l.gone(a, a.procs(ready))
	}
	l.t.Fatalf("the ranks of %s do not start", c)
	return nil
}

// midWork puts the signal into the middle of the work, wherever that is.
const midWork = 300 * time.Millisecond

// trial cancels the ranks of a cell beside the neighbours.
func (l *lane) trial(c cell) *outcome {
	l.t.Helper()
	before := len(l.serverLog())
	launched := time.Now()
	victims := l.victims(c)
	o := &outcome{cell: c, started: time.Since(launched)}
	time.Sleep(midWork)
	ranks := victims.procs(ready)
	if len(ranks) != c.ranks || victims.over() {
		l.t.Fatalf("%d of %d ranks compute:\n%s", len(ranks), c.ranks, victims.text())
	}
	began := time.Now()
	l.cancel(c, victims)
	l.gone(victims, ranks)
	o.took = time.Since(began)
	o.alive = l.computeOn(time.Now().Add(noticed))
	if deaths := l.neighbours.heard(erred); len(deaths) > 0 {
		o.died = deaths[0].at.Sub(began)
	}
	if o.alive < neighbours {
		o.said = testimony(began, victims, l.neighbours, l.serverLog(), before)
	}
	return o
}

// testimony is what all had to say of a cancel that did harm; of the server's log, what came after the first bytes.
func testimony(signal time.Time, victims, neighbours *launch, log string, before int) string {
	return fmt.Sprintf("signal at %s\n--- the ranks\n%s--- the neighbours\n%s--- server.log\n%s", signal.Format("15:04:05.000"),
		victims.text(), neighbours.text(), log[min(before, len(log)):])
}

// noticed outlasts the time from a kill in mid-kernel to the neighbours' error, 140 to 190 ms (measured), by far: it is
// counted from the end of the last rank.
const noticed = 250 * time.Millisecond

// computeOn counts the neighbours that say after a time that they compute.
func (l *lane) computeOn(after time.Time) int {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, 5*time.Second)
	defer cancel()
	for {
		alive := map[string]bool{}
		for _, line := range l.neighbours.heard(atWork) {
			if line.at.After(after) {
				alive[atWork.FindStringSubmatch(line.text)[1]] = true
			}
		}
		if len(alive) == neighbours || len(l.neighbours.heard(erred)) > 0 || l.neighbours.over() || !site.Pause(ctx, 2*time.Millisecond) {
			return len(alive)
		}
	}
}

// cancel ends the ranks as their user would.
func (l *lane) cancel(c cell, victims *launch) {
	l.t.Helper()
	var err error
	switch c.by {
	case bySignal:
		err = l.scancel(victims, "--signal=TERM")
	case byKill:
		err = l.scancel(victims)
	case byInterrupt, byMpirun:
		err = victims.signal(map[string]unix.Signal{byInterrupt: unix.SIGINT, byMpirun: unix.SIGTERM}[c.by])
	case byInterrupts: // of the first one srun only says what its tasks do
		err = victims.signal(unix.SIGINT)
		l.hear(victims, regexp.MustCompile(`one more within 1 sec`), 1)
		err = errors.Join(err, victims.signal(unix.SIGINT))
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lane) scancel(victims *launch, flags ...string) error {
	step := stepLine.FindStringSubmatch(victims.heard(stepLine)[0].text)[1]
	result, err := l.Run(l.ctx, l.user, "scancel", append(flags, fmt.Sprintf("%d.%s", l.job, step))...)
	if err == nil && result.Exit != 0 {
		err = errors.New(result.Stderr)
	}
	return err
}

func (l *lane) serverLog() string { return l.first().serverLog(uint32(l.job)) }
