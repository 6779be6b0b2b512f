// SPDX-License-Identifier: Apache-2.0

package policy

import "time"

// Scope is the number of daemons that serve a job.
type Scope string

// ScopeJob is one daemon for all of the job's GPUs, ScopeGPU is one daemon for each. With ScopeGPU a fault on one GPU
// does not reach the ranks of another, and NCCL and CUDA IPC are as fast (measured). A process can use one daemon
// only, so ranks with several GPUs need ScopeJob.
const (
	ScopeJob Scope = "job"
	ScopeGPU Scope = "gpu"
)

// computeMode is what the prolog does with the compute mode of the job's GPUs.
type computeMode string

// computeExclusive sets the mode in which a process needs MPS to use the GPU. ComputeUnchanged leaves the mode as it
// is.
const (
	computeExclusive computeMode = "exclusive_process"
	ComputeUnchanged computeMode = "unchanged"
)

// onFailure is what a node does if it cannot serve a grant.
type onFailure string

// failDrain drains the node and requeues the job. FailRunWithout runs the job without MPS, and its ticket has the
// reason.
const (
	failDrain      onFailure = "drain"
	FailRunWithout onFailure = "run_without"
)

// keepLogs is when the logs of a job's daemons outlive the job.
type keepLogs string

// The order is from no logs to all logs.
const (
	keepNever     keepLogs = "never"
	keepOnFailure keepLogs = "on_failure"
	keepAlways    keepLogs = "always"
)

// unplaced is what processes get that neither a wrapper nor a launcher places: the batch script and its children.
type unplaced string

// unplacedShare is the share of one rank on all of the job's GPUs, UnplacedDeny is no access to MPS.
const (
	unplacedShare unplaced = "share"
	UnplacedDeny  unplaced = "deny"
)

// shareGPU is how the jobs that Slurm puts on one GPU, by gres/shard or gres/mps, use it.
type shareGPU string

// shareTurns gives each job a daemon of its own. The jobs' kernels take turns, and a wrong address in one job harms no
// other job (measured). ShareUser gives the jobs of one user on a GPU one daemon: they compute at the same time.
const (
	shareTurns shareGPU = "turns"
	ShareUser  shareGPU = "user"
)

// maxDrainGrace is the maximum time that an epilog waits for clients. maxHold is the maximum time that a guard holds
// files, and maxPause the maximum time that it pauses clients.
const (
	maxDrainGrace = 10 * time.Minute
	maxHold       = 10 * time.Minute
	maxPause      = time.Minute
)

// Grant is what a rule grants a job.
type Grant struct {
	Scope      Scope
	Compute    computeMode
	Share      ShareRule
	Ceiling    float64 // the daemon's own limit: no rank exceeds this percentage of a GPU, above 0 to 100
	OnFailure  onFailure
	DrainGrace time.Duration // how long the epilog lets clients finish before it ends them
	Hold       time.Duration // how long the guard holds a dead client's files if their room is needed; 0: no guard
	Pause      time.Duration // how long the guard may pause a dead client's neighbours if room is needed; 0: never
	KeepLogs   keepLogs
	Unplaced   unplaced
	ShareGPU   shareGPU

	// These apply to a rank whose user sets nothing else.
	Memory        MemoryRule
	MemoryOverlap float64 // 1 to 48: how many times memory is promised
	Low           bool    // a lower priority than other jobs' clients
	MaxClients    int     // 1 to 60: the maximum of ranks on a GPU, if MPS serves that many there
}

// DefaultGrant is the grant of an empty block. Overlap 2 is NVIDIA's 100/(0.5 n), and was the fastest with real
// programs (docs/decisions.md, 0).
func DefaultGrant() Grant {
	return Grant{
		Scope: ScopeJob, Compute: computeExclusive, Share: Overlap(2), Ceiling: 100, OnFailure: failDrain,
		DrainGrace: 10 * time.Second, Hold: 30 * time.Second, Pause: 5 * time.Second, KeepLogs: keepNever,
		Unplaced: unplacedShare, ShareGPU: shareTurns, MemoryOverlap: 1, MaxClients: MaxClients,
	}
}
