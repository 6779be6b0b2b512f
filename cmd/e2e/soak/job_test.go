// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// soakNode is a node of a soak, with the jobs of the plan that run on it.
type soakNode struct {
	*soak
	name     string
	testNode e2e.Node
	work     chan plannedJob

	nodeMutex  sync.Mutex
	inProgress int // jobs of the plan that are in progress
}

// jobLimit is the time limit of one job of the plan. The job may wait for the GPUs of other jobs. The slowest of
// these keep their GPUs for half a minute, because Slurm ends them by their time limit.
const jobLimit = 5 * time.Minute

// tooMany is the number of failures after which the soak stops, because further failures tell nothing new.
const tooMany = 20

func (n *soakNode) run() {
	for j := range n.work {
		if n.failedTooOften() {
			continue
		}
		n.nodeMutex.Lock()
		n.inProgress++
		n.nodeMutex.Unlock()
		n.try(j)
		n.nodeMutex.Lock()
		if n.inProgress--; n.inProgress == 0 {
			n.empty(j)
		}
		n.nodeMutex.Unlock()
	}
}

// jobRun is a job of the plan that is in progress.
type jobRun struct {
	*soakNode
	plannedJob
	ctx     context.Context
	array   int              // the number that sbatch printed
	id      int              // of the job, or of the first task of an array that computes
	ids     []int            // the numbers of all its jobs
	clients map[int]bool     // pids that were clients of a daemon of the job
	running [][]proc.Process // programs that compute when the fault is done, by step
	beside  []proc.Process   // programs among them that the fault must not harm
	faulty  int              // how many failures were found
	ended   map[int]lab.Job  // each job as Slurm reports it at the end
}

// try runs one job of the plan.
func (n *soakNode) try(j plannedJob) {
	ctx, cancel := context.WithTimeout(n.Ctx, jobLimit)
	defer cancel()
	v := &jobRun{soakNode: n, plannedJob: j, ctx: ctx, clients: map[int]bool{}, ended: map[int]lab.Job{}}
	err := v.submit()
	for _, next := range []func() error{v.waitAndInject, v.finish, v.over} {
		if err == nil {
			err = next()
		}
	}
	mistaken := v.abortedByMistake(err)
	if err != nil {
		v.abandon()
	}
	if err != nil && !mistaken {
		v.wrong(wrongEnd, err.Error())
	}
	v.judge(err == nil && !mistaken)
	n.mutex.Lock()
	if mistaken {
		n.mistaken++
	}
	n.done[j.fault.name]++
	n.mutex.Unlock()
	v.tidy()
}

// aborted is what srun prints when Slurm tells it that its job has ended.
const aborted = "srun: Job step aborted"

// errAborted is the error of a job if its srun has printed this line before the fault.
var errAborted = errors.New("Slurm has aborted a step before the fault")

// abortedByMistake reports whether Slurm aborted a step by mistake. If the srun of a job has died, slurmctld still
// sends a message to its port at the end of the job. On a real cluster that port is on the job's own node. Here all
// nodes have one address, so the srun of another job may have the port by then. That srun aborts its step (seen on
// 22.05, 12 ms after the end of the other job).
func (v *jobRun) abortedByMistake(err error) bool {
	if errors.Is(err, errAborted) {
		return true
	}
	return err == nil && v.fault.judged == completes && strings.Contains(v.printed(), aborted)
}

// title is the job's name for Slurm.
func (v *jobRun) title() string { return fmt.Sprintf("soak%d", v.number) }

