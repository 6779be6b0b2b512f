// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// plannedJob is one job of the plan, with its fault. It depends only on the seed and on the job's number, so each job
// of a run can be repeated alone.
type plannedJob struct {
	number int
	gpus   int
	shard  bool // the job has a shard of one GPU
	tasks  int  // of an array; 0 if the job is no array
	steps  []step
	fault  fault
	after  time.Duration // from the moment when the fault is possible until the fault
	stays  bool          // a process that the fault stops stays stopped
}

// step is one launch of ranks. The steps of a job run side by side.
type step struct {
	launcher string
	ranks    int
	ms       int     // length of a kernel
	seconds  float64 // of computing; 0 if the soak ends the ranks
}

// What is checked after a fault.
const (
	completes  = "completes"  // the job completes, and every rank does all its work
	othersLive = "neighbours" // the programs beside the first step, or beside its first rank, continue
)

// fault is what happens to a job when every rank computes.
type fault struct {
	name   string
	weight int
	do     func(*jobRun) error
	judged string
	early  bool // the fault happens when the job has been submitted
	alone  bool // the job is alone on its node, because the fault may take the node down
	array  bool
	long   bool // the fault ends the job or restarts it; otherwise the soak ends the ranks after the fault
	ofStep bool // the fault ends the first step
	reboot bool
}

var faults = []fault{
	{name: "none", weight: 20, do: nothing, early: true, judged: completes},
	{name: "none, an array", weight: 5, do: nothing, early: true, judged: completes, array: true},
	{name: "scancel of the job", weight: 5, do: cancelled(), long: true},
	{name: "scancel of the job at once", weight: 4, do: cancelled(), early: true, long: true},
	{name: "scancel --signal=KILL of the job", weight: 3, do: cancelled("--signal=KILL"), long: true},
	{name: "scancel --full --signal=TERM of the job", weight: 3, do: asked("--full", "--signal=TERM"), long: true},
	{name: "scancel --batch --signal=TERM of the job", weight: 3, do: asked("--batch", "--signal=TERM"), long: true},
	{name: "scancel --signal=TERM of a step", weight: 5, do: stepEnded("--signal=TERM"), judged: othersLive, ofStep: true},
	{name: "scancel of a step", weight: 3, do: stepEnded(), judged: othersLive, ofStep: true},
	{name: "scancel of an array", weight: 2, do: (*jobRun).arrayCancelled, long: true, array: true},
	{name: "scancel of a task of an array", weight: 2, do: cancelled(), array: true},
	{name: "time limit", weight: 2, do: func(v *jobRun) error { return v.scontrol("update", "JobId="+v.job(), "EndTime=now+3") }, long: true},
	{name: "kill -9 of a rank", weight: 9, do: killed((*jobRun).victim), judged: othersLive},
	{name: "kill -9 of a daemon", weight: 4, do: killed((*jobRun).daemon)},
	{name: "kill -9 of a server", weight: 4, do: killed((*jobRun).server)},
	{name: "kill -9 of the guard", weight: 3, do: killed((*jobRun).guard)},
	{name: "SIGSTOP of a rank", weight: 5, do: stopped((*jobRun).victim), long: true},
	{name: "SIGSTOP of a daemon", weight: 2, do: stopped((*jobRun).daemon), long: true},
	{name: "SIGSTOP of a server", weight: 2, do: stopped((*jobRun).server), long: true},
	{name: "SIGSTOP of the guard", weight: 3, do: stopped((*jobRun).guard), long: true},
	{name: "requeue", weight: 3, do: func(v *jobRun) error { return v.scontrol("requeue", v.job()) }, long: true},
	{name: "suspend and resume", weight: 3, do: func(v *jobRun) error {
		return v.suspended(func() error { return v.scontrol("resume", v.job()) })
	}, judged: completes},
	{name: "suspend and scancel", weight: 2, do: func(v *jobRun) error {
		return v.suspended(func() error { return v.scancel(v.job()) })
	}, long: true},
	{name: "kill -9 of slurmd", weight: 2, do: func(v *jobRun) error {
		return errors.Join(v.KillNode(v.name), v.StartNode(v.name))
	}, alone: true, judged: completes},
	{name: "SIGSTOP of slurmd", weight: 2, do: func(v *jobRun) error {
		slurmd, err := v.NodeProc(v.name)
		return errors.Join(err, v.stop(slurmd), send(slurmd, unix.SIGCONT))
	}, alone: true, judged: completes},
	{name: "reboot", weight: 4, do: (*jobRun).rebooted, alone: true, long: true, reboot: true},
}

