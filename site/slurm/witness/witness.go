// SPDX-License-Identifier: Apache-2.0

// Package witness finds the step of a process by what Slurm has done on the node, and not by the environment, which a
// job inherits from its submitter. It links little, because each rank uses it.
package witness

import (
	"cmp"
	"context"
	"iter"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// maxAncestors is above the depth of any launcher's processes.
const maxAncestors = 64

// StepOf returns the step in which Slurm has put a process: a number, "batch", "interactive" or "extern". It is "" if
// nothing on this node shows it. first is the first process of the task, SLURM_TASK_PID, or 0. It is asked if the
// process has been left behind by its parent.
//
// The control group counts first. Without one, the nearest step daemon above the process counts. It is root's, and its
// title names the step. Slurm 22.05.8 sets the title before it starts the TaskProlog.
func StepOf(pid, first int) string {
	if groups, err := proc.GroupsOf(pid); err == nil {
		if step := stepOfGroups(groups); step != "" {
			return step
		}
	}
	if step := stepAbove(pid); step != "" || first <= 0 || first == pid {
		return step
	}
	return stepAbove(first)
}

// RankOf is slurm.RankOf for a running process, whose environment may be its job's submitter's.
func RankOf(pid int, env slurm.Env) (rank int, step string) {
	first, _ := strconv.Atoi(env["SLURM_TASK_PID"])
	return slurm.RankOf(env.Witnessed(StepOf(pid, first)))
}

// stepOfGroups returns the step of a process's control groups: …/slurm/uid_U/job_N/step_S/… with version 1, and
// …/slurmstepd.scope/job_N/step_S/… with version 2, since 26.05 with the job's SLUID in place of job_N.
func stepOfGroups(groups []proc.ControlGroup) string {
	for element := range SlurmsGroups(groups) {
		if step, ok := strings.CutPrefix(element, "step_"); ok && isStep(step) {
			return step
		}
	}
	return ""
}

// SlurmsGroups yields the names of the control groups that Slurm has made for a process: those below the first whose
// name contains "slurm". A group below /user.slice does not count, because users make such groups themselves.
func SlurmsGroups(groups []proc.ControlGroup) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, group := range groups {
			if strings.HasPrefix(group.Path, "/user.slice/") {
				continue
			}
			ofSlurm := false
			for element := range strings.SplitSeq(group.Path, "/") {
				if ofSlurm && !yield(element) {
					return
				}
				ofSlurm = ofSlurm || strings.Contains(element, "slurm")
			}
		}
	}
}

// JobsOf returns the jobs in whose control groups Slurm has put a process, each by its number or by its SLUID. The groups
// are …/slurm/uid_U/job_N/…, …/slurmstepd.scope/job_N/… and …/slurmstepd.scope/sXXXXXXXXXXXXX/…. They have a node's
// name in them if a machine runs several slurmd.
func JobsOf(groups []proc.ControlGroup) (jobs []string) {
	for element := range SlurmsGroups(groups) {
		if match := proc.JobGroup.FindStringSubmatch(element); match != nil {
			jobs = append(jobs, cmp.Or(match[1], match[2]))
		}
	}
	return jobs
}

// IsStepDaemon reports whether a process is a step daemon of Slurm's. A user's process can have any name, and
// slurmstepd's child before its exec is the user's: only root's processes count.
func IsStepDaemon(pid int) bool {
	if name, err := proc.Name(pid); err != nil || !strings.HasPrefix(name, "slurmstepd") {
		return false
	}
	uids, err := proc.UIDs(pid)
	return err == nil && uids[0] == 0
}

// stepAbove returns the step of the nearest step daemon that has started a process.
func stepAbove(pid int) string {
	for range maxAncestors {
		stat, err := proc.ReadStat(pid)
		if err != nil || stat.Parent <= 1 {
			return ""
		}
		pid = stat.Parent
		if !IsStepDaemon(pid) {
			continue
		}
		line := proc.CommandLines(context.Background(), []proc.Process{{PID: pid}})[0]
		if line.Err != nil || len(line.Args) == 0 {
			return ""
		}
		return stepOfTitle(line.Args[0])
	}
	return ""
}

// stepOfTitle reads "slurmstepd: [4711.batch]" and "slurmstepd: [4711.0]". A part of a heterogeneous step is
// "[4711+1.0]". A title that was cut, because it had too little room, names no step.
func stepOfTitle(title string) string {
	inside, ok := strings.CutPrefix(title, "slurmstepd: [")
	name, _, closed := strings.Cut(inside, "]")
	_, step, dotted := strings.Cut(name, ".")
	if !ok || !closed || !dotted || !isStep(step) {
		return ""
	}
	return step
}

func isStep(step string) bool {
	switch step {
	case "batch", "interactive", "extern":
		return true
	}
	return step != "" && strings.Trim(step, "0123456789") == ""
}