func (v *jobRun) submit() error {
	script := filepath.Join(v.folder, v.title()+".sh")
	text := "#!/bin/bash\nexport LD_LIBRARY_PATH=" + v.testNode.Sim.Libraries() + "\n" +
		v.script(v.folder, filepath.Join(v.Top, "mpirun-wrap"), v.testNode.Sim.Program("cuda-client"))
	if err := node.WriteProgram(script, []byte(text)); err != nil {
		return err
	}
	args := []string{"--constraint=mps", "-J", v.title(), "-w", v.name, fmt.Sprintf("-n%d", v.ranks()), v.gres(),
		"--requeue", "--open-mode=append", "-o", filepath.Join(v.folder, v.title()+".out")}
	if v.tasks > 0 {
		args = append(args, fmt.Sprintf("--array=1-%d", v.tasks))
	}
	if v.fault.reboot && v.stays {
		args = append(args, "--no-requeue")
	}
	id, err := v.Submit(v.ctx, v.User, append(args, script)...)
	v.array, v.id, v.ids = id, id, []int{id}
	return err
}

// until waits until a condition is true. It polls, so the condition must be cheap to check.
func (v *jobRun) until(what string, is func() bool) error {
	for !is() {
		if !wait.Sleep(v.ctx, 40*time.Millisecond) {
			return fmt.Errorf("%s: the wait took too long; Slurm has %s", what, v.states())
		}
	}
	return nil
}

// states describes the jobs and their node as Slurm reports them. If slurmd is gone, states adds that.
func (v *jobRun) states() string {
	jobs, _ := v.queue.of(v.title())
	var all []string
	for _, j := range jobs {
		all = append(all, fmt.Sprintf("%d %s %s", j.ID, j.State, j.Reason))
	}
	slices.Sort(all)
	text := fmt.Sprintf("%q, node %s %s", all, v.name, v.queue.node(v.name))
	if _, err := v.NodeProc(v.name); err != nil {
		text += ", " + err.Error()
	}
	return text
}

// outputs are the outputs of the ranks of a job, by step.
func (v *jobRun) outputs(id int) []string {
	all := make([]string, len(v.steps))
	for n := range v.steps {
		content, _ := os.ReadFile(filepath.Join(v.folder, fmt.Sprintf("%d.%d", id, n)))
		all[n] = string(content)
	}
	return all
}

var readyLine = regexp.MustCompile(`(?m)^pid=(\d+) ready `)

// programs are the pids of the ranks of a step that have printed that they compute.
func programs(output string) []int {
	var pids []int
	for _, m := range readyLine.FindAllStringSubmatch(output, -1) {
		pid, _ := strconv.Atoi(m[1])
		pids = append(pids, pid)
	}
	return pids
}

// compute waits until every rank of the job computes. If the job ends before, compute returns an error.
func (v *jobRun) compute() error {
	gone := false
	err := v.until("the ranks compute", func() bool {
		jobs, _ := v.queue.of(v.title())
		for _, id := range append([]int{v.id}, ids(jobs)...) { // of an array, any task is enough
			ready := 0
			for _, output := range v.outputs(id) {
				ready += len(programs(output))
			}
			if ready >= v.ranks() {
				v.id, v.ids = id, []int{id}
				return true
			}
		}
		gone = v.isOver()
		return gone || strings.Contains(v.printed(), aborted)
	})
	if err == nil && strings.Contains(v.printed(), aborted) {
		return errAborted
	}
	if err == nil && gone {
		err = fmt.Errorf("the job is over before its ranks computed: %s", v.states())
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, v.printed())
	}
	v.seeClients()
	v.running = make([][]proc.Process, len(v.steps))
	for n, output := range v.outputs(v.id) {
		for _, pid := range programs(output) {
			if stat, err := lab.ReadStat(pid); err == nil {
				v.running[n] = append(v.running[n], stat.Process)
			}
		}
	}
	return nil
}

func ids(jobs []lab.Job) []int {
	var all []int
	for _, j := range jobs {
		all = append(all, j.ID)
	}
	return all
}

// printed returns what the batch script and the ranks of the jobs have printed.
func (v *jobRun) printed() string {
	batch, _ := os.ReadFile(filepath.Join(v.folder, v.title()+".out"))
	text := string(batch)
	for _, id := range v.ids {
		for n, output := range v.outputs(id) {
			text += fmt.Sprintf("--- job %d, step %d\n%s", id, n, output)
		}
	}
	return text
}

