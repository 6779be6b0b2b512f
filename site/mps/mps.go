// SPDX-License-Identifier: Apache-2.0

// Package mps starts, asks and ends NVIDIA's MPS control daemon. It starts the control program as the job's user.
//
// Nothing here waits without a deadline, runs as root below a folder that the user owns, or ends a process that was
// not proved to be the daemon's. The control program's output decides, because its exit code is 0 for most errors
// (measured).
package mps

import (
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// ControlProgram is the control program of a site.
type ControlProgram struct {
	Path        string // path of nvidia-cuda-mps-control
	LibraryPath string // LD_LIBRARY_PATH for it; "" for none
	// IgnoreSignals are the signals that the daemon and its servers ignore at their start.
	IgnoreSignals []syscall.Signal
	// AsIs starts it as the caller, also if that is root of a container, and not as the job's user.
	AsIs bool
}

// sunPath is the size of sockaddr_un's path with its final NUL. With a longer path the control program exits with 1
// and prints nothing (measured).
const sunPath = 108

// CheckPath refuses a pipe folder if the paths of its sockets would be too long.
func CheckPath(pipeDir string) error {
	longest := filepath.Join(pipeDir, "control_privileged")
	if len(longest) >= sunPath {
		return fmt.Errorf("cannot use pipe folder %s: %s has %d bytes, and a socket's path has at most %d: use a shorter "+
			"root", pipeDir, longest, len(longest), sunPath-1)
	}
	return nil
}

// environment is the complete environment of the control program. Nothing is inherited.
func (c ControlProgram) environment(d lease.Daemon) []string {
	env := []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"CUDA_MPS_PIPE_DIRECTORY=" + d.PipeDir,
		"CUDA_MPS_LOG_DIRECTORY=" + d.LogDir,
		"CUDA_VISIBLE_DEVICES=" + joined(d.Devices),
	}
	if c.LibraryPath != "" {
		env = append(env, "LD_LIBRARY_PATH="+c.LibraryPath)
	}
	return env
}

func joined(devices []site.UUID) string {
	list := ""
	for i, uuid := range devices {
		if i > 0 {
			list += ","
		}
		list += string(uuid)
	}
	return list
}
