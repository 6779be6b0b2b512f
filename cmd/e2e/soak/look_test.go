// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// judge checks what must be true after every job. If the job ended as planned, it also checks the result of the
// fault.
func (v *jobRun) judge(asMeant bool) {
	v.seeClients()
	v.judgeDrain()
	v.judgeClients()
	if !asMeant {
		return
	}
	switch v.fault.judged {
	case completes:
		v.judgeEnd()
	case othersLive:
		v.judgeNeighbours()
	}
}

// judgeDrain checks that the node is in service. If it is not, judgeDrain resumes it.
func (v *jobRun) judgeDrain() {
	if v.fault.alone {
		v.queue.fresh()
	}
	state := v.queue.node(v.name)
	if !out(state) {
		return
	}
	v.wrong(drained, state)
	v.abandon()
	must.Note(v.T, v.Resume(v.soak.Ctx, v.name))
	v.queue.fresh()
}

func out(state string) bool {
	return strings.HasPrefix(state, "drain") || strings.HasPrefix(state, "down") || strings.HasPrefix(state, "fail")
}

// judgeClients checks that every rank that computed was a client of a daemon of its job.
func (v *jobRun) judgeClients() {
	if v.fault.reboot { // the logs are lost in the reboot, and were read before
		return
	}
	for _, id := range v.ids {
		for n, output := range v.outputs(id) {
			for _, pid := range programs(output) {
				if !v.clients[pid] {
					v.wrong(outsideMPS, fmt.Sprintf("pid %d of job %d, step %d, is no client in its daemon's log\n%s", pid, id, n, v.printed()))
				}
			}
		}
	}
}

// judgeEnd checks that the job ended by itself and did all its work.
func (v *jobRun) judgeEnd() {
	for _, id := range v.ids {
		done := 0
		for _, output := range v.outputs(id) {
			done += strings.Count(output, " done kernels=")
		}
		if job := v.ended[id]; job.State != "COMPLETED" || done != v.ranks() {
			v.wrong(wrongEnd, fmt.Sprintf("job %d is %s, %d of %d ranks are done\n%s", id, job.State, done, v.ranks(), v.printed()))
		}
	}
}

// judgeNeighbours checks that the programs beside an ended rank ended by themselves.
func (v *jobRun) judgeNeighbours() {
	printed := strings.Join(v.outputs(v.id), "\n")
	for _, p := range v.beside {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^pid=%d done `, p.PID)).MatchString(printed) {
			v.wrong(lost, fmt.Sprintf("pid %d\n%s", p.PID, v.printed()))
		}
	}
	v.mutex.Lock()
	v.judged += len(v.beside)
	v.mutex.Unlock()
}

// empty checks that a node without jobs is as it was before any job.
func (n *soakNode) empty(last plannedJob) {
	strays := slices.DeleteFunc(n.testNode.Strays(), func(path string) bool { return strings.HasPrefix(path, "file "+n.testNode.Paths().Devices()+"/") })
	strangers := n.testNode.Strangers()
	found := slices.Concat(n.testNode.Leftovers(), n.testNode.Locks(), strays, strangers)
	if len(found) == 0 {
		return
	}
	n.wrong(last, left, fmt.Sprintf("on %s, after its last job: %q", n.name, found))
	n.testNode.KillLeft()
	n.testNode.Booted()
	for i := range e2e.GPUsOfANode {
		_ = n.testNode.Sim.Node.GPU(i).SetMode(0)
	}
}

// rootsLeft are root's processes of our programs after all jobs have ended. They get a moment to end.
func (s *soak) rootsLeft() (found []string) {
	bin := s.First().Bin
	e2e.Comes(func() bool {
		found = nil
		folders, _ := filepath.Glob("/proc/[0-9]*")
		for _, folder := range folders {
			pid, _ := strconv.Atoi(filepath.Base(folder))
			exe, _ := os.Readlink(folder + "/exe")
			line := commandLine(pid)
			taker := exe == filepath.Join(bin, "guard") && strings.HasSuffix(line, " --take ")
			if taker || strings.HasPrefix(exe, bin+"/") && strings.Contains(line, s.Top+"/") {
				found = append(found, fmt.Sprint(pid, " ", line))
			}
		}
		return len(found) == 0
	})
	return found
}

// report prints what the soak did, and adds it to the table of docs/limits.md.
func (s *soak) report(took time.Duration) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	jobs, wrong := 0, 0
	for _, n := range s.done {
		jobs += n
	}
	for _, n := range s.failed {
		wrong += n
	}
	summary := fmt.Sprintf("seed %d, %d of %d jobs, %d neighbours of cancelled and killed ranks, Slurm aborted steps of %d jobs. Found: %v. Faults: %v.",
		s.seed, jobs, s.planned, s.judged, s.mistaken, s.failed, s.done)
	if s.mistaken*100 > jobs+100 {
		s.T.Errorf("Slurm aborted steps of %d of %d jobs, more than expected", s.mistaken, jobs)
	}
	s.T.Logf("%d jobs in %v: %s", jobs, took.Round(time.Second), summary)
	e2e.Report(s.T, s.T.Name(), jobs, wrong, took, summary)
}