var newClient = regexp.MustCompile(`NEW CLIENT (\d+) `)

// seeClients reads from the logs of the job's daemons which processes were clients. It reads the logs of running
// jobs, and the logs that an epilog has kept.
func (v *jobRun) seeClients() {
	for _, id := range v.ids {
		live, _ := filepath.Glob(filepath.Join(v.testNode.Paths().Run(), "jobs", strconv.Itoa(id), "*", "log", "control.log"))
		kept, _ := filepath.Glob(filepath.Join(v.testNode.KeptLogs(), strconv.Itoa(id), "*", "control.log"))
		for _, path := range slices.Concat(live, kept) {
			content, _ := os.ReadFile(path)
			for _, m := range newClient.FindAllStringSubmatch(string(content), -1) {
				pid, _ := strconv.Atoi(m[1])
				v.clients[pid] = true
			}
		}
	}
}

// isOver reports whether all jobs have ended, with their epilogs, or are held because a prolog has failed. The tasks
// of an array that have not started are one pending job.
func (v *jobRun) isOver() bool {
	jobs, _ := v.queue.of(v.title())
	return len(jobs) > 0 && !slices.ContainsFunc(jobs, func(j lab.Job) bool { return !j.Over() && !j.Held() })
}

func (v *jobRun) over() error {
	err := v.until("the end of the job", v.isOver)
	jobs, _ := v.queue.of(v.title())
	v.ids = nil
	for _, j := range jobs {
		v.ended[j.ID] = j
		v.ids = append(v.ids, j.ID)
	}
	if len(v.ids) == 0 {
		v.ids = []int{v.id}
	}
	return err
}

// abandon ends a job that has failed, so that the node is free for the next job.
func (v *jobRun) abandon() {
	ctx, cancel := context.WithTimeout(v.soak.Ctx, 30*time.Second)
	defer cancel()
	saved := v.ctx
	defer func() { v.ctx = saved }()
	v.ctx = ctx
	_, _ = v.Run(ctx, lab.Root, "scancel", "--name="+v.title())
	_ = v.over()
}

func (v *jobRun) tidy() {
	v.queue.forget(v.title())
	paths, _ := filepath.Glob(filepath.Join(v.folder, v.title()+".*"))
	for _, id := range v.ids {
		more, _ := filepath.Glob(filepath.Join(v.folder, strconv.Itoa(id)+".*"))
		paths = append(paths, more...)
		paths = append(paths, filepath.Join(v.testNode.KeptLogs(), strconv.Itoa(id)))
	}
	var failed error
	for _, path := range paths {
		failed = errors.Join(failed, os.RemoveAll(path))
	}
	if failed != nil {
		v.T.Error(failed)
	}
}

// wrong records a failure, and prints how to repeat it.
func (s *soak) wrong(j plannedJob, what, detail string) {
	s.mutex.Lock()
	s.failed[what]++
	s.mutex.Unlock()
	s.T.Errorf("%s: %s\nseed %d, %v\nto repeat: SOAK_SEED=%d SOAK_ONLY=%d go test ./cmd/e2e/soak -run 'TestSoak$'", what, detail, s.seed, j, s.seed, j.number)
}

func (v *jobRun) wrong(what, detail string) {
	v.faulty++
	v.soak.wrong(v.plannedJob, what, fmt.Sprintf("%s\n%s", detail, v.loggedOf()))
}

// loggedOf is what prolog and epilog have logged about the jobs.
func (v *jobRun) loggedOf() string {
	var text strings.Builder
	for line := range strings.Lines(v.testNode.Log()) {
		for _, id := range v.ids {
			if strings.Contains(line, fmt.Sprintf(`"job":%d,`, id)) {
				text.WriteString(line)
			}
		}
	}
	return text.String()
}

func (s *soak) failedTooOften() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	all := 0
	for _, n := range s.failed {
		all += n
	}
	return all >= tooMany
}
