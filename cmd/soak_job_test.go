// SPDX-License-Identifier: Apache-2.0

package cmd_test

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

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// berth is a node of a soak, with the errands that are done on it.
type berth struct {
	*soak
	name string
	play play
	work chan errand

	turn   sync.Mutex
	afloat int // errands that are being done
}

// errandLimit bounds one errand, whose job may wait for the GPUs of others: the slowest hold them for Slurm's half a
// minute of a time limit.
const errandLimit = 5 * time.Minute

// tooMany failures are enough: what comes after them tells nothing new.
const tooMany = 20

func (b *berth) run() {
	for e := range b.work {
		if b.hopeless() {
			continue
		}
		b.turn.Lock()
		b.afloat++
		b.turn.Unlock()
		b.try(e)
		b.turn.Lock()
		if b.afloat--; b.afloat == 0 {
			b.empty(e)
		}
		b.turn.Unlock()
	}
}

// voyage is an errand that is under way.
type voyage struct {
	*berth
	errand
	ctx     context.Context
	again   bool             // started again
	array   int              // the number that sbatch said
	id      int              // the job's, or of the task of an array that was first to compute
	ids     []int            // of all
	clients map[int]bool     // pids that a daemon of the job has had as clients
	running [][]site.Process // programs that compute when the fault is done, by step
	beside  []site.Process   // those of them that it must not harm
	late    bool             // what the fault was for had ended by then
	faulty  int              // what was found wrong
	ended   map[int]lab.Job  // as Slurm has it at the end
}

// try does an errand, and once more where a message of Slurm's to somebody else has ended a step of it.
func (b *berth) try(e errand) {
	if b.sail(e, false) {
		b.sail(e, true)
	}
}

func (b *berth) sail(e errand, again bool) (strayed bool) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(b.ctx, errandLimit)
	defer cancel()
	v := &voyage{berth: b, errand: e, again: again, ctx: ctx, clients: map[int]bool{}, ended: map[int]lab.Job{}}
	var err error
	if v.fault.name == "a policy that breaks and heals" {
		err = v.breakPolicy()
		defer func() {
			if err := v.mendPolicy(); err != nil {
				v.t.Error(err)
			}
		}()
	}
	if err == nil {
		err = v.submit()
	}
	if err == nil {
		err = v.befall()
	}
	if err == nil {
		err = v.finish()
	}
	if err == nil {
		err = v.over()
	}
	if !again && v.strayed(err) {
		v.abandon()
		v.tidy()
		b.mutex.Lock()
		defer b.mutex.Unlock()
		b.strays++
		fmt.Fprintf(b.raw, "%.1f\t%s\t%v\tbegun anew: Slurm aborted a step of it\n", time.Since(b.began).Seconds(), b.name, e)
		return true
	}
	if err != nil {
		v.wrong(wrongEnd, err.Error())
		v.abandon()
	}
	v.judge(err == nil)
	b.mutex.Lock()
	fmt.Fprintf(b.raw, "%.1f\t%s\t%v\t%v\t%s\t%d beside, late %v, wrong %d\n", time.Since(b.began).Seconds(), b.name, e, time.Since(began).Round(time.Millisecond),
		v.states(), len(v.beside), v.late, v.faulty)
	if v.late {
		b.late++
	}
	b.done[e.fault.name]++
	b.given += e.jobs()
	b.mutex.Unlock()
	v.tidy()
	return false
}

// aborted is what an srun says that Slurm tells of its job's end.
const aborted = "srun: Job step aborted"

// errAborted is an srun that was told so before anything has befallen its job.
var errAborted = errors.New("Slurm has aborted a step before the fault")

// strayed reports whether a step was aborted by mistake. When a job ends whose srun has died, slurmctld sends a message
// to srun's port. On a real cluster that port is on the job's own node. Here all nodes have one address, so the srun of
// another job may have the port by then and aborts its step (seen on 22.05, 12 ms after the other job's end).
func (v *voyage) strayed(err error) bool {
	if errors.Is(err, errAborted) {
		return true
	}
	return err == nil && v.fault.judged == completes && strings.Contains(v.said(), aborted)
}

// title is the job's name for Slurm. A job that is started again has another name, because Slurm still lists the first
// one.
func (v *voyage) title() string {
	if v.again {
		return fmt.Sprintf("soak%d-again", v.number)
	}
	return fmt.Sprintf("soak%d", v.number)
}

func (v *voyage) submit() error {
	script := filepath.Join(v.folder, v.title()+".sh")
	text := "#!/bin/bash\nexport LD_LIBRARY_PATH=" + v.play.Sim.Libraries() + "\n" +
		v.script(v.folder, filepath.Join(v.dir, "mpirun-wrap"), v.play.Sim.Program("cuda-client"))
	if err := node.WriteProgram(script, []byte(text)); err != nil {
		return err
	}
	args := []string{"--constraint=mps", "-J", v.title(), "-w", v.name, fmt.Sprintf("-n%d", v.ranks()), fmt.Sprintf("--gres=gpu:%d", v.gpus),
		"--requeue", "--open-mode=append", "-o", filepath.Join(v.folder, v.title()+".out")}
	if v.tasks > 0 {
		args = append(args, fmt.Sprintf("--array=1-%d", v.tasks))
	}
	if v.fault.name == "reboot" && v.ending == "cancelled" {
		args = append(args, "--no-requeue")
	}
	id, err := v.Submit(v.ctx, v.user, append(args, script)...)
	v.array, v.id, v.ids = id, id, []int{id}
	return err
}

