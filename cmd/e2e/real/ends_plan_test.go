// SPDX-License-Identifier: Apache-2.0

package real_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
)

// endsKind is what a victim computes.
type endsKind struct {
	name    string
	program string  // program of victim.py; "" if the program has the kind's name
	needs   string  // the Python module that it needs, "" for none
	seconds float64 // of work in flight
	beside  bool    // kernels of a few blocks, which run side by side: their times do not add up
	slow    bool    // too long for a wave of 40
}

var endsKinds = []endsKind{
	{name: "matmul", needs: "torch", seconds: 0.7},
	{name: "matmul3", needs: "torch", seconds: 3, slow: true},
	{name: "graph", needs: "torch", seconds: 0.7},
	{name: "small", needs: "torch", seconds: 0.25},
	{name: "conv", needs: "torch", seconds: 0.4, slow: true},
	{name: "h2d", needs: "torch", seconds: 0.4, slow: true},
	{name: "d2h", needs: "torch", seconds: 0.4, slow: true},
	{name: "churn", needs: "torch", seconds: 0.3, slow: true},
	{name: "managed", needs: "torch", seconds: 0.4, slow: true},
	{name: "cupy", needs: "cupy", seconds: 0.7, slow: true},
	{name: "jax", needs: "jax", seconds: 0.6, slow: true},
	{name: "kernel400", seconds: 0.4, beside: true},
	{name: "kernel5000", seconds: 5, beside: true, slow: true},
	{name: "spins", seconds: 0.7, beside: true},
	{name: "client", program: "client", seconds: 0.7, beside: true},
	{name: "client400", program: "client", seconds: 0.4, beside: true},
}

// Endings of one victim, by itself or by a signal of the test, and endings of a whole step.
var (
	endsOwn     = []string{"kill", "term", "segv", "abort", "exception", "exit0", "_exit0", "exit1", "alloc", "oom"}
	endsOfSrun  = []string{"scancel", "scancel-term", "interrupts", "kill-srun"}
	endsOfMpi   = []string{"kill-mpirun", "term-mpirun"}
	endsLoading = "loading" // SIGKILL at a random moment of the start
)

// endsVictim is one client of a wave.
type endsVictim struct {
	kind    endsKind
	ending  string
	seconds float64
}

func (v endsVictim) String() string { return v.kind.name + "/" + v.ending }

// spec is the argument of victim.py for this victim.
func (v endsVictim) spec() string {
	program, ending := v.kind.program, v.ending
	if program == "" {
		program = v.kind.name
	}
	if !slices.Contains(endsOwn, ending) && ending != endsLoading || ending == "kill" || ending == "term" {
		ending = "outside"
	}
	return fmt.Sprintf("%s:%s:%g", program, ending, v.seconds)
}

// endsWave is a launch of victims that end together.
type endsWave struct {
	how     string // fork, wrap, srun, pidns, mpirun
	victims []endsVictim
	step    string // the ending of all of them, "" if each has its own
}

func (w endsWave) String() string {
	if w.step != "" {
		return fmt.Sprintf("%s of %d by %s", w.step, len(w.victims), w.how)
	}
	return fmt.Sprintf("%d by %s", len(w.victims), w.how)
}

// list names the first 8 victims.
func (w endsWave) list() string {
	text := strings.Trim(fmt.Sprint(w.victims[:min(8, len(w.victims))]), "[]")
	if len(w.victims) > 8 {
		text += " …"
	}
	return text
}

// inFlight is an upper limit of the time that all work of the wave takes.
func (w endsWave) inFlight() float64 {
	sum, longest := 0.0, 0.0
	for _, v := range w.victims {
		if v.kind.beside {
			longest = max(longest, v.seconds)
		} else {
			sum += v.seconds
		}
	}
	return sum + longest
}

// endsPlanner makes rounds of waves from what the machine can do.
type endsPlanner struct {
	random *rand.Rand
	only   *regexp.Regexp // of HOW/KIND/ENDING
	limit  float64        // seconds of work in flight of a wave
	absent map[string]string
}

// can reports whether a cell is wanted, and whether this machine can do it.
func (p *endsPlanner) can(how string, kind endsKind, ending string) bool {
	client := kind.program == "client"
	switch {
	case p.absent[kind.needs] != "" || p.absent[how] != "" || p.absent[ending] != "":
		return false
	case how == "fork" && (client || kind.needs == "cupy" || kind.needs == "jax"): // these modules start the driver when they are imported
		return false
	case client && !slices.Contains([]string{"kill", "term", "segv", "abort"}, ending) && slices.Contains(endsOwn, ending):
		return false
	case how == "pidns" && ending == "term": // the first process of a namespace has no default action
		return false
	case kind.needs == "" && ending == "oom" && client:
		return false
	}
	return p.only.MatchString(how + "/" + kind.name + "/" + ending)
}

