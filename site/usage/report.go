// SPDX-License-Identifier: Apache-2.0

// Package usage is what a job used of its GPUs on one node.
package usage

import (
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// Schema is the version of Report as JSON.
const Schema = 1

// Report is what one job used on one node. While the job runs, End is zero.
type Report struct {
	Schema    int       `json:"schema"`
	Job       uint32    `json:"job"`
	Node      string    `json:"node"`
	User      string    `json:"user"`
	Partition string    `json:"partition,omitempty"`
	Account   string    `json:"account,omitempty"`
	Rule      string    `json:"rule"`
	Share     string    `json:"share,omitempty"` // what the rule gives, as in the policy: even, overlap:2, weight, none
	Begin     time.Time `json:"begin"`
	End       time.Time `json:"end,omitzero"`
	GPUs      []GPU     `json:"gpus"`
	Clients   []Client  `json:"clients"`
	// ClientsSeen counts all clients. It is larger than len(Clients) if there were more than MaxClients.
	ClientsSeen int `json:"clients_seen"`
	// ClientsPeak is the maximum number of clients at the same time.
	ClientsPeak int     `json:"clients_peak"`
	Faults      []Fault `json:"faults,omitempty"`
}

// Bounds of a report, so that a job with many clients or of many days has a short one.
const (
	MaxClients = 512
	MaxSamples = 720
	MaxFaults  = 64
)

// GPU is one GPU of the job, with its use over time.
type GPU struct {
	Index     int       `json:"index"` // N of /dev/nvidiaN
	UUID      site.UUID `json:"uuid"`
	Name      string    `json:"name"`
	SMs       int       `json:"sms"`
	MemoryMiB int       `json:"memory_mib"`
	// Source is what the percentages were read from: "GPM", "process utilization", or "" if there are none, as with MIG.
	Source string `json:"source"`
	// Each sample covers at least Resolution seconds, except the first and the last. The recorder doubles it when there
	// are MaxSamples.
	Resolution int      `json:"resolution"`
	Samples    []Sample `json:"samples"`
}

// Sample is the use of a GPU in the time before At: since the sample before it, or since Begin. Its figures are
// percent, from 0 to 100, and -1 is not known.
type Sample struct {
	At time.Time `json:"at"`
	// SMUtil is the part of the time in which a kernel was on the GPU, whichever process's it was.
	SMUtil float64 `json:"sm_util"`
	// SMActive is the part of the SMs that had work, averaged over the time. GPM alone has it.
	SMActive float64 `json:"sm_active"`
	// DRAM is the part of the memory's bandwidth that was used. GPM alone has it.
	DRAM float64 `json:"dram"`
	// UsedMiB and Clients are the maximum of what was seen in the time.
	UsedMiB int `json:"used_mib"`
	Clients int `json:"clients"`
}

// Client is a process that was a client of MPS on one GPU.
type Client struct {
	PID int `json:"pid"`
	GPU int `json:"gpu"` // an index into Report.GPUs
	// Rank and Step are what the process's environment says, so its user can write them. -1 and "" are not known.
	Rank int    `json:"rank"`
	Step string `json:"step,omitempty"`
	// SMs is the share: 0 is the whole GPU, -1 is not known. LimitMiB is the memory limit: 0 is none.
	SMs      int       `json:"sms"`
	LimitMiB int       `json:"limit_mib"`
	PeakMiB  int       `json:"peak_mib"` // the maximum of the memory that was seen
	Begin    time.Time `json:"begin"`
	End      time.Time `json:"end,omitzero"`
	// Ending is how it ended, as far as the guard and the server know. It is "" until the guard has let go of the files.
	Ending Ending `json:"ending,omitempty"`
	// Unharmed counts the other clients of the GPU that lived on when this one ended and its files were held.
	Unharmed int `json:"unharmed,omitempty"`
}

// Ending is how a client ended.
type Ending string

const (
	Ended Ending = "ended" // no client lived beside it, or the GPU had no work after its end
	// InFlight: clients lived beside it and the GPU had work after its end, its own or theirs. The guard held its files.
	InFlight Ending = "inflight"
	Faulted  Ending = "fault"  // a fatal GPU error
	AtEpilog Ending = "epilog" // it outlived the job
)

// Fault is a fatal GPU error, which ends all clients of the GPU. It is what the server's log says, and the job's user
// can write that.
type Fault struct {
	At  time.Time `json:"at"`
	GPU int       `json:"gpu"` // an index into Report.GPUs
	// PID is the client that began it: one that ended just before, or else the one that the server names. 0 is not known.
	PID int `json:"pid"`
}
