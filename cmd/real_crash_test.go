package cmd_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/stage"
	"golang.org/x/sys/unix"
)

// Programs of ranks die in mid-kernel without a warning; neighbours compute on, or not. CRASH_TRIALS says how many trials
// of protect a kind of death has, pass has a third; CRASH_RESULTS is a folder for what was seen, a trial a line. On a GPU
// that is simulated unless CONFORMANCE_TARGET=real.
func TestRealCrashedRank(t *testing.T) {
	trials, _ := strconv.Atoi(os.Getenv("CRASH_TRIALS"))
	if trials == 0 {
		t.Skip("give CRASH_TRIALS=10")
	}
	w := newWreck(t, os.Getenv("CRASH_RESULTS"))
	w.memory()
	w.endsWell()
	for round := range trials {
		for _, d := range deaths {
			if w.inTime() && (d.ranks == 1 || round%3 == 0) {
				w.trial(d, "protect", round)
			}
		}
		w.settle()
		for _, d := range deaths {
			if w.inTime() && round%4 == 0 {
				w.trial(d, "pass", round)
				w.settle()
			}
		}
	}
	w.judge()
}

// death is how a rank dies, and with what in flight.
type death struct {
	by        unix.Signal // 0: by _exit(1)
	ranks     int
	ms, queue int
}

var deaths = []death{
	{unix.SIGKILL, 1, 400, 1}, {unix.SIGSEGV, 1, 400, 1}, {unix.SIGKILL, 1, 50, 1}, {unix.SIGSEGV, 1, 50, 1},
	{unix.SIGKILL, 1, 5000, 1}, {unix.SIGSEGV, 1, 5000, 1}, {unix.SIGKILL, 1, 5, 200}, {unix.SIGSEGV, 1, 5, 200},
	{unix.SIGKILL, 1, 20, 1}, {unix.SIGSEGV, 1, 20, 1}, {0, 1, 400, 1}, {unix.SIGKILL, 8, 400, 1},
}

func (d death) String() string {
	by := "_exit(1)"
	if d.by != 0 {
		by = unix.SignalName(d.by)
	}
	return fmt.Sprintf("%s,%d,%d x %d ms", by, d.ranks, d.queue, d.ms)
}

// wreck is a job with neighbours that tell of their work, and what was seen of all trials.
type wreck struct {
	play
	results    io.Writer
	neighbours []*launch
	pending    []*crashed // whose wrappers are still there
	done       []*crashed
}

// crashed is one trial.
type crashed struct {
	death
	signals string
	trial   int
	ranks   []*launch
	began   time.Time     // of the death
	seen    time.Duration // from the last rank's readiness until all its files were held
	held    int           // files at the death
	died    time.Duration // from the death to a neighbour's error, 0 for none
	stayed  time.Duration // from the death to the end of the last wrapper
}

