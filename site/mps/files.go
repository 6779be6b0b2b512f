// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/slurm-mps/slurm-mps/policy"
)

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
