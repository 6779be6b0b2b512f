// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ReadFile reads a file that the kernel writes, up to limit bytes. It does not use os.File, whose poller costs six
// system calls at the start of every rank.
func ReadFile(path string, limit int) ([]byte, error) {
	return readInto(make([]byte, 0, min(limit, 2048)), path, limit)
}

// readInto uses the room of content, and allocates nothing if the file fits.
func readInto(content []byte, path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	content, err = ReadOpen(content, fd, limit)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return content, nil
}

// ReadOpen reads an open file to its end, up to limit bytes. It uses the room of content, if that is enough.
func ReadOpen(content []byte, fd, limit int) ([]byte, error) {
	for len(content) < limit {
		if len(content) == cap(content) {
			content = append(content, 0)[:len(content)]
		}
		n, err := unix.Read(fd, content[len(content):min(cap(content), limit)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return content, err
		}
		content = content[:len(content)+n]
	}
	return content, nil
}

// Numbers parses lines of a name and a number, as in /proc/meminfo and in a control group's memory.stat:
//
//	MemTotal:       16265904 kB
//	file 4096
func Numbers(content []byte) map[string]uint64 {
	values := map[string]uint64{}
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) > 1 {
			if n, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
				values[strings.TrimSuffix(fields[0], ":")] = n
			}
		}
	}
	return values
}

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

// JobGroup is the name of a job's control group: the job's number, or its SLUID since Slurm 26.05, which is "s" and 13
// digits of Crockford's base 32.
var JobGroup = regexp.MustCompile(`^(?:job_([0-9]{1,10})|(s[0-9A-HJKMNP-TV-Z]{13}))$`)

// OfAJob reports whether Slurm made the group for a job. A slurmd that is no unit of systemd is in the scope of the step
// daemons, too, and so are our own groups.
func (g ControlGroup) OfAJob() bool {
	return slices.ContainsFunc(strings.Split(g.Path, "/"), JobGroup.MatchString)
}

// initialNamespaces are the names of the machine's own namespaces. Their numbers are constants of the kernel.
var initialNamespaces = map[string]string{"pid": "pid:[4026531836]", "user": "user:[4026531837]"}

// InOwnNamespace reports whether this process is in another namespace than the machine's own. The kind is "pid" or
// "user". A process outside of a pid namespace has no pid in it, and a user outside of a user namespace has no number
// in it.
func InOwnNamespace(kind string) bool {
	name, err := os.Readlink("/proc/self/ns/" + kind) // also if /proc shows the processes of another pid namespace
	return err == nil && name != initialNamespaces[kind]
}

// Namespace returns the kernel's name for a process's namespace of a kind, as in "mnt:[4026531841]".
func Namespace(pid int, kind string) (string, error) { return os.Readlink(Folder(pid) + "/ns/" + kind) }

// BootID returns the kernel's identifier of this boot.
func BootID() (string, error) {
	content, err := ReadFile("/proc/sys/kernel/random/boot_id", 64)
	if err != nil {
		return "", fmt.Errorf("cannot read boot id: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}

// NodeMemory returns the node's memory and its used part, in bytes.
func NodeMemory() (total, used uint64, ok bool) {
	content, err := ReadFile("/proc/meminfo", 16<<10)
	if err != nil {
		return 0, 0, false
	}
	values := Numbers(content)
	total, left := values["MemTotal"]<<10, values["MemAvailable"]<<10
	return total, total - min(total, left), total > 0 && left > 0
}
