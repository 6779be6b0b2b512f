// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"strings"
)

// ControlGroup is a line of /proc/PID/cgroup: the group of a process in one hierarchy.
type ControlGroup struct {
	Controllers string // "cpu,cpuacct" or "name=systemd"; "" in version 2
	Path        string // below the hierarchy's mount, "/system.slice/slurmd.service"
}

// GroupsOf returns the control groups of a process, from /proc/PID/cgroup.
func GroupsOf(pid int) ([]ControlGroup, error) {
	content, err := ReadFile(Folder(pid)+"/cgroup", 16<<10)
	if err != nil {
		return nil, fmt.Errorf("cannot see control group of pid %d: %w", pid, err)
	}
	return ParseGroups(string(content)), nil
}

// ParseGroups parses the text of /proc/PID/cgroup, and skips lines of another form:
//
//	4:memory:/slurm/uid_1000/job_7/step_0
//	0::/system.slice/slurmd.service
func ParseGroups(text string) (groups []ControlGroup) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3) // hierarchy, controllers, path
		if len(fields) == 3 && strings.HasPrefix(fields[2], "/") {
			groups = append(groups, ControlGroup{fields[1], fields[2]})
		}
	}
	return groups
}

// OfAJob reports whether Slurm made the group for a job, or for the jobs' slurmstepd processes.
func (g ControlGroup) OfAJob() bool {
	return strings.Contains(g.Path, "/job_") || strings.Contains(g.Path, "slurmstepd")
}
