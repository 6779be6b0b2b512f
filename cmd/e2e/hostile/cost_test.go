// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/night"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// spent returns the processor time of a guard and of its children, those that have ended too, by their command lines.
func spent(t *testing.T, guard int) map[string]time.Duration {
	t.Helper()
	total := map[string]time.Duration{}
	for _, pid := range append(proc.Children(guard), guard) {
		stat, err1 := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		line, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if err1 != nil || err2 != nil || len(fields) < 15 {
			continue // it has ended
		}
		words := strings.Split(string(line), "\x00")
		name := filepath.Base(words[0]) + " " + words[min(1, len(words)-1)]
		for i, field := range fields[11:15] {
			ticks, _ := strconv.Atoi(field)
			if i == 2 {
				name += ", children"
			}
			total[name] += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return total
}

// reserve is the maximum time until the guard's reserve is used up, and it keeps its bound twice in succession. On a
// busy machine one of its turns may take longer than others.
const reserve = 3 * time.Minute

// costs returns the processor time of the guard and its children in ten seconds, by day in five.
func (w *watch) costs() (used, took time.Duration) {
	w.T.Helper()
	before, began := spent(w.T, w.Guard.PID), time.Now()
	wait.Sleep(w.Ctx, time.Duration(night.Of(10, 5))*time.Second)
	took = time.Since(began)
	by := map[string]time.Duration{}
	for name, now := range spent(w.T, w.Guard.PID) {
		by[name] = now - before[name]
		used += by[name]
	}
	state := w.State()
	w.T.Logf("%v of processor time in %v: %v; %d dead, %.1f MiB, %v", used, took, by, state.Dead, e2e.Resident(w.T, w.Guard.PID), state.Released)
	return used, took
}

// devices returns the folder of the node's device files.
func (w *watch) devices() string { return filepath.Join(w.Sim.Node.Dir, "dev") }

// fakes starts processes that look like clients, and waits until the guard has seen them.
func (w *watch) fakes(count int, more ...string) (kill func()) {
	w.T.Helper()
	seen := w.State().ClientsSeen
	cmd := w.group(w.a.as(e2e.UID, append([]string{w.a.program, "fakes", w.devices(), fmt.Sprint(count)}, more...)...))
	w.When(func() bool { return w.State().ClientsSeen >= seen+count })
	return func() { _ = node.SignalGroup(cmd, unix.SIGKILL) }
}

// What a user does costs the guard and its children, with all that they do, 4 % of a core at most, after a burst.
// Nothing in flight is let go for that, a death is noticed, and the guard ends when it is asked.
//
// Contract: G3
func TestHostileProcessorTime(t *testing.T) {
	e2e.Alone(t)
	all := os.Getenv("COST") == "all"
	var one sync.Mutex
	dead := func(living, dead int, more ...string) func(*watch) {
		return func(w *watch) {
			w.fakes(living, more...)
			kill := w.fakes(dead)
			kill()
			w.When(func() bool { return w.State().Dead >= dead })
		}
	}
	attack := func(line ...string) func(*watch) {
		return func(w *watch) {
			places := strings.NewReplacer("DEVICES", w.devices(), "LOGS", w.Ticket(7).Daemons[0].LogDir)
			for i, word := range line {
				line[i] = places.Replace(word)
			}
			w.group(w.a.as(e2e.UID, append([]string{w.a.program}, line...)...))
		}
	}
	for _, c := range []struct {
		name  string
		try   func(*watch)
		dead  int // that must be held
		pause string
		all   bool // only with COST=all
	}{
		{"700 living, 40 dead", dead(700, 40), 40, "0s", false},
		{"1,000 living, 400 dead", dead(1000, 400), 400, "0s", true},
		{"700 living, 40 dead, one is traced", dead(700, 40, "trace"), 0, "5s", true}, // a pause may help before it comes to that one
		{"clients without end", attack("rush", "DEVICES"), 0, "5s", true},
		{"forks without end", attack("rush", "DEVICES", "inherit"), 0, "5s", true},
		{"lines in the daemon's log without end", attack("scribbles", "LOGS"), 0, "5s", true},
		{"openings without end", attack("opens", "DEVICES/nvidia-uvm"), 0, "5s", false},
		{"files that are opened again", attack("reopens", "DEVICES"), 0, "5s", true},
		{"4,000 descriptors", attack("holds", "DEVICES", "4000"), 0, "5s", true},
	} {
		if c.all && !all {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			a := newAttack(t, testnode.Default(`hold = "10m"`, fmt.Sprintf("pause = %q", c.pause)), 1)
			w := &watch{Shared: e2e.OpenShared(a.Node), a: a}
			w.before = w.files()
			one.Lock() // the rows share the processors
			defer one.Unlock()
			neighbour := w.Start("spin", "-ms", "5", "-queue", "100", "-for", "600") // the GPU is at work
			w.Holds(2)
			c.try(w)
			used, took, calm := time.Duration(0), time.Duration(0), 0
			for began := time.Now(); calm < 2 && time.Since(began) < reserve; {
				if used, took = w.costs(); used > took/25 { // an ordinary job never gets there
					calm = 0
				} else {
					calm++
				}
			}
			if calm < 2 {
				t.Errorf("%v of processor time in %v, want %v at most, %v after the attack", used, took, took/25, reserve)
			}
			if held := w.State().Dead; held < c.dead {
				t.Errorf("%d dead clients are held, want %d: %+v", held, c.dead, w.State().Released)
			}
			for reason, count := range w.State().Released {
				must.Hold(t, reason != "hold over" && reason != "bound", "%d clients are let go: %s", count, reason)
			}
			w.small(time.Second)
			must.Hold(t, !w.Ended(neighbour), "the neighbour has ended")
			neighbour.Kill()
			w.ends()
		})
	}
}