func newWreck(t *testing.T, dir string) *wreck {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	file, err := os.Create(filepath.Join(dir, "crashed-ranks.csv"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	w := &wreck{results: io.MultiWriter(file, os.Stdout)}
	if onRealGPUs() {
		w.play = realPlay(t)
	} else {
		w.play = newPlay(t, stage.Default(stage.Compute()), node.H200)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	w.ctx = ctx
	w.showDevice()
	w.must(0, w.job(7, "0"), "prolog")
	w.holdsModes(7)
	t.Cleanup(func() { w.must(0, w.job(7, "0"), "epilog"); w.clean() })
	return w
}

// inTime reports whether the test's deadline leaves room for another trial.
func (w *wreck) inTime() bool {
	deadline, ok := w.t.Deadline()
	return !ok || time.Until(deadline) > 25*time.Second
}

// accompany makes sure of two living neighbours. The first clients after a death may be refused.
func (w *wreck) accompany() {
	w.t.Helper()
	for try := 0; len(w.neighbours) == 0 || w.lost(); try++ {
		for _, n := range w.neighbours {
			_ = n.signal(unix.SIGKILL)
			<-n.ended
		}
		if try == 20 {
			w.t.Fatalf("no neighbours start:\n%s", w.neighbours[0].text())
		}
		w.neighbours = nil
		for range 2 {
			w.neighbours = append(w.neighbours, w.begin("pass", "spin", "-ms", "1", "-tell", "0.05", "-for", "3600"))
		}
		w.until("neighbours", func() bool {
			return w.lost() || !slices.ContainsFunc(w.neighbours, func(n *launch) bool { return len(n.heard(atWork)) == 0 })
		})
	}
}

// lost reports whether a neighbour has died.
func (w *wreck) lost() bool {
	return slices.ContainsFunc(w.neighbours, func(n *launch) bool { return n.over() || len(n.heard(erred)) > 0 })
}

// victims starts the ranks of a trial and waits until they compute and, where that is done, their files are held.
func (w *wreck) victims(c *crashed) {
	w.t.Helper()
	client := []string{"spin", "-ms", strconv.Itoa(c.ms), "-queue", strconv.Itoa(c.queue), "-for", "60"}
	if c.by == 0 {
		client = append(client, "-exit", "0.5")
	}
	for range c.death.ranks {
		c.ranks = append(c.ranks, w.begin(c.signals, client...))
	}
	var last time.Time
	for _, rank := range c.ranks {
		w.until("rank", func() bool { return len(rank.heard(ready)) > 0 || rank.over() })
		if rank.over() {
			w.t.Fatalf("a rank does not start:\n%s", rank.text())
		}
		last = rank.heard(ready)[0].at
	}
	if c.signals == "pass" {
		return
	}
	w.until("held files", func() bool { return w.heldBy(c) >= 2*len(c.ranks) || time.Since(last) > 400*time.Millisecond })
	c.seen, c.held = time.Since(last), w.heldBy(c)
}

// heldBy counts the files that the wrappers of a trial hold.
func (w *wreck) heldBy(c *crashed) (count int) {
	for _, rank := range c.ranks {
		for _, program := range rank.procs(ready) {
			if stat, err := site.ReadStat(program.PID); err == nil {
				count += held(w.t, stat.Parent)
			}
		}
	}
	return count
}

// trial has ranks die, and looks whether the neighbours go on. The wrappers may stay: the next trial does not wait.
func (w *wreck) trial(d death, signals string, trial int) {
	w.t.Helper()
	w.accompany()
	c := &crashed{death: d, signals: signals, trial: trial}
	w.victims(c)
	w.pending = append(w.pending, c)
	if d.by == 0 {
		programs := c.ranks[0].procs(ready)
		w.until("_exit", func() bool { return !programs[0].Alive() })
		c.began = time.Now()
	} else {
		time.Sleep(30*time.Millisecond + rand.N(100*time.Millisecond)) // anywhere in a kernel
		c.began = time.Now()
		for _, rank := range c.ranks {
			_ = rank.procs(ready)[0].Kill(d.by)
		}
	}
	after := c.began.Add(noticed + 100*time.Millisecond)
	w.until("word of the neighbours", func() bool {
		return w.lost() || !slices.ContainsFunc(w.neighbours, func(n *launch) bool {
			told := n.heard(atWork)
			return told[len(told)-1].at.Before(after)
		})
	})
	w.look()
}

// look notes which wrappers have ended, and a death among the neighbours for all trials that may have caused it.
func (w *wreck) look() {
	var left []*crashed
	lost := w.lost()
	for _, c := range w.pending {
		over := !slices.ContainsFunc(c.ranks, func(a *launch) bool { return !a.over() })
		if over && c.stayed == 0 {
			c.stayed = time.Since(c.began)
		}
		if lost && c.died == 0 {
			c.died = w.firstError().Sub(c.began)
		}
		if !lost && (!over || time.Since(c.began) < c.stayed+noticed) {
			left = append(left, c)
			continue
		}
		w.done = append(w.done, c)
		fmt.Fprintf(w.results, "%s,%s,%d,%v,%d,%d,%d,%d\n", c.signals, c.death, c.trial, c.died == 0, c.died.Milliseconds(), c.held, c.seen.Milliseconds(), c.stayed.Milliseconds())
	}
	w.pending = left
}

func (w *wreck) firstError() time.Time {
	first := time.Now()
	for _, n := range w.neighbours {
		for _, line := range n.heard(erred) {
			if line.at.Before(first) {
				first = line.at
			}
		}
	}
	return first
}

// settle waits until no wrapper is there any more.
func (w *wreck) settle() {
	w.t.Helper()
	w.until("end of wrappers", func() bool { w.look(); return len(w.pending) == 0 })
}

var freeMiB = regexp.MustCompile(`free=(\d+)MiB`)

// memory says what a new client finds free before, beside, and after a rank with 8 GiB that is killed in mid-kernel.
func (w *wreck) memory() {
	w.t.Helper()
	free := func(when string) {
		out, _ := w.run("pass", "info")
		fmt.Fprintf(w.results, "# free MiB %s: %s\n", when, freeMiB.FindString(out))
	}
	free("before")
	c := &crashed{signals: "protect", death: death{unix.SIGKILL, 1, 400, 1}}
	rank := w.begin("protect", "spin", "-ms", "400", "-for", "60", "-mib", "8192")
	c.ranks = []*launch{rank}
	w.until("rank", func() bool { return len(rank.heard(ready)) > 0 && w.heldBy(c) == 2 })
	free("beside a rank with 8192 MiB")
	_ = rank.procs(ready)[0].Kill(unix.SIGKILL)
	began := time.Now()
	for range 4 {
		free(fmt.Sprintf("%d ms after its SIGKILL, held", time.Since(began).Milliseconds()))
		time.Sleep(700 * time.Millisecond)
	}
	w.until("end of the wrapper", rank.over)
	free("after the wrapper's end")
}

// run runs a rank to its end.
func (w *wreck) run(signals string, client ...string) (out string, took time.Duration) {
	w.t.Helper()
	began := time.Now()
	a := w.begin(signals, client...)
	w.until("end of a rank", a.over)
	took = time.Since(began)
	return a.text(), took
}

// endsWell says what a guard costs a rank that ends well.
func (w *wreck) endsWell() {
	w.t.Helper()
	took := map[string][]time.Duration{}
	for range 7 {
		for _, signals := range []string{"protect", "pass"} {
			_, d := w.run(signals, "info")
			took[signals] = append(took[signals], d.Round(time.Millisecond))
		}
	}
	for signals, all := range took {
		slices.Sort(all)
		fmt.Fprintf(w.results, "# info by %s, exit 0: %v\n", signals, all)
	}
	fmt.Fprintln(w.results, "signals,died by,ranks,work,trial,neighbours alive,ms to a neighbour's error,files held,ms until held,ms that the wrapper stayed")
}

// judge holds what is promised, and that without it the neighbours of a rank in a kernel of 400 ms die.
func (w *wreck) judge() {
	w.t.Helper()
	counts := map[string][2]int{}
	for _, c := range w.done {
		key := c.signals + "," + c.death.String()
		n := counts[key]
		n[1]++
		if c.died == 0 {
			n[0]++
		}
		counts[key] = n
		if c.signals == "protect" && (c.died != 0 || c.held < 2*len(c.ranks)) {
			w.t.Errorf("%s, trial %d: a neighbour died %v after it, with %d files held", key, c.trial, c.died, c.held)
		}
	}
	var lines []string
	for key, n := range counts {
		lines = append(lines, fmt.Sprintf("# alive %d of %d: %s\n", n[0], n[1], key))
	}
	slices.Sort(lines)
	fmt.Fprint(w.results, strings.Join(lines, ""))
	if n := counts["pass,"+deaths[0].String()]; n[0] != 0 || n[1] == 0 {
		w.t.Errorf("without protection %d of %d neighbours live: nothing is shown", n[0], n[1])
	}
}