// until polls what costs nothing to ask.
func (v *voyage) until(what string, is func() bool) error {
	for !is() {
		if !site.Sleep(v.ctx, 40*time.Millisecond) {
			return fmt.Errorf("%s: waited in vain; Slurm has %s", what, v.states())
		}
	}
	return nil
}

// states are the states of the errand's jobs, of its node, and of a slurmd that is gone.
func (v *voyage) states() string {
	jobs, _ := v.queue.of(v.title())
	var all []string
	for _, j := range jobs {
		all = append(all, fmt.Sprintf("%d %s %s", j.ID, j.State, j.Reason))
	}
	slices.Sort(all)
	said := fmt.Sprintf("%q, node %s %s", all, v.name, v.queue.node(v.name))
	if _, err := v.NodeProc(v.name); err != nil {
		said += ", " + err.Error()
	}
	return said
}

// outputs are what the ranks of a job have printed, by step.
func (v *voyage) outputs(id int) []string {
	all := make([]string, len(v.steps))
	for n := range v.steps {
		content, _ := os.ReadFile(filepath.Join(v.folder, fmt.Sprintf("%d.%d", id, n)))
		all[n] = string(content)
	}
	return all
}

var saysReady = regexp.MustCompile(`(?m)^pid=(\d+) ready `)

// programs are the pids of the ranks of a step that have said that they compute.
func programs(output string) []int {
	var pids []int
	for _, m := range saysReady.FindAllStringSubmatch(output, -1) {
		pid, _ := strconv.Atoi(m[1])
		pids = append(pids, pid)
	}
	return pids
}

// compute waits until every rank of the job computes. A job that is over by then is an error.
func (v *voyage) compute() error {
	gone := false
	err := v.until("the ranks compute", func() bool {
		jobs, _ := v.queue.of(v.title())
		for _, id := range append([]int{v.id}, ids(jobs)...) { // of an array any task will do
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
		return gone || strings.Contains(v.said(), aborted)
	})
	if err == nil && strings.Contains(v.said(), aborted) {
		return errAborted
	}
	if err == nil && gone {
		err = fmt.Errorf("the job is over before its ranks computed: %s", v.states())
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, v.said())
	}
	v.seeClients()
	v.running = make([][]site.Process, len(v.steps))
	for n, output := range v.outputs(v.id) {
		for _, pid := range programs(output) {
			if stat, err := site.ReadStat(pid); err == nil {
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

func (v *voyage) said() string {
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

// seeClients reads who was a client of the job's daemons, from their own logs: those of the job that runs, and those
// that its epilog has kept.
func (v *voyage) seeClients() {
	for _, id := range v.ids {
		live, _ := filepath.Glob(filepath.Join(v.play.Paths().Run(), "jobs", strconv.Itoa(id), "*", "log", "control.log"))
		kept, _ := filepath.Glob(filepath.Join(v.play.keptLogs(), strconv.Itoa(id), "*", "control.log"))
		for _, path := range slices.Concat(live, kept) {
			content, _ := os.ReadFile(path)
			for _, m := range newClient.FindAllStringSubmatch(string(content), -1) {
				pid, _ := strconv.Atoi(m[1])
				v.clients[pid] = true
			}
		}
	}
}

// isOver says whether all jobs of the errand have ended, epilogs included, or are held after a prolog that failed. What
// of an array has not started is one job that is pending.
func (v *voyage) isOver() bool {
	jobs, _ := v.queue.of(v.title())
	return len(jobs) > 0 && !slices.ContainsFunc(jobs, func(j lab.Job) bool { return !j.Over() && !j.Held() })
}

func (v *voyage) over() error {
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

// abandon ends a job that has gone wrong, so that the next one finds a node.
func (v *voyage) abandon() {
	ctx, cancel := context.WithTimeout(v.soak.ctx, 30*time.Second)
	defer cancel()
	saved := v.ctx
	defer func() { v.ctx = saved }()
	v.ctx = ctx
	_, _ = v.Run(ctx, lab.Root, "scancel", "--name="+v.title())
	_ = v.over()
}

func (v *voyage) tidy() {
	v.queue.forget(v.title())
	paths, _ := filepath.Glob(filepath.Join(v.folder, v.title()+".*"))
	for _, id := range v.ids {
		more, _ := filepath.Glob(filepath.Join(v.folder, strconv.Itoa(id)+".*"))
		paths = append(paths, more...)
		paths = append(paths, filepath.Join(v.play.keptLogs(), strconv.Itoa(id)))
	}
	var failed error
	for _, path := range paths {
		failed = errors.Join(failed, os.RemoveAll(path))
	}
	if failed != nil {
		v.t.Error(failed)
	}
}

// wrong writes down what is wrong, with how to see it again.
func (s *soak) wrong(e errand, what, detail string) {
	s.mutex.Lock()
	s.failed[what]++
	s.mutex.Unlock()
	s.t.Errorf("%s: %s\nseed %d, %v\nto repeat: SOAK_SEED=%d SOAK_ONLY=%d go test ./cmd -run 'TestSoak$'", what, detail, s.seed, e, s.seed, e.number)
}

func (v *voyage) wrong(what, detail string) {
	v.faulty++
	v.soak.wrong(v.errand, what, fmt.Sprintf("%s\n%s", detail, v.loggedOf()))
}

// loggedOf is what prolog and epilog have said of the errand's jobs.
func (v *voyage) loggedOf() string {
	var text strings.Builder
	for line := range strings.Lines(v.play.log()) {
		for _, id := range v.ids {
			if strings.Contains(line, fmt.Sprintf(`"job":%d,`, id)) {
				text.WriteString(line)
			}
		}
	}
	return text.String()
}

func (s *soak) hopeless() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	all := 0
	for _, n := range s.failed {
		all += n
	}
	return all >= tooMany
}