// cells returns all victims of one way to start, with these endings.
func (p *endsPlanner) cells(how string, endings []string, kinds ...string) []endsVictim {
	var all []endsVictim
	for _, kind := range endsKinds {
		for _, ending := range endings {
			if (len(kinds) == 0 || slices.Contains(kinds, kind.name)) && p.can(how, kind, ending) {
				all = append(all, endsVictim{kind, ending, kind.seconds})
			}
		}
	}
	p.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// pack puts victims into waves of at most n. The work in flight of each wave is within the limit.
func (p *endsPlanner) pack(how, step string, n int, victims []endsVictim) []endsWave {
	var waves []endsWave
	for _, v := range victims {
		i := slices.IndexFunc(waves, func(w endsWave) bool {
			w.victims = append(slices.Clone(w.victims), v)
			return len(w.victims) <= n && w.inFlight() <= p.limit
		})
		if i < 0 {
			waves, i = append(waves, endsWave{how: how, step: step}), len(waves)
		}
		waves[i].victims = append(waves[i].victims, v)
	}
	return waves
}

// crowd is one wave of many victims from the cells. Each victim has little work.
func (p *endsPlanner) crowd(how, step string, n int, endings []string, kinds ...string) []endsWave {
	cells := slices.DeleteFunc(p.cells(how, endings, kinds...), func(v endsVictim) bool { return v.kind.slow })
	if len(cells) == 0 {
		return nil
	}
	w := endsWave{how: how, step: step}
	for i := range n {
		v := cells[i%len(cells)]
		v.seconds = min(v.seconds, p.limit/float64(n))
		w.victims = append(w.victims, v)
	}
	return []endsWave{w}
}

// round has every cell once in waves of 8, crowds of 40, and victims that are alone. The order is random.
func (p *endsPlanner) round() []endsWave {
	var all []endsWave
	add := func(waves []endsWave) { all = append(all, waves...) }
	add(p.pack("fork", "", 8, p.cells("fork", endsOwn)))
	add(p.pack("wrap", "", 8, p.cells("wrap", endsOwn)))
	add(p.pack("srun", "", 8, p.cells("srun", []string{"kill", "term", "exit0", "exception"})))
	add(p.pack("mpirun", "", 8, p.cells("mpirun", []string{"kill", "exit1"})))
	add(p.pack("pidns", "", 8, p.cells("pidns", []string{"kill", "exit0", "exception", "segv"}, "matmul", "graph", "spins", "kernel400")))
	for _, ending := range endsOfSrun {
		add(p.pack("wrap", ending, 8, p.cells("wrap", []string{ending})))
		few := p.pack("srun", ending, 8, p.cells("srun", []string{ending}))
		add(few[:min(1, len(few))])
		add(p.crowd("wrap", ending, 40, []string{ending}, "client", "client400"))
	}
	for _, ending := range endsOfMpi {
		add(p.pack("mpirun", ending, 8, p.cells("mpirun", []string{ending})))
		add(p.crowd("mpirun", ending, 40, []string{ending}, "client", "client400"))
	}
	for _, how := range []string{"wrap", "srun"} {
		add(p.pack(how, "", 8, p.cells(how, []string{endsLoading})))
	}
	for range 4 {
		add(p.crowd("fork", "", 40, endsOwn))
	}
	alone := p.cells("wrap", endsOwn)
	for _, v := range alone[:min(8, len(alone))] {
		add([]endsWave{{how: "wrap", victims: []endsVictim{v}}})
	}
	p.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// compared plans the trials of the methods without a guard. Each wave has one victim, so that each trial has its own
// result.
func (p *endsPlanner) compared(trials int) []endsWave {
	var all []endsWave
	kind := "matmul"
	if p.absent["torch"] != "" {
		kind = "spins"
	}
	for range trials { // Slurm sends this SIGTERM to all processes of the step, because the old wrapper is one of them
		for _, ending := range []string{"scancel-term", "exit0", "kill", "scancel"} {
			step := ""
			if slices.Contains(endsOfSrun, ending) {
				step = ending
			}
			all = append(all, p.pack("wrap", step, 1, p.cells("wrap", []string{ending}, kind))...)
		}
	}
	return all
}
