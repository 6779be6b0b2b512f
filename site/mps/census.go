package mps

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site"
)

// Role is what a process of MPS does.
type Role string

// A control daemon, a server, and the control program while it asks something.
const (
	RoleDaemon Role = "daemon"
	RoleServer Role = "server"
	RoleAsking Role = "asking"
)

// Process is one that bears the name of MPS's programs, whoever's it is.
type Process struct {
	site.Proc
	UID     uint32
	Parent  int
	Role    Role
	PipeDir string // "" where Err is set, or the process has the default
	Err     error  // why its folder is not known: another user's process is root's to read
}

// Census finds every process of MPS on the node in one pass. What users can make a reader wait for, the memory of their
// processes, is read by the function given: "environ" and "cmdline" of a process, under a deadline of its own.
func Census(read func(site.Proc, string) ([]byte, error)) ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	var all []Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !named(pid) {
			continue
		}
		if p, ok := describe(pid, read); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

func named(pid int) bool {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && strings.HasPrefix(string(name), comm)
}

func describe(pid int, read func(site.Proc, string) ([]byte, error)) (Process, bool) {
	stat, err := site.ReadStat(pid)
	if err != nil || !stat.Proc.Alive() {
		return Process{}, false
	}
	uid, err := Owner(pid)
	if err != nil {
		return Process{}, false
	}
	p := Process{Proc: stat.Proc, UID: uid, Parent: stat.Parent}
	line, err := read(p.Proc, "cmdline")
	if err != nil {
		p.Err = err
	}
	p.Role = roleOf(program(pid), strings.Split(strings.TrimRight(string(line), "\x00"), "\x00"))
	environment, err := read(p.Proc, "environ")
	if err != nil {
		p.Err = err
	}
	p.PipeDir = value(environment, "CUDA_MPS_PIPE_DIRECTORY")
	return p, p.Proc.Alive() // read again behind the rest, so that all of it is about one process
}

// Owner is the real uid of a process. The owner of its folder in /proc is root's for one that may not be dumped.
func Owner(pid int) (uint32, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("cannot read owner of pid %d: %w", pid, err)
	}
	for line := range bytes.Lines(content) {
		if fields := strings.Fields(string(line)); len(fields) > 1 && fields[0] == "Uid:" {
			uid, err := strconv.ParseUint(fields[1], 10, 32)
			return uint32(uid), err
		}
	}
	return 0, fmt.Errorf("cannot read owner of pid %d: its status names none", pid)
}

// program is the file that a process runs, "" where that is not ours to know.
func program(pid int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return filepath.Base(strings.TrimSuffix(path, " (deleted)"))
}

// roleOf tells daemon and server apart, which bear one name: by the file that runs, else by what was typed.
func roleOf(file string, line []string) Role {
	if file == "." && len(line) > 0 { // not readable
		file = filepath.Base(line[0])
	}
	switch {
	case strings.HasPrefix(file, "nvidia-cuda-mps-server"):
		return RoleServer
	case slices.Contains(line, "-d") || slices.Contains(line, "-f"):
		return RoleDaemon
	}
	return RoleAsking
}

// value is a variable of an environment; the first counts, as for getenv.
func value(environment []byte, name string) string {
	for entry := range bytes.SplitSeq(environment, []byte{0}) {
		if text, ok := strings.CutPrefix(string(entry), name+"="); ok {
			return text
		}
	}
	return ""
}

// GenuineServer reports whether a process of MPS is a server that a daemon started: its child, from a file that is root's
// own where that can be seen. A process can give itself the name, and not that.
func GenuineServer(p Process, daemon site.Proc) bool {
	if p.Role != RoleServer || p.Parent != daemon.PID || !daemon.Alive() {
		return false
	}
	info, err := os.Stat(fmt.Sprintf("/proc/%d/exe", p.PID))
	if err != nil {
		return true // not ours to see
	}
	return rootsOwn(info)
}

func rootsOwn(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0 && st.Mode&0o022 == 0
}
