// Package policy is the law of a site: what a job asks, what it is granted, and how a GPU is divided among ranks.
// It is pure: values in, values out, the standard library alone. Where the law is read from is policyfile's business.
package policy

import (
	"fmt"
	"time"
)

// Request is what a job asks of a node, as Slurm told it. Every string in it may be the user's own.
type Request struct {
	JobID       uint32
	User        string
	UID         uint32
	GID         uint32
	Account     string
	Partition   string
	QOS         string
	Reservation string
	Comment     string
	Requested   []string // whole names out of --constraint
	GPUs        []int    // the job's GPUs, or MIG instances, on this node: positions in Slurm's list
	NTasks      int
	Nodes       int
	Node        string
}

// Scope says how many daemons serve a job.
type Scope string

// One daemon for all of the job's GPUs, or one for each. The second keeps a fault on one GPU from the ranks of another
// and costs nothing in NCCL or CUDA IPC (measured); a process can use one daemon only, so ranks with several GPUs need
// the first.
const (
	ScopeJob Scope = "job"
	ScopeGPU Scope = "gpu"
)

// Compute says what becomes of the compute mode of the job's GPUs.
type Compute string

// The mode that makes MPS the only way in, or whatever is there.
const (
	ComputeExclusive Compute = "exclusive_process"
	ComputeUnchanged Compute = "unchanged"
)

// OnFailure says what a node that cannot serve a grant does.
type OnFailure string

// Drain the node and requeue the job, or run the job without MPS and say so in its ticket.
const (
	FailDrain      OnFailure = "drain"
	FailRunWithout OnFailure = "run_without"
)

// Sharing says how the SMs of a GPU go to its ranks.
type Sharing string

// Even shares in whole TPCs, or no cap at all.
const (
	ShareEven Sharing = "even"
	ShareNone Sharing = "none"
)

// Grant is what a rule gives.
type Grant struct {
	Scope      Scope
	Compute    Compute
	Share      Sharing
	Overlap    float64 // 1 to 48: how many times over the SMs are dealt; 2 is NVIDIA's 100/(0.5 n)
	Ceiling    float64 // percent of a GPU that no rank can exceed, above 0 to 100: the daemon's own limit
	OnFailure  OnFailure
	DrainGrace time.Duration // how long the epilog lets clients finish before it ends them

	// What a rank has where its user says nothing else.
	Memory        MemoryRule
	MemoryOverlap float64 // 1 to 48: how many times over memory is promised
	Low           bool    // priority below that of other jobs' clients
	Pass          bool    // signals go straight to the program; else its wrapper protects its neighbours
	MaxClients    int     // 1 to Clients: how many ranks may share a GPU
}

// DefaultGrant is what a grant has where its block says nothing. Overlap 2 measured best on real programs
// (docs/rationale.md).
func DefaultGrant() Grant {
	return Grant{
		Scope: ScopeJob, Compute: ComputeExclusive, Share: ShareEven, Overlap: 2, Ceiling: 100,
		OnFailure: FailDrain, DrainGrace: 10 * time.Second, MemoryOverlap: 1, MaxClients: Clients,
	}
}

// Condition decides whether a rule is for a request. An error means that the condition could not be decided.
type Condition func(Request) (bool, error)

// Rule is one clause of the law.
type Rule struct {
	Name  string
	When  Condition
	Grant Grant
}

// Policy is the law: the first rule whose condition holds decides.
type Policy struct {
	Rules []Rule
}

// Decide returns the first rule that is for r; ok is false where none is, and the job runs without MPS.
// The error names the rule whose condition could not be decided.
func (p Policy) Decide(r Request) (rule Rule, ok bool, err error) {
	for _, rule := range p.Rules {
		holds, err := rule.When(r)
		if err != nil {
			return Rule{}, false, fmt.Errorf("cannot decide rule %q for job %d: %w", rule.Name, r.JobID, err)
		}
		if holds {
			return rule, true, nil
		}
	}
	return Rule{}, false, nil
}
