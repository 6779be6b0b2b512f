// SPDX-License-Identifier: Apache-2.0

// Package lease stores which job holds which devices, and what must be undone for the job. A record is written before
// the first effect that it names and deleted after the last undo. If a process dies in between, the record tells the
// next process what to finish.
//
// A file here is whole or absent, has one writer at a time, and is void after a reboot. A job's files are written and
// removed in this order. The lease is written first and removed last:
//
//	prolog   leases/JOB.json (opening) ─▶ jobs/JOB/ ─▶ guards/JOB ─▶ leases/JOB.json (open) ─▶ tickets/JOB.json
//	epilog   tickets/JOB.json ─▶ leases/JOB.json (closing) ─▶ jobs/JOB/ ─▶ guards/JOB ─▶ leases/JOB.json
//
// Both hold the lock locks/JOB. The devices that a lease names are the job's: no other job has them, unless Slurm puts several
// jobs on one GPU. Jobs that share a daemon have their own leases, and name the daemon's lease in them first.
package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// Schema is the version of the records' form. A record of another version is refused.
const Schema = 3

// The states of a record that cannot be used. Each has the same outcome everywhere. ErrNotFound and ErrStaleBoot:
// there is nothing to undo. ErrCorrupt, ErrSchema and osfile.ErrNotRootOwned: an admin must look, and the node drains.
var (
	ErrNotFound  = errors.New("no record")
	ErrStaleBoot = errors.New("record of another boot")
	ErrCorrupt   = errors.New("torn record")
	errSchema    = errors.New("record of an unknown schema")
)

// Lease records the devices that a job holds, and all that must be undone.
type Lease struct {
	Schema int    `json:"schema"`
	Boot   string `json:"boot"`
	Job    Job    `json:"job"`
	SLUID  string `json:"sluid,omitempty"` // names the job's control groups since Slurm 26.05
	Phase  Phase  `json:"phase"`
	Rule   string `json:"rule"`
	Settings
	// Request is the request to the policy (a policy.Request), so that it can be repeated. No undo reads it.
	Request   json.RawMessage `json:"request,omitempty"`
	CreatedAt time.Time       `json:"created_at"`
	Part      Part            `json:"part,omitzero"`    // of each GPU
	Joined    uint32          `json:"joined,omitempty"` // the shared lease whose daemons serve this job; 0 for its own
	GPUs      []LeasedGPU     `json:"gpus"`
	Daemons   []Daemon        `json:"daemons"`
	// Guard holds driver files of the job's dead clients. It is zero until the guard has started.
	Guard      proc.Process `json:"guard,omitzero"`
	GuardGroup string       `json:"guard_group,omitempty"` // the folder of its control group; "" if it has none of its own
	// NoMPS is a job that is only recorded. It has no daemon and no ticket, and holds no device. Its modes are as they
	// were, and Guard is its recorder.
	NoMPS bool `json:"no_mps,omitempty"`
}

// Settings are all that daemons, their guard and their end are made from, beside the user, the devices and the number
// of the lease. Jobs share daemons only if their settings are equal, so whatever a grant or site.hcl gives a daemon or
// a guard stands here. A job that shares daemons has none: the shared lease has them.
type Settings struct {
	DrainGrace Duration `json:"drain_grace"`
	KeepLogs   string   `json:"keep_logs,omitempty"` // when the daemons' logs are kept after the job; "" means never
	GuardSettings
	Limits []Limits `json:"limits,omitempty"` // of each daemon
	// These are of site.hcl.
	Control  Program  `json:"control_program,omitzero"`
	NVML     string   `json:"nvml_library,omitempty"`
	Interval Duration `json:"usage_interval,omitempty"` // between two samples of the recorder; 0: no recorder
}

// GuardSettings are what a guard gets of its job's grant. They are copied whole, so that none is forgotten.
type GuardSettings struct {
	Hold    Duration `json:"hold,omitempty"`    // how long it holds dead clients' files at most; 0: no guard
	Pause   Duration `json:"pause,omitempty"`   // how long it pauses their neighbours at most; 0: never
	Clients int      `json:"clients,omitempty"` // how many MPS serves on a GPU
}

// GuardOf returns the settings of the guard of a grant.
func GuardOf(g policy.Grant, clients int) GuardSettings {
	return GuardSettings{Hold: Duration(g.Hold), Pause: Duration(g.Pause), Clients: clients}
}

// Equal reports whether jobs with these settings can share daemons.
func (s Settings) Equal(other Settings) bool { return reflect.DeepEqual(s, other) }

// UUIDs returns the devices of the lease.
func (l Lease) UUIDs() []site.UUID {
	list := make([]site.UUID, len(l.GPUs))
	for i, gpu := range l.GPUs {
		list[i] = gpu.UUID
	}
	return list
}

