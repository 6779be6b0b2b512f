// SPDX-License-Identifier: Apache-2.0

// Package state reads the state of this node: its records, and the reports of the driver, the daemons and the kernel.
// It finds where they differ, and says what undoes that. status, audit, doctor, metrics and reap use it.
//
// It changes nothing itself, every wait has a deadline, and it follows no link that a user can make. It reports a
// finding only if it has seen it twice, because prologs and epilogs run at the same time. A reaper judges a job again
// under its lock, and an Executor makes the changes.
package state

import (
	"fmt"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// Node is the state that was seen.
type Node struct {
	Name string    `json:"node"`
	Time time.Time `json:"time"`
	Root bool      `json:"root"` // the caller is root, and sees everything
	Jobs []Job     `json:"jobs"`
	GPUs []GPU     `json:"gpus"`
	// Incomplete has the parts that could not be read, a sentence each.
	Incomplete []string `json:"errors"`

	hidden         []uint32      // jobs whose lease and ticket this user may not read: nothing that they may name is a finding
	takers         []lease.Taker // processes of guards that are left
	busy           []lease.Busy  // file systems of closed jobs
	records        string        // a digest of the records, to notice a change
	census         []mps.Process
	run            string     // the folder of state; only our daemons are below it
	paths          site.Paths // for the commands in findings
	policy         policyfile.FileStatus
	config         policyfile.FileStatus
	driverAnswered bool
}

// Phase is the state of a job, in words for people.
type Phase string

// The phases of a lease, and the other states of a job.
const (
	Opening    Phase = "opening"
	Opened     Phase = "open"
	Recorded   Phase = "recorded" // it runs without MPS, and a recorder watches its GPUs
	closing    Phase = "closing"
	Refused    Phase = "refused"  // it runs without MPS, and its ticket has the reason
	Orphaned   Phase = "no lease" // its files are left, and the job has been closed or never had a lease
	Unreadable Phase = "unreadable"
)

// Job is a job that has something on this node.
type Job struct {
	ID      uint32     `json:"job"`
	User    string     `json:"user"`
	UID     uint32     `json:"uid"`
	Rule    string     `json:"rule"`
	Phase   Phase      `json:"phase"`
	Since   *time.Time `json:"since"`
	Refused string     `json:"refused,omitempty"`
	// The grant of a rank if its user sets nothing; "" if there is no ticket.
	Share   string         `json:"share"`
	Memory  string         `json:"memory"`
	Ceiling policy.Percent `json:"ceiling"`
	Devices []Held         `json:"gpus"`
	Daemons []Daemon       `json:"daemons"`
	Guard   *Guard         `json:"guard"`            // null for a job without a guard, and if the caller may not read the lease
	Part    lease.Part     `json:"part,omitzero"`    // of each GPU, by gres/shard or gres/mps
	Joined  uint32         `json:"joined,omitempty"` // the lease of the shared daemon that serves the job
	// Acting is the prolog or epilog that works on the job now.
	Acting int `json:"locked_by,omitempty"`
	// Report is the job's report, if it runs and the caller may read it. Job is 0 if there is none. Totals are those of
	// the report, null if there is none.
	Report usage.Report  `json:"-"`
	Totals *usage.Totals `json:"totals"`

	owner     lease.Job
	err       error // why its lease cannot be read
	sluid     string
	stepless  bool // Slurm shows no step of it, and would
	leased    bool // it has a lease of this boot, readable or not
	noMPS     bool // it is only recorded
	dir       bool
	ticket    *lease.Ticket
	ticketErr error // why its ticket cannot be read, lease.ErrNotFound if there is none
}

// Held is a device of a job.
type Held struct {
	UUID    site.UUID `json:"uuid"`
	Set     site.Mode `json:"new_mode"` // the mode that the job's prolog set, "" for none
	Clients []Client  `json:"clients"`
	// Use is the latest sample of the job's report; null if there is none, or if the caller may not read it.
	Use *usage.Sample `json:"use"`
}

// Guard is the process that holds the driver files of a job's dead clients.
type Guard struct {
	PID     int  `json:"pid"`
	Running bool `json:"running"`
	// Stalled is the time since which it has been late; null if it is not.
	Stalled *time.Time `json:"stalled_since,omitempty"`
	lease.GuardState
}

// daemonState is the state of a control daemon.
type daemonState string

// Serving, not serving and wedged are different states (docs/contract.md, D3).
const (
	Serves     daemonState = "serving"
	NotServing daemonState = "not serving" // it runs, and its socket does not answer
	NoAnswer   daemonState = "wedged"      // it does not answer in time
	NotStarted daemonState = "not started"
	Gone       daemonState = "gone"     // the recorded process has ended
	Replaced   daemonState = "replaced" // another process uses its pipe folder, or its pid belongs to another program
	Unclear    daemonState = "unclear"  // its answer was not understood
	Alive      daemonState = "alive"    // it runs, and was not asked
)

// Daemon is a control daemon of a job.
type Daemon struct {
	PID     int         `json:"pid"`
	Devices []site.UUID `json:"gpus"`
	PipeDir string      `json:"pipe_dir"`
	State   daemonState `json:"state"`
	Reason  string      `json:"reason,omitempty"` // of a state that is not serving
	// Ceiling is the percentage for new servers, as the daemon reports it; null if it was not asked.
	Ceiling *float64     `json:"ceiling"`
	Servers []mps.Server `json:"servers"`

	record lease.Daemon
	rows   []mps.ClientRow
}

// Client is a process that uses one device through a server.
type Client struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Server  int    `json:"server,omitempty"`
	// Rank and Step are from its environment; -1 and "" if it has none.
	Rank int    `json:"rank"`
	Step string `json:"step,omitempty"`
	// Percent is the client's own, from its environment at its start; null if it has none.
	Percent policy.Percent `json:"percent"`
	// SMs is the number that it may use, by its own percentage or its server's, whichever is less. 0 if neither is
	// known.
	SMs int `json:"sms"`
	// MemoryMiB is its own limit, with its context; null if it has none.
	MemoryMiB *int `json:"memory_mib"`
	// UsedMiB is the memory that it uses, as the driver reports it; 0 if that is not known.
	UsedMiB int `json:"used_mib"`
	// Unknown is why the client's own limits are not known.
	Unknown string `json:"unknown,omitempty"`

	ignored string // a percentage that CUDA ignores
}

