package cmd_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/stage"
	"golang.org/x/sys/unix"
)

// A client with work in flight is cancelled beside a neighbour, again and again, as slurmstepd cancels a step: SIGTERM to
// all of its processes. SEED_TRIALS says how many go through the wrapper; a fifth as many more do so without it
// (--signals=pass). SEED_LANES pairs (4) run side by side on each GPU, each with a job, a daemon and a server of its own.
// SEED_RESULTS is a folder for what was seen, a trial a line: pieces of several runs add up. SEED repeats the order and
// the moments. On GPUs that are simulated unless CONFORMANCE_TARGET=real.
func TestRealSeed(t *testing.T) {
	trials, _ := strconv.Atoi(os.Getenv("SEED_TRIALS"))
	if trials == 0 {
		t.Skip("give SEED_TRIALS=100")
	}
	seed, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	lanes, err := strconv.Atoi(os.Getenv("SEED_LANES"))
	if err != nil {
		lanes = 4
	}
	gpus := 1
	if onRealGPUs() {
		gpus = stage.RealGPUs()
	}
	s := &seeding{began: time.Now(), todo: make(chan seedTrial, 2*trials)}
	s.open(t, os.Getenv("SEED_RESULTS"), seed)
	for _, trial := range seedTrials(trials, rand.New(rand.NewPCG(seed, 0))) {
		s.todo <- trial
	}
	close(s.todo)
	t.Run("pair", func(t *testing.T) {
		for lane := range lanes * gpus {
			t.Run(strconv.Itoa(lane), func(t *testing.T) {
				s.play(t, lane, lane%gpus)
			})
		}
	})
	s.judge(t)
}

// seedTrial is one cancel.
type seedTrial struct {
	number  int
	signals string
	ms      int           // of a kernel; one follows the other
	after   time.Duration // from the client's first word to the signal
}

// seedWork are the kernels' lengths.
var seedWork = []int{1, 2, 5, 10, 20, 50, 100, 200, 400}

