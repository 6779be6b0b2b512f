// SPDX-License-Identifier: Apache-2.0

package state

import (
	"slices"

	"github.com/slurm-mps/slurm-mps/site"
)

// Kind is the name of a finding, for programs.
type Kind string

// The node differs from its records.
const (
	leaseUnreadable        Kind = "lease-unreadable"
	leaseUnfinished        Kind = "lease-unfinished" // opening or closing, without a prolog or epilog
	LeaseWithoutStep       Kind = "lease-without-step"
	leaseWithoutTicket     Kind = "lease-without-ticket"
	sharedWithoutJob       Kind = "shared-daemon-without-job"
	jobWithoutShared       Kind = "job-without-shared-daemon"
	ticketWithoutLease     Kind = "ticket-without-lease"
	directoryWithoutLease  Kind = "directory-without-lease"
	modeDiffers            Kind = "mode-differs"
	gpuMissing             Kind = "gpu-missing"
	exclusiveWithoutLease  Kind = "exclusive-without-lease"
	DaemonGone             Kind = "daemon-gone"
	DaemonReplaced         Kind = "daemon-replaced"
	DaemonNotServing       Kind = "daemon-not-serving"
	DaemonNoAnswer         Kind = "daemon-wedged"
	DaemonUnclear          Kind = "daemon-unclear"
	daemonWithoutLease     Kind = "daemon-without-lease"  // its pipe folder is below ours
	daemonUnknown          Kind = "daemon-not-of-a-lease" // any other daemon that no lease names
	ServerFault            Kind = "server-fault"
	CeilingLifted          Kind = "ceiling-lifted"
	guardGone              Kind = "guard-gone"
	GuardStalled           Kind = "guard-stalled"
	TakersStuck            Kind = "takers-stuck"
	MemoryHeld             Kind = "memory-held"
	FilesUnheld            Kind = "files-unheld"
	ClientsUnguarded       Kind = "clients-unguarded"
	PolicyUnusable         Kind = "policy"
	ConfigUnusable         Kind = "site-file"
	processWithoutMPS      Kind = "process-without-mps"
	clientOfAnother        Kind = "client-of-another-daemon"
	clientWithoutShare     Kind = "client-without-share"
	clientWithoutMemoryCap Kind = "client-without-memory-limit"
)

// audited are the kinds that audit reports: use of a GPU against the policy. If the value is true, the node differs
// from its records too, and status marks it. The other kinds are for status alone.
var audited = map[Kind]bool{
	CeilingLifted: true, exclusiveWithoutLease: true, daemonWithoutLease: true, PolicyUnusable: true, ConfigUnusable: true,
	processWithoutMPS: false, clientOfAnother: false, clientWithoutShare: false, clientWithoutMemoryCap: false,
	daemonUnknown: false,
}

// Level is how much a finding of doctor matters.
type Level string

// A fault makes a job fail, or gives it less than it was granted. A warning costs time, or makes a later fault worse. A
// note is something to know about a healthy node.
const (
	Fault   Level = "fault"
	Warning Level = "warning"
	Note    Level = "note"
)

// Finding is a fault or a warning with its place and its repair.
type Finding struct {
	Kind  Kind      `json:"kind"`
	Level Level     `json:"level,omitempty"` // "" if doctor does not judge it
	Job   uint32    `json:"job,omitempty"`
	GPU   site.UUID `json:"gpu,omitempty"`
	PID   int       `json:"pid,omitempty"`
	Where string    `json:"where"`
	What  string    `json:"what"`
	Fix   string    `json:"fix"`
	Undo  Action    `json:"undo,omitempty"` // by reap, unless Slurm shows the job here; "" if an admin must decide
}

// same reports whether two findings are about the same thing, even if their texts differ.
func (f Finding) same(o Finding) bool {
	return f.Kind == o.Kind && f.Job == o.Job && f.GPU == o.GPU && f.PID == o.PID && f.Where == o.Where
}

// Disagreements are the findings that status marks.
func Disagreements(all []Finding) []Finding {
	return selected(all, func(k Kind) bool {
		differs, known := audited[k]
		return differs || !known
	})
}

// Violations are the findings that audit reports.
func Violations(all []Finding) []Finding {
	return selected(all, func(k Kind) bool {
		_, known := audited[k]
		return known
	})
}

// ofNoJob selects the findings that belong to no job, so that no epilog ends them. reap reports them.
func ofNoJob(all []Finding) []Finding {
	some := []Kind{TakersStuck, MemoryHeld, exclusiveWithoutLease, ConfigUnusable}
	return selected(all, func(k Kind) bool { return slices.Contains(some, k) })
}

func selected(all []Finding, reported func(Kind) bool) []Finding {
	return slices.DeleteFunc(append([]Finding{}, all...), func(f Finding) bool { return !reported(f.Kind) })
}
