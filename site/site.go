// SPDX-License-Identifier: Apache-2.0

// Package site holds the types that all packages share (devices, modes) and the node's paths and deadlines. All of them are values, and the package reads no environment variable.
package site

import (
	"errors"
	"strings"
)

// UUID identifies a device: "GPU-…" for a whole GPU, "MIG-…" for an instance. An index is not used, because Slurm,
// NVML, CUDA and MPS each number a node's GPUs in their own way (docs/contract.md, Identity).
type UUID string

// Valid reports whether u has the form of a device's UUID and is a safe file name.
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
	NUMA      int    `json:"numa"`       // the nearest NUMA node, -1 if unknown
	MIGMode   bool   `json:"mig_mode"`   // the GPU is divided into instances, and no job can use the whole GPU
}

// UUIDs returns those of devices, in their order.
func UUIDs(devices []Device) (all []UUID) {
	for _, device := range devices {
		all = append(all, device.UUID)
	}
	return all
}

// Client is a client process of an MPS server.
type Client struct {
	Server int // the server's pid
	PID    int
}

// These are the two states of a control daemon that fails. One failed question proves neither state. So these errors
// are returned only after the number of questions that the measurements require.
var (
	ErrDaemonDown = errors.New("the daemon does not serve")
	ErrNoAnswer   = errors.New("the daemon does not answer")
)

// ErrImpostors means that the daemon and all of its processes have ended, but other processes of the user look like
// the daemon's. They keep appearing, or they do not end.
var ErrImpostors = errors.New("the user has processes that only look like the daemon's")

// LeftInGroupError means that a control group is not empty, because no signal ends these processes.
type LeftInGroupError struct {
	PIDs []int
	Err  error
}

func (e *LeftInGroupError) Error() string { return e.Err.Error() }
func (e *LeftInGroupError) Unwrap() error { return e.Err }

// AsUserError is a failure or an invalid answer of a program that runs as the job's user. The cause may be the node
// or the user.
type AsUserError struct{ Err error }

func (e *AsUserError) Error() string { return e.Err.Error() }
func (e *AsUserError) Unwrap() error { return e.Err }
