// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// judge checks what must be true after every job. If the job ended as planned, it also checks the result of the
// fault.
func (v *jobRun) judge(asMeant bool) {
	v.seeClients()
	v.judgeDrain()
	for _, what := range v.leftOf() {
		v.wrong(left, what)
	}
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

// judgeDrain checks that the node is in service. If it is not, judgeDrain repairs it, as an admin would.
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
	for _, id := range v.ids {
		if out, err := v.onNode(v.testNode.Command("epilog"), "SLURM_SCRIPT_CONTEXT=epilog_slurmd", fmt.Sprintf("SLURM_JOB_ID=%d", id)); err != nil {
			v.wrong(left, fmt.Sprintf("the epilog that an admin runs again: %v: %s", err, out))
		}
	}
	if err := v.Resume(v.soak.Ctx, v.name); err != nil {
		v.T.Error(err)
	}
	v.queue.fresh()
}

func out(state string) bool {
	return strings.HasPrefix(state, "drain") || strings.HasPrefix(state, "down") || strings.HasPrefix(state, "fail")
}

// leftOf returns what is left of the jobs. It does not wait, because Slurm has reported that the epilog has run.
func (v *jobRun) leftOf() []string {
	var found []string
	for _, id := range v.ids {
		found = append(found, v.soakNode.stateOf(id)...)
		found = append(found, v.soakNode.processesOf(id)...)
	}
	return append(found, v.soakNode.modesWithoutClaim()...)
}

// stateOf returns the files of a job in the state folder. Their name or content has the job's number.
func (n *soakNode) stateOf(id int) []string {
	var found []string
	name := regexp.MustCompile(fmt.Sprintf(`(^|\D)%d(\D|$)`, id))
	_ = filepath.WalkDir(n.testNode.Paths().Run(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // the file is gone
		}
		if strings.Contains(path, "/lost-reports/") {
			return nil // the note that a slow disk did not take the report stays for mpsctl
		}
		content := []byte{}
		if strings.Contains(path, "/claims/") {
			content, _ = os.ReadFile(path)
		}
		if name.MatchString(entry.Name()) && !strings.HasPrefix(entry.Name(), "GPU-") || bytes.Contains(content, fmt.Appendf(nil, `"job":%d}`, id)) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// processesOf returns the living processes of a job: its daemons, servers and ranks.
func (n *soakNode) processesOf(id int) []string {
	dir := filepath.Join(n.testNode.Paths().Run(), "jobs", strconv.Itoa(id)) + "/"
	var found []string
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		environment, _ := os.ReadFile(folder + "/environ")
		if !bytes.Contains(environment, []byte("="+dir)) && !hasVariable(environment, fmt.Sprintf("SLURM_JOB_ID=%d", id), n.testNode) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(folder))
		if stat, err := lab.ReadStat(pid); err == nil && stat.Running() {
			found = append(found, fmt.Sprintf("process %d %s", pid, commandLine(pid)))
		}
	}
	return found
}

// hasVariable reports whether an environment has a line and belongs to a process of this cluster. Other clusters use
// the same job numbers.
func hasVariable(environment []byte, line string, p e2e.Node) bool {
	return slices.ContainsFunc(bytes.Split(environment, []byte{0}), func(has []byte) bool { return string(has) == line }) &&
		bytes.Contains(environment, []byte(filepath.Dir(filepath.Dir(p.Root))+"/"))
}

// modesWithoutClaim are the GPUs without a claim that are not in their default mode. A wrong GPU is checked again,
// because other jobs start and end at the same time.
func (n *soakNode) modesWithoutClaim() []string {
	var found []string
	for i := range e2e.GPUsOfANode {
		claim := filepath.Join(n.testNode.Paths().Run(), "claims", string(n.testNode.UUID(i)))
		wrong := func() bool {
			_, before := os.Lstat(claim)
			mode, err := n.testNode.Sim.Node.GPU(i).Mode()
			_, after := os.Lstat(claim)
			return err != nil || mode != 0 && before != nil && after != nil
		}
		for tries := 0; wrong(); tries++ {
			if tries == 10 {
				found = append(found, fmt.Sprintf("GPU %d of %s has another mode and no claim", i, n.name))
				break
			}
			wait.Sleep(n.Ctx, 5*time.Millisecond)
		}
	}
	return found
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

// onNode runs a program as root of a node. The node has its own boot id, which is not the machine's.
func (n *soakNode) onNode(line []string, environment ...string) (string, error) {
	slurmd, err := n.NodeProc(n.name)
	if err != nil {
		return "", err
	}
	line = append([]string{"--mount", "--uts", "-t", strconv.Itoa(slurmd.PID), "--"}, line...)
	cmd := exec.CommandContext(n.Ctx, "nsenter", line...)
	cmd.Env = environment
	text, err := cmd.CombinedOutput()
	return string(text), err
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
