// SPDX-License-Identifier: Apache-2.0

// Package inspect is what there is on this node: what the records say, what the driver, the daemons and the kernel say, and
// where they differ. status and audit print it.
//
// The promise: it changes nothing, waits for nobody without a deadline, follows no link that a user can make, and calls
// nothing wrong that it has not seen twice, since prologs and epilogs go on while it looks.
package inspect

import (
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
)

// Node is what was seen.
type Node struct {
	Name string    `json:"node"`
	Time time.Time `json:"time"`
	Root bool      `json:"root"` // who looks is root, and sees all
	Jobs []Job     `json:"jobs"`
	GPUs []GPU     `json:"gpus"`
	// Unseen is what should have been seen and could not be, a sentence each.
	Incomplete []string `json:"errors"`

	claims  []lease.Claim
	records string // what the records said in short, to tell whether they still do
	census  []mps.Process
	run     string     // the folder of state, to know our daemons by
	paths   site.Paths // for the commands that findings name
	policy  policyfile.FileStatus
	facts   policyfile.FileStatus
	drivers bool // the driver was asked and answered
}

// Phase is how far a job has come, in words for people.
type Phase string

// A lease's own phases, and what else a job can be here.
const (
	Opening    Phase = "opening"
	Opened     Phase = "open"
	Closing    Phase = "closing"
	Refused    Phase = "refused"  // it runs without MPS, and its ticket says why
	Orphaned   Phase = "no lease" // its files are left of a job that has been closed, or of nobody
	Unreadable Phase = "unreadable"
)

// Job is a job that has something here.
type Job struct {
	ID      uint32     `json:"job"`
	User    string     `json:"user"`
	UID     uint32     `json:"uid"`
	Rule    string     `json:"rule"`
	Phase   Phase      `json:"phase"`
	Since   *time.Time `json:"since"`
	Refused string     `json:"refused,omitempty"`
	// What a rank is granted that says nothing else; "" where the ticket is not there to say it.
	Share   string         `json:"share"`
	Memory  string         `json:"memory"`
	Ceiling policy.Percent `json:"ceiling"`
	Devices []Held         `json:"gpus"`
	Daemons []Daemon       `json:"daemons"`
	Guard   *Guard         `json:"guard"` // null for a job without one, and for who may not read the lease
	// Acting is the prolog or epilog that is at work on the job.
	Acting int `json:"locked_by,omitempty"`

	owner   lease.Job
	err     error // why its lease cannot be read
	leased  bool  // it has a lease, readable or not, of this boot
	dir     bool
	ticket  *lease.Ticket
	tickets error // why its ticket cannot be read, lease.ErrNotFound where there is none
}

// Held is a device of a job.
type Held struct {
	UUID    site.UUID `json:"uuid"`
	Set     site.Mode `json:"new_mode"` // the mode that the job's prolog set, "" for none
	Clients []Client  `json:"clients"`
}

// Guard is the process that holds the driver files of a job's dead clients.
type Guard struct {
	PID     int  `json:"pid"`
	Running bool `json:"running"`
	lease.GuardState
}

// DaemonState is the state of a control daemon.
type DaemonState string

// Serving, not serving and wedged are three states (docs/contract.md, D3).
const (
	Serves     DaemonState = "serving"
	NotServing DaemonState = "not serving" // it is there, and nobody answers at its socket
	NoAnswer   DaemonState = "wedged"      // it does not answer in time
	NotStarted DaemonState = "not started"
	Gone       DaemonState = "gone"     // the process of the record has ended
	Replaced   DaemonState = "replaced" // another process has its pipe folder, or its pid has become another program
	Unclear    DaemonState = "unclear"  // it answers, and not what was asked
	Alive      DaemonState = "alive"    // there, and not asked
)

// Daemon is a control daemon of a job.
type Daemon struct {
	PID     int         `json:"pid"`
	Devices []site.UUID `json:"gpus"`
	PipeDir string      `json:"pipe_dir"`
	State   DaemonState `json:"state"`
	Reason  string      `json:"reason,omitempty"` // of a state that is not serving
	// Ceiling is the percentage of the servers to come, as the daemon says it; null where it was not asked.
	Ceiling *float64 `json:"ceiling"`
	Servers []Server `json:"servers"`

	record lease.Daemon
	rows   []mps.ClientRow
}

// Server is an MPS server as its daemon tells it.
type Server struct {
	PID     int      `json:"pid"`
	Status  string   `json:"status"`
	Percent float64  `json:"percent"`
	Limits  []string `json:"memory_limits"` // by the daemon's devices, "" for none
}

// Client is a process that a server serves, on one of its devices.
type Client struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Server  int    `json:"server,omitempty"`
	// Percent is the client's own, as its environment had it when it started; null where it has none.
	Percent policy.Percent `json:"percent"`
	// SMs are what it may use: by its own percentage or the server's, whichever is less. 0 where neither is known.
	SMs int `json:"sms"`
	// MemoryMiB is its own limit, its context included; null where it has none.
	MemoryMiB *int `json:"memory_mib"`
	// Unknown is why the client's own limits are not known.
	Unknown string `json:"unknown,omitempty"`

	ignored string // a percentage that CUDA ignores
}

// GPU is a device of the node as the driver says it.
type GPU struct {
	Index     int       `json:"index"` // nvidia-smi's; -1 for a MIG instance
	Minor     int       `json:"minor"` // N of /dev/nvidiaN
	UUID      site.UUID `json:"uuid"`
	Name      string    `json:"name"`
	SMs       int       `json:"sms"`
	Mode      site.Mode `json:"mode"`
	Holder    *uint32   `json:"job"`     // who has claimed it; null for nobody, or for somebody whom root alone knows
	Held      bool      `json:"claimed"` // somebody has claimed it
	Processes []Process `json:"processes"`
	Error     string    `json:"error,omitempty"`

	tpc int
	mig bool
}

// Process holds a compute context on a device, as the driver says it.
type Process struct {
	PID  int    `json:"pid"`
	Kind string `json:"kind"` // client, server, or compute for one without MPS
	Name string `json:"name"`
}

// The kinds of a process.
const (
	KindClient  = "client"
	KindServer  = "server"
	KindCompute = "compute"
)

// gpu is a device that was seen, nil where it was not.
func (n *Node) gpu(uuid site.UUID) *GPU {
	for i := range n.GPUs {
		if n.GPUs[i].UUID == uuid {
			return &n.GPUs[i]
		}
	}
	return nil
}

// GPU is a device by its UUID; ok is false where it was not seen.
func (n Node) GPU(uuid site.UUID) (GPU, bool) {
	if g := n.gpu(uuid); g != nil {
		return *g, true
	}
	return GPU{}, false
}

// String is "GPU 0", or what an instance has for a name.
func (g GPU) String() string { return short(g.Index, g.UUID) }