// Job is the job of a lease.
type Job struct {
	ID   uint32 `json:"id"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	User string `json:"user"`
	// Groups are all groups of the user. The prolog looks them up once, because the directory service may be down
	// when the epilog runs.
	Groups []uint32 `json:"groups,omitempty"`
}

// LeasedGPU is a device with its compute mode before the job and the mode that was set. NewMode is empty if the mode
// was not changed.
type LeasedGPU struct {
	UUID         site.UUID `json:"uuid"`
	Minor        int       `json:"minor"` // N of /dev/nvidiaN
	OriginalMode site.Mode `json:"original_mode,omitempty"`
	NewMode      site.Mode `json:"new_mode,omitempty"`
}

// Daemon is a control daemon of the job. Proc is zero until the daemon has started.
type Daemon struct {
	Devices []site.UUID  `json:"devices"`
	PipeDir string       `json:"pipe_dir"`
	LogDir  string       `json:"log_dir"`
	Group   string       `json:"group,omitempty"` // the folder of its control group; "" if it has none of its own
	Proc    proc.Process `json:"proc"`
}

// Limits are what a daemon limits each of its clients to.
type Limits struct {
	Devices   []site.UUID    `json:"devices"`              // of the daemon
	Ceiling   policy.Percent `json:"ceiling"`              // of a GPU
	MemoryMiB []int          `json:"memory_mib,omitempty"` // of each device, in their order; nil for no limit
}

// OrphanDaemon is a daemon that no lease names. The job and the user are read from the daemon's own process.
type OrphanDaemon struct {
	Job    Job
	Daemon Daemon
}

// Ticket is the part of a lease that its job may read.
type Ticket struct {
	Schema         int            `json:"schema"`
	Boot           string         `json:"boot"`
	Job            Job            `json:"job"`
	Rule           string         `json:"rule,omitempty"`
	RefusalReason  string         `json:"refusal_reason,omitempty"`  // why the job has no MPS; the rest is empty then
	RunWithoutMPS  bool           `json:"run_without_mps,omitempty"` // the site lets the job run without MPS
	Grant          policy.Grant   `json:"grant,omitzero"`            // what a rank has if its user sets nothing else
	Exclusive      bool           `json:"exclusive,omitempty"`       // the devices are in EXCLUSIVE_PROCESS: without MPS only one rank could run
	Devices        []TicketDevice `json:"devices,omitempty"`         // in Slurm's order
	Daemons        []Daemon       `json:"daemons,omitempty"`
	ControlProgram Program        `json:"control_program,omitzero"`
	ExchangeDir    string         `json:"exchange_dir,omitempty"` // the folder in which the ranks have their slots and print a message once
	Part           Part           `json:"part,omitzero"`          // of each device
	Joined         uint32         `json:"joined,omitempty"`       // the shared lease whose daemons and guard serve the job
}

// Program is the control program, for ranks that ask the daemon whether a fatal error is over.
type Program struct {
	Path        string `json:"path"`
	LibraryPath string `json:"library_path,omitempty"`
}

// TicketDevice is a device of the job. Position is its index in Slurm's list of the node's GPUs, which
// SLURM_STEP_GPUS of a task contains; it is -1 if Slurm names devices by UUID. Daemon is the index in Daemons of the
// daemon that serves it.
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

// BusyError means that another process holds a lock: a job's lock or the store's. It names the holder if it is known.
type BusyError struct {
	Path    string
	Holder  proc.Process
	Closing bool // the holder undoes the lease
}

func (e *BusyError) Error() string {
	if e.Holder.PID == 0 {
		return fmt.Sprintf("cannot lock %s: another process holds it", e.Path)
	}
	return fmt.Sprintf("cannot lock %s: %s holds it", e.Path, e.Holder)
}

// Phase is the state of a lease.
type Phase string

// A lease begins in Opening.
const (
	Opening Phase = "opening" // the prolog makes it, and no rank knows it
	Opened  Phase = "open"    // the prolog has done all but write the ticket
	Closing Phase = "closing" // an undo has begun
)

// nextPhases lists the phases that may follow each phase. SetPhase refuses any other phase.
var nextPhases = map[Phase][]Phase{
	Opening: {Opened, Closing}, // the prolog succeeds, or it fails and its lease is undone
	Opened:  {Closing},         // the epilog begins, or a prolog that cannot adopt the lease
	Closing: {Closing},         // an undo that failed, or that was killed, is tried again
}

// mayFollow reports whether next may follow p. An undo needs only the changes that a lease lists. So an undo may
// begin in a phase that this program does not know.
func (p Phase) mayFollow(next Phase) bool {
	after, known := nextPhases[p]
	return slices.Contains(after, next) || !known && next == Closing
}

// SetPhase changes the phase of a lease, here and on file. If next may not follow, nothing changes. If the file
// cannot be written, the lease in memory still gets its new phase.
func (s *Store) SetPhase(l *Lease, next Phase) error {
	if !l.Phase.mayFollow(next) {
		return fmt.Errorf("cannot change phase of lease of job %d: %q may not follow %q", l.Job.ID, next, l.Phase)
	}
	l.Phase = next
	return s.Save(*l)
}
