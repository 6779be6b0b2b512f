// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// queue is what Slurm reports of all jobs and nodes. One request serves the whole soak, because a request costs as
// much as a job.
type queue struct {
	soak   *soak
	ended  chan struct{}
	over   sync.WaitGroup
	mutex  sync.Mutex
	looks  int
	jobs   map[string]map[int]lab.Job // by the job's name
	states map[string]string          // of nodes, with the reason
	failed error                      // of the last request
}

// lookEvery is the time between two requests.
const lookEvery = 250 * time.Millisecond

func (s *soak) watch() *queue {
	q := &queue{soak: s, ended: make(chan struct{}), jobs: map[string]map[int]lab.Job{}, states: map[string]string{}}
	q.over.Go(func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			q.look()
			select {
			case <-q.ended:
				return
			case <-tick.C:
			}
		}
	})
	return q
}

func (q *queue) stop() { close(q.ended); q.over.Wait() }

// look asks Slurm once.
func (q *queue) look() {
	jobs, err := q.ask("squeue", "--noheader", "--states=all", "--format=%j|%A|%T|%r")
	var nodes [][]string
	if err == nil {
		nodes, err = q.ask("sinfo", "--noheader", "-N", "--format=%N|%T|%E")
	}
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if q.failed = err; err != nil {
		return
	}
	q.looks++
	for _, f := range jobs {
		id, err := strconv.Atoi(f[1])
		if err != nil {
			continue
		}
		if q.jobs[f[0]] == nil {
			q.jobs[f[0]] = map[int]lab.Job{}
		}
		q.jobs[f[0]][id] = lab.Job{ID: id, State: f[2], Reason: f[3], Fields: map[string]string{}}
	}
	for _, f := range nodes {
		q.states[f[0]] = f[1] + " " + f[2]
	}
}

func (q *queue) ask(command string, args ...string) ([][]string, error) {
	result, err := q.soak.Run(q.soak.Ctx, lab.Root, command, args...)
	if err != nil || result.Exit != 0 {
		return nil, fmt.Errorf("cannot ask %s: %d, %w: %s", command, result.Exit, err, result.Stderr)
	}
	var lines [][]string
	for line := range strings.Lines(result.Stdout) {
		if f := strings.SplitN(strings.TrimSpace(line), "|", 4); len(f) >= 3 {
			lines = append(lines, f)
		}
	}
	return lines, nil
}

// of returns the jobs of a name, and the number of requests so far.
func (q *queue) of(name string) (jobs []lab.Job, looks int) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	for _, j := range q.jobs[name] {
		jobs = append(jobs, j)
	}
	return jobs, q.looks
}

func (q *queue) forget(name string) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	delete(q.jobs, name)
}

func (q *queue) node(name string) string {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	return q.states[name]
}

// fresh waits until the queue has asked Slurm again, so that the answer is newer than the call.
func (q *queue) fresh() {
	_, before := q.of("")
	for now := before; now < before+2 && wait.Sleep(q.soak.Ctx, lookEvery/4); {
		_, now = q.of("")
	}
}
