// SPDX-License-Identifier: Apache-2.0

// Package site is this place: the words for what a node has (devices, modes, processes) and the paths and deadlines
// that hold on it. Everything here is a value; nothing is read from the environment.
package site

import (
	"errors"
	"fmt"
	"strings"
)

// UUID names a device itself: "GPU-…" for a whole GPU, "MIG-…" for an instance. Never an index: every index on a GPU
// node means something else to Slurm, to NVML, to CUDA and to MPS (docs/contract.md, Identity).
type UUID string

// Valid reports whether u has the form of a device's UUID, safe to use as the name of a file.
func (u UUID) Valid() bool {
	rest, ok := strings.CutPrefix(string(u), "GPU-")
	if !ok {
		rest, ok = strings.CutPrefix(string(u), "MIG-")
	}
	if !ok || rest == "" || len(rest) > 80 {
		return false
	}
	return strings.Trim(rest, "0123456789abcdefABCDEF-") == ""
}

// MIG reports whether u names a MIG instance.
func (u UUID) MIG() bool { return strings.HasPrefix(string(u), "MIG-") }

// Mode is a GPU's compute mode.
type Mode string

// The four compute modes of NVML (nvmlComputeMode_t 0 to 3).
const (
	ModeDefault          Mode = "default"
	ModeExclusiveThread  Mode = "exclusive_thread" // gone since CUDA 8; a device may still report it
	ModeProhibited       Mode = "prohibited"
	ModeExclusiveProcess Mode = "exclusive_process"
)

// Device is a GPU, or a MIG instance, as found on the node.
type Device struct {
	UUID      UUID   `json:"uuid"`
	Name      string `json:"name"`       // the product's name, "NVIDIA H200"
	Minor     int    `json:"minor"`      // N of /dev/nvidiaN; of the parent for a MIG instance
	BusID     string `json:"bus_id"`     // PCI, "00000000:3B:00.0"; of the parent for a MIG instance
	SMs       int    `json:"sms"`        // multiprocessors that a process may use
	TPC       int    `json:"tpc"`        // SMs in a TPC, the granularity of MPS's shares
	MemoryMiB int    `json:"memory_mib"` // total
	NUMA      int    `json:"numa"`       // node nearest to it, -1 where not known
	MIGMode   bool   `json:"mig_mode"`   // a whole GPU that is cut into instances: no job can use it whole
}

// Process is a process proved by more than its number: pids are used again, a pid with its start time is not.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // field 22 of /proc/PID/stat, in clock ticks since the boot
}

// String is "pid 123".
func (p Process) String() string { return fmt.Sprintf("pid %d", p.PID) }

// Client is a process that an MPS server serves.
type Client struct {
	Server int // the server's pid
	PID    int
}

// What a control daemon can be other than serving. One failed question says nothing about its health, so both come only
// after the tries that mps.md's measurements call for.
var (
	ErrDaemonDown = errors.New("the daemon does not serve")
	ErrNoAnswer   = errors.New("the daemon does not answer")
)

// ErrImpostors means that a daemon and all that it started have been ended, and that processes which only look like them go
// on to appear, or do not go.
var ErrImpostors = errors.New("the user has processes that only look like the daemon's")

// AsUserError is a failure of what runs as a job's user, or of its words: the node may have failed, and the user may have a
// hand in it.
type AsUserError struct{ Err error }

func (e *AsUserError) Error() string { return e.Err.Error() }
func (e *AsUserError) Unwrap() error { return e.Err }
