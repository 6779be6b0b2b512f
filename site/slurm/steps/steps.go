// SPDX-License-Identifier: Apache-2.0

// Package steps finds the jobs that have a step on this node.
package steps

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm/witness"
)

// Steps are the signs of Slurm that a job has a step on this node. No user can make a sign for another user's job,
// and one sign is enough. A job without a sign may run too, because an allocation without a step has no sign.
type Steps struct {
	jobs   map[uint32]string // by the job's number
	sluids map[string]string // by the job's SLUID
	cuts   []fragment
}

// fragment is the title of a step daemon without the job's whole number, because the title had too little room
// (recorded: five digits after /usr/sbin/slurmstepd).
type fragment struct {
	digits string
	pid    int
}

// Sign is the reason why a job runs, "" if there is no sign. The SLUID may be "". A title that was cut counts for
// each job whose number begins with its digits. It does not count if another sign names such a job.
func (s Steps) Sign(job uint32, sluid string) string {
	if sign := cmp.Or(s.jobs[job], s.sluids[sluid]); sign != "" {
		return sign
	}
	number := strconv.FormatUint(uint64(job), 10)
	for _, c := range s.cuts {
		if strings.HasPrefix(number, c.digits) && !s.hasSign(c.digits) {
			return fmt.Sprintf("slurmstepd pid %d may be its own: its title ends at %s", c.pid, c.digits)
		}
	}
	return ""
}

// hasSign reports whether a job whose number begins with these digits has a sign.
func (s Steps) hasSign(digits string) bool {
	for job := range s.jobs {
		if strings.HasPrefix(strconv.FormatUint(uint64(job), 10), digits) {
			return true
		}
	}
	return false
}

// Find looks for the signs: sockets of step daemons, their titles, and control groups of jobs.
func Find() (Steps, error) {
	s := Steps{jobs: map[uint32]string{}, sluids: map[string]string{}}
	sockets, err := os.Open("/proc/net/unix")
	if err != nil {
		return s, fmt.Errorf("cannot look for steps: %w", err)
	}
	defer sockets.Close()
	lines := bufio.NewScanner(sockets) // users may have millions of sockets
	for lines.Scan() {
		s.socket(lines.Text())
	}
	if err := lines.Err(); err != nil {
		return s, fmt.Errorf("cannot look for steps: %w", err)
	}
	processes, err := proc.PIDs()
	if err != nil {
		return s, err
	}
	for _, pid := range processes {
		s.group(pid)
		if err := s.title(pid); err != nil {
			return s, fmt.Errorf("cannot look for steps: title of pid %d: %w", pid, err)
		}
	}
	return s, nil
}

// stepSocket is SlurmdSpoolDir/NODE_JOB.STEP. A part of a heterogeneous step has one more number.
var stepSocket = regexp.MustCompile(`^/.*_([0-9]+)\.[0-9]+(\.[0-9]+)?$`)

// socket reads a line of /proc/net/unix. Every user can listen at such a path, so the file must belong to root.
func (s Steps) socket(line string) {
	path := line
	for range 7 { // address, references, protocol, flags, type, state, inode
		_, path, _ = strings.Cut(strings.TrimLeft(path, " "), " ")
	}
	if !strings.HasPrefix(path, "/") { // an abstract socket's name begins with @, and is not a path
		return
	}
	match := stepSocket.FindStringSubmatch(path)
	if match == nil {
		return
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket || info.Sys().(*syscall.Stat_t).Uid != 0 {
		return
	}
	s.note(match[1], "slurmstepd listens at "+path)
}

func (s Steps) note(number, sign string) {
	if job, err := strconv.ParseUint(number, 10, 32); err == nil && s.jobs[uint32(job)] == "" {
		s.jobs[uint32(job)] = sign
	}
}

// group reads the control group of a process, of version 1 or 2.
func (s Steps) group(pid int) {
	groups, err := proc.GroupsOf(pid)
	if err != nil {
		return
	}
	jobs := witness.JobsOf(groups)
	if len(jobs) == 0 {
		return
	}
	if status, err := proc.ReadStatus(pid); err == nil && status.Running() {
		sign := fmt.Sprintf("pid %d is in its control group", pid)
		s.note(jobs[0], sign)
		s.sluids[jobs[0]] = sign
	}
}

var stepTitle = regexp.MustCompile(`^slurmstepd: \[([0-9]+)(.?)`)

// title reads how a step daemon names itself.
func (s *Steps) title(pid int) error {
	if !witness.IsStepDaemon(pid) {
		return nil
	}
	line := proc.CommandLines(context.Background(), []proc.Process{{PID: pid}})[0]
	if errors.Is(line.Err, proc.ErrLate) {
		return line.Err
	}
	match := stepTitle.FindStringSubmatch(line.Args[0])
	switch {
	case match == nil:
	case match[2] != "" && strings.Contains(".+:", match[2]): // ":namespace" is the process that keeps a job's namespaces
		s.note(match[1], fmt.Sprintf("slurmstepd pid %d", pid))
	default:
		s.cuts = append(s.cuts, fragment{match[1], pid})
	}
	return nil
}

// ProcessOf finds a process of a user that was started in a job. It proves no step, because a process that the job
// has left behind has the same variable.
func ProcessOf(job, uid uint32) int {
	pids, _ := proc.PIDs()
	var procs []proc.Process
	for _, pid := range pids {
		if uids, err := proc.UIDs(pid); err == nil && uids[0] == uid {
			procs = append(procs, proc.Process{PID: pid})
		}
	}
	const variable = "SLURM_JOB_ID"
	for i, environment := range proc.Environments(context.Background(), procs, variable) {
		if environment.Values[variable] == strconv.FormatUint(uint64(job), 10) {
			return procs[i].PID
		}
	}
	return 0
}
