// SPDX-License-Identifier: Apache-2.0

package proc

import "strings"

// ControlGroup is a line of /proc/PID/cgroup: the group of a process in one hierarchy.
type ControlGroup struct {
	Controllers string // "cpu,cpuacct" or "name=systemd"; "" in version 2
	Path        string // below the hierarchy's mount, "/system.slice/slurmd.service"
}

// ControlGroups parses the text of /proc/PID/cgroup. It skips lines of another form.
func ControlGroups(text string) (groups []ControlGroup) {
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