// planned returns the job with this number in the plan of a seed.
func planned(seed uint64, number int) plannedJob {
	r := rand.New(rand.NewPCG(seed, uint64(number)))
	j := plannedJob{number: number, gpus: oneOf(r, 1, 1, 1, 2, 2, 3, 4), fault: drawn(r), stays: r.IntN(2) == 0}
	j.after = time.Duration(r.IntN(400)) * time.Millisecond
	if j.fault.array {
		j.tasks, j.gpus = 2+r.IntN(3), oneOf(r, 1, 1, 2)
	} else if !j.fault.alone && r.IntN(8) == 0 {
		j.shard, j.gpus = true, 1
	}
	j.steps = steps(r, j.fault)
	return j
}

// gres is what the job and each of its steps ask for.
func (j plannedJob) gres() string {
	if j.shard {
		return "--gres=shard:1"
	}
	return fmt.Sprintf("--gres=gpu:%d", j.gpus)
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

// steps are the steps of a job. If the fault ends a step or one of its ranks, the job has another step beside it.
func steps(r *rand.Rand, f fault) []step {
	count := oneOf(r, 1, 1, 1, 2, 3)
	if f.judged == othersLive {
		count = 2 + r.IntN(2)
	}
	var all []step
	for n := range count {
		s := step{oneOf(r, "srun", "srun", "mpirun"), ranks(r, count), oneOf(r, 5, 10, 20, 50, 200), 0.1 + 0.4*r.Float64()}
		if count == 1 && r.IntN(8) == 0 {
			s.launcher = "hydra" // hydra must be the only step of its job
		}
		if f.ofStep && n == 0 {
			s.launcher = "srun" // Slurm has no step for the ranks of mpirun
		}
		if f.reboot {
			// If an srun ends with its node, Slurm still tells its port that the job has ended. Here all nodes have
			// one address, so another srun may have the port by then. That srun aborts its step, although the step is
			// of another job (seen on 22.05).
			s.launcher = "mpirun"
		}
		if !f.early || f.long {
			s.seconds = 0
		}
		all = append(all, s)
	}
	return all
}

// ranks is a number of ranks: small in most cases, and sometimes as many as a GPU takes.
func ranks(r *rand.Rand, steps int) int {
	if steps == 1 && r.IntN(40) == 0 {
		return 20 + r.IntN(29)
	}
	return oneOf(r, 1, 1, 2, 2, 3, 4, 6)
}

func (j plannedJob) String() string {
	what := fmt.Sprintf("job %d: %s", j.number, j.gres())
	if j.tasks > 0 {
		what += fmt.Sprintf(", %d tasks", j.tasks)
	}
	for _, s := range j.steps {
		what += fmt.Sprintf(", %s of %d ranks with %d ms", s.launcher, s.ranks, s.ms)
	}
	return fmt.Sprintf("%s; %s after %v", what, j.fault.name, j.after)
}

// ranks is the number of ranks of a job, or of one task of an array.
func (j plannedJob) ranks() (all int) {
	for _, s := range j.steps {
		all += s.ranks
	}
	return all
}

// script is the batch script of the job. Each step prints into its own file in the folder. A job that was requeued
// has little work.
func (j plannedJob) script(folder, wrapper, client string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "out=%s/$SLURM_JOB_ID\n", folder)
	for n, s := range j.steps {
		work := fmt.Sprintf("-ms %d -for ${again:-%.2f}", s.ms, s.seconds)
		if s.seconds == 0 {
			work = fmt.Sprintf("-ms %d -for ${again:-%d}", s.ms, forLong)
			if !j.fault.long {
				work += " -exit-idle"
			}
		}
		// Each Open MPI has its own folder for temporary files. If two share a folder, one that ends may delete it
		// while the other needs it (seen on 4.1).
		fmt.Fprintf(&text, "mkdir -p $out.%d.tmp\nTMPDIR=$out.%d.tmp %s %s spin %s >>$out.%d 2>&1 &\n", n, n, s.launch(j, wrapper), client, work, n)
	}
	return "[ -z \"$SLURM_RESTART_COUNT\" ] || again=0.2\n" + text.String() + "wait\n"
}

// forLong is how many seconds ranks compute if they do not end by themselves. The soak ends them sooner.
const forLong = 300

// launch is the command line of a step, up to the program. The first rank of srun prints the step's number.
func (s step) launch(j plannedJob, wrapper string) string {
	switch s.launcher {
	case "mpirun":
		return fmt.Sprintf("mpirun.openmpi --bind-to none -np %d %s", s.ranks, wrapper)
	case "hydra":
		return fmt.Sprintf("mpiexec.hydra -n %d %s", s.ranks, wrapper)
	}
	return fmt.Sprintf(`srun --overlap --mpi=none %s -n%d sh -c '[ $SLURM_PROCID != 0 ] || echo step $SLURM_STEP_ID; exec "$@"' sh %s`,
		j.gres(), s.ranks, wrapper)
}
