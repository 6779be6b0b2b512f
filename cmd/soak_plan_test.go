// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

// errand is one job of a soak and what befalls it. It follows from the seed and the job's number alone, so that any
// one of a run can be repeated by itself.
type errand struct {
	number int
	gpus   int
	tasks  int // of an array, 0 for a job that is none
	steps  []step
	fault  fault
	after  time.Duration // from the moment at which the fault can be done until it is
	ending string        // of a fault that can end in several ways
}

// step is one launch of ranks. The steps of a job run side by side.
type step struct {
	launcher string
	ranks    int
	ms       int     // of a kernel
	seconds  float64 // that the ranks compute, 0 where somebody ends them
}

// moment is when a fault can be done.
type moment string

const (
	computing moment = "at work"   // every rank computes
	rightAway moment = "at once"   // the job is submitted
	inProlog  moment = "in prolog" // the job's prolog has begun
	inEpilog  moment = "in epilog"
)

// What of a job a fault leaves to be judged.
const (
	completes  = "completes"  // the job, with every rank's work done
	othersLive = "neighbours" // of the first step's first rank, or of that step, go on
	drains     = "drains"     // the node, which is what Slurm does about it: an admin resumes it
)

// fault is what befalls a job.
type fault struct {
	name   string
	weight int
	when   moment
	judged string
	alone  bool // on its node, which it takes down or drains
	array  bool
	long   bool // the fault ends the job, or has it begin again; else the ranks are asked to end once it is done
	slow   bool // it takes half a minute
}

var faults = []fault{
	{name: "none", weight: 20, when: rightAway, judged: completes},
	{name: "none, an array", weight: 5, when: rightAway, judged: completes, array: true},
	{name: "scancel of the job", weight: 5, when: computing, long: true},
	{name: "scancel of the job at once", weight: 4, when: rightAway, long: true},
	{name: "scancel --signal=KILL of the job", weight: 3, when: computing, long: true},
	{name: "scancel --full --signal=TERM of the job", weight: 3, when: computing, long: true},
	{name: "scancel --batch --signal=TERM of the job", weight: 3, when: computing, long: true},
	{name: "scancel --signal=TERM of a step", weight: 5, when: computing, judged: othersLive},
	{name: "scancel of a step", weight: 3, when: computing, judged: othersLive},
	{name: "scancel of an array", weight: 2, when: computing, long: true, array: true},
	{name: "scancel of a task of an array", weight: 2, when: computing, array: true},
	{name: "time limit", weight: 2, when: computing, long: true, slow: true},
	{name: "kill -9 of a rank", weight: 9, when: computing, judged: othersLive},
	{name: "kill -9 of a daemon", weight: 4, when: computing},
	{name: "kill -9 of a server", weight: 4, when: computing},
	{name: "SIGSTOP of a rank", weight: 5, when: computing, long: true},
	{name: "SIGSTOP of a daemon", weight: 2, when: computing, long: true},
	{name: "SIGSTOP of a server", weight: 2, when: computing, long: true},
	{name: "requeue", weight: 3, when: computing, long: true, slow: true},
	{name: "suspend and resume", weight: 3, when: computing, judged: completes},
	{name: "suspend and scancel", weight: 2, when: computing, long: true},
	{name: "kill -9 of the prolog", weight: 3, when: inProlog, judged: drains, alone: true},
	{name: "kill -9 of the epilog", weight: 3, when: inEpilog, judged: drains, alone: true},
	{name: "SIGSTOP of the prolog", weight: 2, when: inProlog, alone: true, judged: completes},
	{name: "SIGSTOP of the epilog", weight: 2, when: inEpilog, alone: true, judged: completes},
	{name: "kill -9 of slurmd", weight: 2, when: computing, alone: true, judged: completes},
	{name: "kill -9 of slurmd in the epilog", weight: 2, when: inEpilog, alone: true, slow: true},
	{name: "SIGSTOP of slurmd", weight: 2, when: computing, alone: true, judged: completes},
	{name: "kill -9 of the guard", weight: 3, when: computing},
	{name: "SIGSTOP of the guard", weight: 3, when: computing, long: true},
	{name: "a second guard", weight: 2, when: computing, judged: othersLive},
	{name: "a policy that breaks and heals", weight: 3, when: computing, alone: true, judged: completes},
	{name: "reboot", weight: 4, when: computing, alone: true, long: true},
}

// planned is the errand with a number in the run of a seed.
func planned(seed uint64, number int) errand {
	r := rand.New(rand.NewPCG(seed, uint64(number)))
	e := errand{number: number, gpus: oneOf(r, 1, 1, 1, 2, 2, 3, 4), fault: drawn(r), after: time.Duration(r.IntN(400)) * time.Millisecond}
	e.ending = oneOf(r, "continued", "cancelled")
	if e.fault.array {
		e.tasks = 2 + r.IntN(3)
		e.gpus = oneOf(r, 1, 1, 2)
	}
	e.steps = steps(r, e.fault)
	return e
}

func oneOf[V any](r *rand.Rand, values ...V) V { return values[r.IntN(len(values))] }

