// SPDX-License-Identifier: Apache-2.0

package own_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// A soak starts random steps and ends them at random. What it counts must be 0, except for the starts.
//
//	OWN_STARTS   ranks to start; 45
//	OWN_SEED     seed of the steps; 1
//	OWN_LOG      file that gets a line of JSON for each step
type tally struct {
	Where   string         `json:"where"`
	Seed    uint64         `json:"seed"`
	Starts  int            `json:"starts"` // ranks
	Steps   int            `json:"steps"`
	Kills   map[string]int `json:"kills"` // by victim
	Without int            `json:"without_mps"`
	Left    int            `json:"left_behind"`
	Wrong   int            `json:"wrong_statuses"`
	Seconds float64        `json:"seconds"`
}

// fault is what happens to a step. Some faults end it, others only the named process.
type fault string

const (
	none       fault = "none"
	starter    fault = "starter"    // the first rank, while the others wait
	keeper     fault = "keeper"     // at any time
	supervisor fault = "supervisor" // at any time
	both       fault = "keeper and supervisor"
	daemon     fault = "daemon" // when all ranks compute, so each gets CUDA's error
	someRanks  fault = "some ranks"
	allRanks   fault = "all ranks"
	term       fault = "SIGTERM to all"
	everything fault = "everything at once"
)

var faults = []fault{none, starter, keeper, supervisor, both, daemon, someRanks, allRanks, term, everything}

// plan is a step of a soak.
type plan struct {
	ranks int
	fault fault
	delay time.Duration // of the fault, from the start
	slots bool          // an ensemble with as many slots, not a step of srun
	late  int           // ranks that start when the others do
}

func newPlan(r *rand.Rand) plan {
	p := plan{ranks: 1 + r.IntN(8), fault: faults[r.IntN(len(faults))], delay: time.Duration(r.IntN(400)) * time.Millisecond, slots: r.IntN(3) == 0,
		late: r.IntN(3)}
	if r.IntN(6) == 0 {
		p.ranks = 48 - r.IntN(24) - p.late
	}
	return p
}

// TestOwnSoak runs random steps without Slurm.
func TestOwnSoak(t *testing.T) {
	starts, seed := e2e.Number(t, "OWN_STARTS", 45), uint64(e2e.Number(t, "OWN_SEED", 1))
	n := newTestNode(t, node.H200)
	n.Ctx = t.Context() // each wait has its own limit
	began := time.Now()
	sum := tally{Where: "without Slurm", Seed: seed, Kills: map[string]int{}}
	random := rand.New(rand.NewPCG(seed, 0))
	for sum.Starts < starts {
		n.soakStep(newPlan(random), &sum)
	}
	sum.report(t, time.Since(began))
}

// report prints the counts, and fails the test if something went wrong.
func (sum tally) report(t *testing.T, took time.Duration) {
	t.Helper()
	sum.Seconds = took.Round(100 * time.Millisecond).Seconds()
	line := must.Get(json.Marshal(sum))(t)
	t.Logf("%s", line)
	if path := os.Getenv("OWN_LOG"); path != "" {
		file := must.Get(os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644))(t)
		defer file.Close()
		fmt.Fprintf(file, "%s\n", line)
	}
	e2e.Report(t, "TestOwnSoak", sum.Starts, sum.Without+sum.Left+sum.Wrong, took)
	must.Hold(t, sum.Without+sum.Left+sum.Wrong <= 0, "%+v", sum)
}

// soakStep runs a step with its fault, and counts what is wrong afterwards.
func (n testNode) soakStep(p plan, sum *tally) {
	n.T.Helper()
	sum.Steps++
	sum.Kills[string(p.fault)]++
	all := n.begin(p, p.ranks)
	killed := n.strike(p, all)
	more := n.begin(p, p.late)
	sum.Starts += len(all) + len(more)
	for i, rank := range append(all, more...) {
		code := rank.end()
		if !allowed(p.fault, i < len(killed) && killed[i], code, rank.Text()) {
			sum.Wrong++
			n.T.Logf("%+v: rank %d, pid %d, killed %v, ends with %d after %v: %s", p, i, rank.cmd.Process.Pid, killed, code, rank.took, rank.Text())
		}
	}
	n.after(p, sum)
}