// seedTrials are the trials in the order in which they are done: mixed, so that a run that is cut short has some of all.
func seedTrials(n int, random *rand.Rand) []seedTrial {
	var all []seedTrial
	for i := range n {
		all = append(all, seedTrial{signals: "protect", ms: seedWork[i%len(seedWork)]})
	}
	for i := range n / 5 {
		all = append(all, seedTrial{signals: "pass", ms: seedWork[i%len(seedWork)]})
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i := range all {
		all[i].number = i
		all[i].after = time.Duration(random.Int64N(int64(50*time.Millisecond) + 2*int64(all[i].ms)*int64(time.Millisecond)))
	}
	return all
}

// seedResult is what a trial came to.
type seedResult struct {
	seedTrial
	lane      int
	gpu       int
	refused   int           // starts of the client that failed, before one that did not
	neighbour string        // alive, dead, hung, or "dead before": before the signal
	died      time.Duration // from the signal to its error
	took      time.Duration // from the signal to the end of the client and its wrapper
	said      string        // where one through the wrapper did harm: what all had to say
}

// seeding is all trials.
type seeding struct {
	todo  chan seedTrial
	mutex sync.Mutex
	done  []seedResult
	began time.Time
	csv   io.Writer
}

func (s *seeding) open(t *testing.T, dir string, seed uint64) {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	file, err := os.Create(filepath.Join(dir, fmt.Sprintf("seed-%d.csv", seed)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	s.csv = file
	fmt.Fprintln(s.csv, "trial,signals,ms of a kernel,ms to the signal,GPU,starts that failed,neighbour,ms to its error,ms to the client's end,pair")
}

func (s *seeding) add(r seedResult) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.done = append(s.done, r)
	fmt.Fprintf(s.csv, "%d,%s,%d,%d,%d,%d,%s,%d,%d,%d\n", r.number, r.signals, r.ms, r.after.Milliseconds(), r.gpu, r.refused, r.neighbour, r.died.Milliseconds(), r.took.Milliseconds(), r.lane)
	if r.said != "" {
		fmt.Printf("trial %d, %s, %d ms, pair %d: the neighbour is %s\n%s", r.number, r.signals, r.ms, r.lane, r.neighbour, r.said)
	}
}

// play has one pair go through trials until none is left, or no time.
func (s *seeding) play(t *testing.T, lane, gpu int) {
	p := newPair(t, gpu)
	p.lane = lane
	deadline, limited := t.Deadline()
	for trial := range s.todo {
		if limited && time.Until(deadline) < longestTrial {
			return
		}
		s.add(p.trial(trial))
	}
	p.end()
}

// judge holds what is promised, and that without the wrapper neighbours of longer kernels die.
func (s *seeding) judge(t *testing.T) {
	t.Helper()
	for _, signals := range []string{"protect", "pass"} {
		for _, ms := range seedWork {
			n := map[string]int{}
			for _, r := range s.done {
				if r.signals == signals && r.ms == ms {
					n["all"]++
					n[r.neighbour]++
					n["refused"] += r.refused
				}
			}
			report(t, "TestRealSeed "+signals, n["all"], n["all"]-n["alive"], 0)
			fmt.Printf("%-8s %4d ms: neighbours alive %4d, dead %3d, hung %d of %4d; starts that failed before one did not: %d\n", signals, ms, n["alive"], n["dead"]+n["dead before"], n["hung"], n["all"], n["refused"])
			if signals == "protect" && n["alive"] < n["all"] {
				t.Errorf("protect, %d ms: %d of %d neighbours alive", ms, n["alive"], n["all"])
			}
			if signals == "pass" && ms == seedWork[len(seedWork)-1] && n["alive"] == n["all"] && n["all"] > 0 {
				t.Errorf("without the wrapper %d of %d neighbours of kernels of %d ms live: nothing is shown", n["alive"], n["all"], ms)
			}
		}
	}
	report(t, "TestRealSeed", len(s.done), 0, time.Since(s.began))
	if left := len(s.todo); left > 0 {
		t.Errorf("no time for %d trials: give a longer -timeout", left)
	}
}

// pair is a job with a neighbour that tells of its work, beside which clients come and go.
type pair struct {
	play
	lane, gpu int
	neighbour *launch
}

func newPair(t *testing.T, gpu int) *pair {
	t.Helper()
	p := &pair{gpu: gpu}
	// Of several pairs on a GPU each has a server of its own, which EXCLUSIVE_PROCESS forbids: this test changes no mode.
	policy := stage.Default(stage.Unchanged)
	if onRealGPUs() {
		t.Parallel()
		p.play = realPlayUnder(t, policy)
	} else {
		p.play = newPlay(t, policy, node.H200)
	}
	ctx, cancel := context.WithTimeout(context.Background(), laneLimit)
	t.Cleanup(cancel)
	p.ctx = ctx
	p.must(0, p.job(7, strconv.Itoa(gpu)), "prolog")
	t.Cleanup(func() { p.must(0, p.job(7, strconv.Itoa(gpu)), "epilog"); p.clean() })
	return p
}

func (p *pair) end() {
	if p.neighbour != nil {
		_ = p.neighbour.signal(unix.SIGTERM)
		<-p.neighbour.ended
	}
}

func (p *pair) lost() bool { return p.neighbour.over() || len(p.neighbour.heard(erred)) > 0 }

// accompany makes sure of a living neighbour.
func (p *pair) accompany() {
	p.t.Helper()
	for try := 0; p.neighbour == nil || p.lost(); try++ {
		if p.neighbour != nil {
			_ = p.neighbour.signal(unix.SIGKILL)
			<-p.neighbour.ended
		}
		if try == 20 {
			p.t.Fatalf("no neighbour starts:\n%s", p.neighbour.text())
		}
		p.neighbour = p.begin("pass", "spin", "-ms", "1", "-tell", "0.05", "-for", "3600")
		p.until("neighbour", func() bool { return p.lost() || len(p.neighbour.heard(atWork)) > 0 })
	}
}

// client starts the client of a trial, and again where it fails: that is counted.
func (p *pair) client(trial seedTrial) (client *launch, refused int) {
	p.t.Helper()
	for ; refused < 20; refused++ {
		client = p.begin(trial.signals, "spin", "-ms", strconv.Itoa(trial.ms), "-for", "60")
		p.until("client", func() bool { return client.over() || len(client.heard(ready)) > 0 })
		if !client.over() {
			return client, refused
		}
	}
	p.t.Fatalf("no client starts:\n%s", client.text())
	return nil, 0
}

// trial cancels one client. The neighbour is looked at until long after what a kill in mid-kernel does to it.
func (p *pair) trial(trial seedTrial) seedResult {
	p.t.Helper()
	p.accompany()
	r := seedResult{seedTrial: trial, lane: p.lane, gpu: p.gpu}
	before := len(p.serverLog(7))
	var client *launch
	client, r.refused = p.client(trial)
	time.Sleep(trial.after)
	early := p.lost()
	began := time.Now()
	_ = client.signal(unix.SIGTERM)
	p.until("end of the client", client.over)
	r.took = time.Since(began)
	r.neighbour = p.look(time.Now().Add(noticedBeside))
	if early {
		r.neighbour = "dead before"
	}
	if deaths := p.neighbour.heard(erred); len(deaths) > 0 {
		r.died = deaths[0].at.Sub(began)
	}
	if trial.signals == "protect" && r.neighbour != "alive" {
		r.said = testimony(began, client, p.neighbour, p.serverLog(7), before)
	}
	if r.neighbour == "hung" {
		_ = p.neighbour.signal(unix.SIGKILL)
		<-p.neighbour.ended
	}
	return r
}

// noticedBeside outlasts the time from a kill in mid-kernel to the neighbours' error where several servers share a GPU: up
// to 264 ms of those seen within 300 (measured).
const noticedBeside = time.Second

// look says whether the neighbour computes after a time.
func (p *pair) look(after time.Time) string {
	for range 5000 {
		told := p.neighbour.heard(atWork)
		switch {
		case p.lost():
			return "dead"
		case told[len(told)-1].at.After(after):
			return "alive"
		}
		time.Sleep(time.Millisecond)
	}
	return "hung"
}

// begin starts a rank of the job below the unmodified wrapper, in a process group of its own; a signal goes to the group,
// as slurmstepd's do to all processes of a step.
func (p play) begin(signals string, client ...string) *launch {
	p.t.Helper()
	cmd := p.asUser(7, p.Command("mpirun-wrap", append([]string{"--signals=" + signals, p.cudaClient()}, client...)...))
	cmd.SysProcAttr.Setpgid = true
	a := &launch{ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = a, a
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	a.signal = func(s unix.Signal) error { return syscall.Kill(-cmd.Process.Pid, s) }
	p.t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); <-a.ended })
	go func() { _ = cmd.Wait(); close(a.ended) }()
	return a
}

// Pieces of a run add up: the same seed has the same trials, and each kind its number.
func TestSeedTrials(t *testing.T) {
	all := seedTrials(90, rand.New(rand.NewPCG(1, 0)))
	if again := seedTrials(90, rand.New(rand.NewPCG(1, 0))); !slices.Equal(all, again) {
		t.Error("the seed does not repeat the trials")
	}
	count := map[string]int{}
	for _, trial := range all {
		count[fmt.Sprintf("%s %d", trial.signals, trial.ms)]++
	}
	for _, ms := range seedWork {
		if count[fmt.Sprintf("protect %d", ms)] != 10 || count[fmt.Sprintf("pass %d", ms)] != 2 {
			t.Errorf("%v", strings.Join(strings.Fields(fmt.Sprint(count)), " "))
		}
	}
}