// GPU is a device of the node as the driver reports it.
type GPU struct {
	Index  int       `json:"index"` // nvidia-smi's; -1 for a MIG instance
	Minor  int       `json:"minor"` // N of /dev/nvidiaN
	UUID   site.UUID `json:"uuid"`
	Name   string    `json:"name"`
	SMs    int       `json:"sms"`
	Mode   site.Mode `json:"mode"`
	Holder *uint32   `json:"job"`     // the job that holds it; null for none, or if only root may know
	Held   bool      `json:"claimed"` // a job holds it, or may hold it for all that the caller may know
	// Holders are all jobs that hold a part of it. With gres/shard and gres/mps there may be several.
	Holders   []uint32  `json:"jobs,omitempty"`
	Processes []Process `json:"processes"`
	Error     string    `json:"error,omitempty"`

	tpc int
}

// Process has a compute context on a device, as the driver reports it.
type Process struct {
	PID  int    `json:"pid"`
	Kind string `json:"kind"` // client, server, or compute for a process without MPS
	Name string `json:"name"`
	// UsedMiB is its memory on the device, 0 if the driver does not know it.
	UsedMiB int `json:"used_mib"`
}

// The kinds of a process.
const (
	KindClient  = "client"
	kindServer  = "server"
	KindCompute = "compute"
)

// GPU returns a device that was seen, nil for another.
func (n *Node) GPU(uuid site.UUID) *GPU {
	for i := range n.GPUs {
		if n.GPUs[i].UUID == uuid {
			return &n.GPUs[i]
		}
	}
	return nil
}

// Clients returns how many processes are clients of the jobs' daemons. A client of several devices counts once.
func (n Node) Clients() int {
	pids := map[int]bool{}
	for _, j := range n.Jobs {
		for _, held := range j.Devices {
			for _, c := range held.Clients {
				pids[c.PID] = true
			}
		}
	}
	return len(pids)
}

// String returns "GPU 0", or the beginning of an instance's UUID, because an instance has no number.
func (g GPU) String() string {
	switch {
	case g.UUID.MIG():
		return string(g.UUID)[:min(len(g.UUID), 12)]
	case g.Index < 0:
		return string(g.UUID)
	}
	return fmt.Sprintf("GPU %d", g.Index)
}