// begin starts ranks of a step.
func (n testNode) begin(p plan, ranks int) (all []*process) {
	n.T.Helper()
	for i := range ranks {
		flags, env := []string{}, inStep(7, 0, i, max(p.ranks, i+1))
		if p.slots {
			flags, env = []string{fmt.Sprintf("--slots=%d", p.ranks)}, nil
		}
		all = append(all, n.start(env, n.spin("0.3", flags...)...))
	}
	return all
}

// strike makes the fault of a step happen. It returns which ranks it has killed.
func (n testNode) strike(p plan, ranks []*process) (killed []bool) {
	n.T.Helper()
	killed = make([]bool, len(ranks))
	if p.fault == daemon {
		n.Until("clients that compute", func() bool {
			return !slices.ContainsFunc(ranks, func(r *process) bool { return r.pid() == 0 && !r.over() })
		})
	} else {
		wait.Sleep(n.Ctx, p.delay)
	}
	end := func(which func(int) bool) {
		for i, r := range ranks {
			if which(i) && !r.over() {
				killed[i] = true
				_ = node.SignalGroup(r.cmd, unix.SIGKILL)
			}
		}
	}
	switch p.fault {
	case starter:
		end(func(i int) bool { return i == 0 })
	case keeper:
		kill(n.of("--own-keep")...)
	case supervisor:
		kill(n.of("--own-supervise")...)
	case both:
		kill(slices.Concat(n.of("--own-supervise"), n.of("--own-keep"))...)
	case daemon:
		all := n.daemons()
		kill(all...)
		for _, p := range all { // a rank that comes before its end runs without MPS: docs/limits.md
			n.Gone(p)
		}
	case someRanks:
		end(func(i int) bool { return i%3 == 0 })
	case allRanks:
		end(func(int) bool { return true })
	case term:
		for i, r := range ranks {
			killed[i] = true
			_ = node.SignalGroup(r.cmd, unix.SIGTERM)
		}
		n.terminate()
	case everything:
		all := slices.Concat(n.of("--own-supervise"), n.of("--own-keep"), n.daemons())
		end(func(int) bool { return true })
		kill(all...)
	}
	return killed
}

// terminate sends SIGTERM to the programs of a step, which ignore it. A simulated daemon does so only when it serves,
// because Go's runtime catches the signal first.
func (n testNode) terminate() {
	n.T.Helper()
	all := slices.Concat(n.of("--own-supervise"), n.of("--own-keep"))
	if tickets, _ := filepath.Glob(n.Root + "/tmp/slurm-mps-*/*/tickets/*.json"); len(tickets) > 0 {
		all = append(all, n.daemons()...)
	}
	for _, p := range all {
		_ = p.Kill(unix.SIGTERM)
	}
}

// allowed reports whether a rank may end so. A rank that was not killed has its program's status, and under a killed
// daemon CUDA's error. A rank that gets SIGTERM ends by it, or by itself if it computes already.
func allowed(f fault, killed bool, code int, text string) bool {
	done := code == 0 && strings.Contains(text, " done ")
	switch {
	case killed && f == term:
		return done || code == 143
	case killed:
		return code == 137 || done
	case f == daemon || f == everything: // a late rank, or one that has just begun
		return done || code == 1 && strings.Contains(text, "err=80")
	}
	return done
}

// after checks what a step has left. If nothing was there to clean up, the next start of the user does so.
func (n testNode) after(p plan, sum *tally) {
	n.T.Helper()
	// A rank may be killed before it starts the supervisor, which ignores SIGTERM from its first line on.
	if slices.Contains([]fault{starter, someRanks, allRanks, both, term, everything}, p.fault) {
		for until := time.Now().Add(300 * time.Millisecond); len(n.left()) > 0 && time.Now().Before(until); {
			wait.Sleep(n.Ctx, 5*time.Millisecond)
		}
		ends(0, n.start(nil, n.wrap("true")...))
	}
	if !e2e.Comes(func() bool { return len(n.left()) == 0 }) {
		sum.Left++
		n.T.Logf("%+v: left behind: %q", p, n.left())
		n.killStrangers()
		for _, dir := range n.folders() {
			_ = os.RemoveAll(dir)
		}
	}
	path := filepath.Join(n.Sim.Node.Dir, "without_mps")
	if pids := strings.Fields(e2e.Read(n.T, path)); len(pids) > 0 {
		sum.Without += len(pids)
		n.T.Logf("%+v: these have computed without MPS: %q", p, pids)
		must.OK(n.T, os.Truncate(path, 0))
	}
}
