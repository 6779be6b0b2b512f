// SPDX-License-Identifier: Apache-2.0

// Package lease is the memory: which job holds which devices, and what has to be undone for it. A record is written
// before the first effect that it names and forgotten after the last undo, so whoever dies in between leaves enough for
// the next one to finish.
//
// The promise: a file here is whole or absent, has one writer at a time, and means nothing after a reboot.
package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// Schema is the number of the form of the records below. A record of another number is never guessed at.
const Schema = 1

// What a record can be other than good. Each has one outcome, the same everywhere: none and void mean that there is
// nothing to undo; torn, foreign (site.ErrNotRootOwned) and unknown schema mean that a person must look, and the node drains.
var (
	ErrNotFound  = errors.New("no record")
	ErrStaleBoot = errors.New("record of another boot")
	ErrCorrupt   = errors.New("torn record")
	ErrSchema    = errors.New("record of an unknown schema")
)

// Lease says that a job holds devices, and all that has to be undone.
type Lease struct {
	Schema     int      `json:"schema"`
	Boot       string   `json:"boot"`
	Job        Job      `json:"job"`
	Phase      Phase    `json:"phase"`
	Rule       string   `json:"rule"`
	DrainGrace Duration `json:"drain_grace"`
	KeepLogs   string   `json:"keep_logs,omitempty"` // when the daemons' logs outlive the job; "" is never
	Hold       Duration `json:"hold,omitempty"`      // how long the guard holds files of the dead; 0: no guard
	// Request is what the policy was asked, for whoever asks it again: a policy.Request. No undo reads it.
	Request   json.RawMessage `json:"request,omitempty"`
	CreatedAt time.Time       `json:"created"`
	Held      []ClaimedGPU    `json:"claims"`
	Daemons   []Daemon        `json:"daemons"`
	// Guard holds driver files of the job's dead clients. It is zero from the intent to start it until it is known.
	Guard site.Process `json:"guard,omitzero"`
}

// Job is whose lease it is.
type Job struct {
	ID   uint32 `json:"id"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	User string `json:"user"`
	// Groups are all of the user's, looked up once: an epilog asks no directory service that may be down by then.
	Groups []uint32 `json:"groups,omitempty"`
}

// Phase says how far a lease has come.
type Phase string

// A lease is opening from its first write until its ticket is out, and closing from the epilog's first act.
const (
	Opening Phase = "opening"
	Opened  Phase = "open"
	Closing Phase = "closing"
)

// ClaimedGPU is a device with its compute mode before, and the one that was asked for; Set is empty where the mode was left
// alone.
type ClaimedGPU struct {
	UUID         site.UUID `json:"uuid"`
	Minor        int       `json:"minor"` // N of /dev/nvidiaN
	OriginalMode site.Mode `json:"original_mode,omitempty"`
	NewMode      site.Mode `json:"new_mode,omitempty"`
}

// Daemon is a control daemon of the job. Proc is zero from the intent to start it until it is known.
type Daemon struct {
	Devices []site.UUID  `json:"devices"`
	PipeDir string       `json:"pipe_dir"`
	LogDir  string       `json:"log_dir"`
	Group   string       `json:"group,omitempty"` // the folder of its control group; "" where it has none of its own
	Proc    site.Process `json:"proc"`
}

// Ticket is the part of a lease that its job may read.
type Ticket struct {
	Schema         int            `json:"schema"`
	Boot           string         `json:"boot"`
	Job            Job            `json:"job"`
	Rule           string         `json:"rule,omitempty"`
	RefusalReason  string         `json:"refused,omitempty"`         // why the job has no MPS; the rest is empty then
	RunWithoutMPS  bool           `json:"run_without_mps,omitempty"` // the site lets the job run where it cannot have MPS
	Scope          string         `json:"scope,omitempty"`
	Share          string         `json:"share,omitempty"`
	Overlap        float64        `json:"overlap,omitempty"`
	Ceiling        float64        `json:"ceiling,omitempty"` // percent
	Memory         string         `json:"memory,omitempty"`  // none, even or a size; with MemoryOverlap
	MemoryOverlap  float64        `json:"memory_overlap,omitempty"`
	LowPriority    bool           `json:"low_priority,omitempty"` // priority
	MaxClients     int            `json:"max_clients,omitempty"`  // ranks on one GPU
	Exclusive      bool           `json:"exclusive,omitempty"`    // the devices are in EXCLUSIVE_PROCESS: without MPS one rank alone could run
	Devices        []TicketDevice `json:"devices,omitempty"`      // in Slurm's order
	Daemons        []Daemon       `json:"daemons,omitempty"`
	ControlProgram Program        `json:"control,omitzero"`
	ExchangeDir    string         `json:"exchange_dir,omitempty"` // the folder where ranks of one launch tell each other what they are
}

// Program is the control program, for ranks that ask the daemon whether a fatal error is over.
type Program struct {
	Path        string `json:"path"`
	LibraryPath string `json:"library_path,omitempty"`
}

// TicketDevice is a device of the job, its place in Slurm's list of the node's GPUs (what SLURM_STEP_GPUS of a task
// names; -1 where Slurm names devices by UUID), and the daemon that serves it, an index into Daemons.
type TicketDevice struct {
	site.Device
	Position int `json:"position"`
	Daemon   int `json:"daemon"`
}

// Duration is a time.Duration that is written like "10s".
type Duration time.Duration

// MarshalText writes "10s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads "10s".
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// InUseError says that a device is another job's.
type InUseError struct {
	UUID site.UUID
	Job  uint32
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("cannot claim %s: job %d holds it: its epilog has not closed it", e.UUID, e.Job)
}

// BusyError says that another process has a job's turn, or the journal's lock, and who it is where that is known.
type BusyError struct {
	Path    string
	Holder  site.Process
	Closing bool // the holder undoes the lease
}

func (e *BusyError) Error() string {
	if e.Holder.PID == 0 {
		return fmt.Sprintf("cannot lock %s: another process holds it", e.Path)
	}
	return fmt.Sprintf("cannot lock %s: %s holds it", e.Path, e.Holder)
}