func drawn(r *rand.Rand) fault {
	all := 0
	for _, f := range faults {
		all += f.weight
	}
	at := r.IntN(all)
	for _, f := range faults {
		if at -= f.weight; at < 0 {
			return f
		}
	}
	panic("the weights do not add up")
}

// steps are what a job of a fault runs: a step that is cancelled, or whose rank is killed, has another beside it.
func steps(r *rand.Rand, f fault) []step {
	count := oneOf(r, 1, 1, 1, 2, 3)
	if f.judged == othersLive {
		count = 2 + r.IntN(2)
	}
	var all []step
	for n := range count {
		s := step{oneOf(r, "srun", "srun", "mpirun"), ranks(r, count), oneOf(r, 5, 10, 20, 50, 200), 0.1 + 0.4*r.Float64()}
		if count == 1 && r.IntN(8) == 0 {
			s.launcher = "hydra" // which wants the job for itself
		}
		if strings.HasSuffix(f.name, "of a step") && n == 0 {
			s.launcher = "srun" // of mpirun's ranks Slurm knows no step
		}
		if f.name == "reboot" {
			// An srun that went with its node is told of its job's end by Slurm all the same. Here all nodes have one
			// address, and another srun may have the port by then: it aborts its step, of whatever job that is (seen
			// on 22.05).
			s.launcher = "mpirun"
		}
		if f.when == computing || f.long {
			s.seconds = 0
		}
		all = append(all, s)
	}
	return all
}

// ranks are few as a rule, and now and then as many as a GPU takes.
func ranks(r *rand.Rand, steps int) int {
	if steps == 1 && r.IntN(40) == 0 {
		return 20 + r.IntN(29)
	}
	return oneOf(r, 1, 1, 2, 2, 3, 4, 6)
}

func (e errand) String() string {
	what := fmt.Sprintf("job %d: %d GPUs", e.number, e.gpus)
	if e.tasks > 0 {
		what += fmt.Sprintf(", %d tasks", e.tasks)
	}
	for _, s := range e.steps {
		what += fmt.Sprintf(", %s of %d ranks with %d ms", s.launcher, s.ranks, s.ms)
	}
	return fmt.Sprintf("%s; %s after %v", what, e.fault.name, e.after)
}

// ranks is how many there are of a job, or of a task of an array.
func (e errand) ranks() (all int) {
	for _, s := range e.steps {
		all += s.ranks
	}
	return all
}

// jobs is how many Slurm makes of an errand.
func (e errand) jobs() int { return max(1, e.tasks) }

// script is what the job runs. Each step has a file of its own for what it prints, in the folder given. A job that was
// requeued has short work.
func (e errand) script(folder, wrapper, client string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "out=%s/$SLURM_JOB_ID\n", folder)
	for n, s := range e.steps {
		work := fmt.Sprintf("-ms %d -for ${again:-%.2f}", s.ms, s.seconds)
		if s.seconds == 0 {
			work = fmt.Sprintf("-ms %d -for ${again:-%d}", s.ms, forLong)
			if !e.fault.long {
				work += " -exit-idle"
			}
		}
		// Each Open MPI has a folder of its own: beside one that ends it may find the one they share gone (seen on
		// 4.1).
		fmt.Fprintf(&text, "mkdir -p $out.%d.tmp\nTMPDIR=$out.%d.tmp %s %s spin %s >>$out.%d 2>&1 &\n", n, n, s.launch(e, wrapper), client, work, n)
	}
	return "[ -z \"$SLURM_RESTART_COUNT\" ] || again=0.2\n" + text.String() + "wait\n"
}

// forLong is longer, in seconds, than anybody lets ranks compute that do not end by themselves.
const forLong = 300

// launch is a step's command line as far as the program. The first rank of srun's says the step's number.
func (s step) launch(e errand, wrapper string) string {
	switch s.launcher {
	case "mpirun":
		return fmt.Sprintf("mpirun.openmpi --bind-to none -np %d %s", s.ranks, wrapper)
	case "hydra":
		return fmt.Sprintf("mpiexec.hydra -n %d %s", s.ranks, wrapper)
	}
	return fmt.Sprintf(`srun --overlap --mpi=none --gres=gpu:%d -n%d sh -c '[ $SLURM_PROCID != 0 ] || echo step $SLURM_STEP_ID; exec "$@"' sh %s`, e.gpus, s.ranks, wrapper)
}

// A seed repeats a run; every fault befalls some job of a few hundred, and no job has more ranks than a GPU takes.
func TestTheJobsOfASeed(t *testing.T) {
	seen := map[string]int{}
	for n := range 1000 {
		e := planned(1, n)
		if !reflect.DeepEqual(e, planned(1, n)) {
			t.Fatalf("job %d is another when it is asked for again", n)
		}
		if e.ranks() < 1 || e.ranks() > 48 || e.gpus < 1 || e.gpus > len(gpusOfANode) {
			t.Errorf("%v", e)
		}
		seen[e.fault.name]++
	}
	for _, f := range faults {
		if seen[f.name] == 0 {
			t.Errorf("%q befalls no job", f.name)
		}
	}
	if reflect.DeepEqual(planned(1, 0), planned(2, 0)) {
		t.Error("two seeds begin alike")
	}
}
