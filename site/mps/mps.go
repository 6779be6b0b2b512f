// SPDX-License-Identifier: Apache-2.0

// Package mps starts, asks and ends NVIDIA's MPS control daemon. It starts the control program as the job's user.
//
// Nothing here waits without a deadline, runs as root below a folder that the user owns, or ends a process that was
// not proved to be the daemon's. The control program's output decides, because its exit code is 0 for most errors
// (measured).
package mps

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/policy"
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

// maxSocketPath is one byte less than sockaddr_un's path with its final NUL takes. The control program refuses a path of
// 107 bytes (an H200's, driver 580): it exits with 1 and prints nothing.
const maxSocketPath = 106

// CheckPath refuses a pipe folder if the paths of its sockets would be too long.
func CheckPath(pipeDir string) error {
	longest := filepath.Join(pipeDir, "control_privileged")
	if len(longest) > maxSocketPath {
		return fmt.Errorf("cannot use pipe folder %s: %s has %d bytes, and a socket's path has at most %d: use a shorter "+
			"root", pipeDir, longest, len(longest), maxSocketPath)
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
	for _, uuid := range devices {
		list += "," + string(uuid)
	}
	return strings.TrimPrefix(list, ",")
}

// EnoughFiles is the RLIMIT_NOFILE that NVIDIA asks for. With 1024, none of 48 clients finished (measured).
const EnoughFiles = 16384

// The files that a simulated server opens. 1024 were too few for 48 clients, and 20,000 were enough (measured).
const (
	serverFiles  = 40
	contextFiles = 80 // for a client on a device
)

// Clients returns how many clients fit on each device of a daemon with this limit of open files, if MPS serves so
// many.
func Clients(files uint64, devices int) int {
	switch {
	case files >= EnoughFiles:
		return policy.MaxClients
	case files < serverFiles:
		return 0
	}
	return min(int(files-serverFiles)/contextFiles/devices, policy.MaxClients)
}

// Fit returns how many clients fit on each device of a daemon with this number of devices. The limit is the number of
// files that this process may let the daemon open. It is an error if no client fits.
func (c ControlProgram) Fit(devices int) (int, error) {
	files, err := raiseFiles()
	if err != nil {
		return 0, err
	}
	clients := Clients(files, devices)
	if clients == 0 {
		return 0, fmt.Errorf("cannot start a control daemon of %d GPUs: its limit of open files is %d, too few for one "+
			"client on each: set LimitNOFILE=131072 in slurmd.service and restart slurmd", devices, files)
	}
	return clients, nil
}

// raiseFiles raises the limit of open files to a daemon's needs, or as far as this process may, and returns it.
func raiseFiles() (uint64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("cannot read RLIMIT_NOFILE: %w", err)
	}
	want := syscall.Rlimit{Cur: max(limit.Cur, EnoughFiles), Max: max(limit.Max, EnoughFiles)}
	// This is syscall's call, not unix's, because Go then takes the limit for its own and does not reset it.
	err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want)
	if errors.Is(err, syscall.EPERM) { // without CAP_SYS_RESOURCE the hard limit stays
		want = syscall.Rlimit{Cur: limit.Max, Max: limit.Max}
		err = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot set RLIMIT_NOFILE to %d: %w", want.Cur, err)
	}
	return want.Cur, nil
}
