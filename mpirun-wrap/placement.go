// SPDX-License-Identifier: Apache-2.0

// Package mpirunwrap seats one rank on the job's GPUs and runs its program there.
//
// The promise: a rank runs under MPS on its own device with its own share, or it does not run and says why in a
// sentence. CUDA itself starts without MPS and says nothing where the daemon is not there (measured).
package mpirunwrap

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Placement is a rank's devices, daemon and share.
type Placement struct {
	Task      slurm.Task
	GPUShare             // of the rank's first GPU
	OtherGPUs []GPUShare // of the others, for a rank with several
	Daemon    lease.Daemon
	Low       bool // priority below the others'
	Ticket    lease.Ticket
}

// GPUShare is a rank's part of one GPU.
type GPUShare struct {
	GPU        int // the device's place among the job's
	Device     site.Device
	Share      policy.Share
	Memory     policy.Memory
	RanksOnGPU int // ranks on the device, this one among them
}

// RefusedError says that the job has no MPS; Without, that it runs all the same.
type RefusedError struct {
	Reason  string
	Without bool
}

func (e *RefusedError) Error() string {
	return "this job has no MPS: " + e.Reason
}

// FindTicket returns the ticket of the first of the task's jobs that has one.
func FindTicket(journal *lease.Store, task slurm.Task) (lease.Ticket, error) {
	for _, job := range task.JobIDs {
		ticket, err := journal.ReadTicket(job)
		if errors.Is(err, lease.ErrNotFound) || errors.Is(err, lease.ErrStaleBoot) {
			continue
		}
		if errors.Is(err, fs.ErrPermission) {
			return ticket, fmt.Errorf("%w: it is another user's job", err)
		}
		return ticket, err
	}
	if len(task.JobIDs) == 0 {
		return lease.Ticket{}, errors.New("cannot find ticket: this is no Slurm job: SLURM_JOB_ID is not set")
	}
	return lease.Ticket{}, fmt.Errorf("cannot find ticket of job %d on this node: the job did not ask for MPS: submit it with --constraint=mps, or run the program without mpirun-wrap", task.JobIDs[0])
}

// Rank is all that is known of a rank before it is seated.
type Rank struct {
	Task    slurm.Task
	Binding slurm.Binding
	Host    HostInfo
	Options Options
	// Agree tells the other ranks of the launch this one's word and returns all of theirs; nil where none of them can
	// have a rule of its own.
	Exchange func(folder string, own RankInfo) ([]RankInfo, error)
}

// Place seats a rank. The ranks of one device divide it by the ticket's rule; a rank's own rule is its own alone, and the
// ceiling is above both.
func Place(ticket lease.Ticket, rank Rank) (Placement, error) {
	if ticket.RefusalReason != "" {
		return Placement{}, &RefusedError{ticket.RefusalReason, ticket.RunWithoutMPS}
	}
	task := rank.Task
	if len(ticket.Devices) == 0 {
		return Placement{}, fmt.Errorf("cannot seat rank %d: the ticket of job %d names no device", task.LocalRank, ticket.Job.ID)
	}
	at := chooseGPU(ticket.Devices, task, rank.Binding, rank.Options.GPU, rank.Host)
	seat := Placement{Task: task, Low: orTicket(rank.Options.Low, ticket.LowPriority), Ticket: ticket}
	var err error
	if seat.Daemon, err = daemonOf(ticket, task, at.devices); err != nil {
		return Placement{}, err
	}
	words, err := rank.agreed(ticket, at)
	if err != nil {
		return Placement{}, err
	}
	parts := make([]GPUShare, len(at.devices))
	for i, device := range at.devices {
		if parts[i], err = take(ticket, rank, at, device, words); err != nil {
			return Placement{}, fmt.Errorf("cannot seat rank %d on %s: %w", task.LocalRank, ticket.Devices[device].UUID, err)
		}
	}
	seat.GPUShare, seat.OtherGPUs = parts[0], parts[1:]
	return seat, nil
}

// daemonOf is the daemon that serves all of a rank's devices: a process can use one (measured).
func daemonOf(ticket lease.Ticket, task slurm.Task, devices []int) (lease.Daemon, error) {
	first := ticket.Devices[devices[0]]
	for _, i := range devices {
		if ticket.Devices[i].Daemon != first.Daemon {
			return lease.Daemon{}, fmt.Errorf("cannot seat rank %d on %d GPUs: each GPU of job %d has a daemon of its own (scope gpu), and a process can use one: give each rank one GPU, as --gpu=cyclic does without --gpus-per-task, or ask your admin for scope \"job\"", task.LocalRank, len(devices), ticket.Job.ID)
		}
	}
	if first.Daemon < 0 || first.Daemon >= len(ticket.Daemons) {
		return lease.Daemon{}, fmt.Errorf("cannot seat rank %d: the ticket of job %d names no daemon for %s", task.LocalRank, ticket.Job.ID, first.UUID)
	}
	return ticket.Daemons[first.Daemon], nil
}

// take is the rank's part of one of its devices.
func take(ticket lease.Ticket, rank Rank, at position, index int, words []RankInfo) (GPUShare, error) {
	device := ticket.Devices[index]
	rules, own, err := rank.beside(ticket, at, index, words)
	if err != nil {
		return GPUShare{}, err
	}
	if most := maxClients(ticket); len(rules) > most {
		return GPUShare{}, fmt.Errorf("%d ranks share it, and at most %d can: use more GPUs or fewer ranks", len(rules), most)
	}
	shares, err := policy.SplitSMs(policy.GPU{SMs: device.SMs, SMsPerTPC: device.TPC}, rules, policy.PercentFrom(ticket.Ceiling))
	if err != nil {
		return GPUShare{}, err
	}
	share := shares[own]
	rule, err := rank.Options.memory(ticket)
	if err != nil {
		return GPUShare{}, err
	}
	memory, err := policy.MemoryPerRank(device.MemoryMiB, policy.ContextMiB(share.SMs), len(rules), ticket.MemoryOverlap, rule)
	if err != nil {
		return GPUShare{}, err
	}
	return GPUShare{index, device.Device, share, memory, len(rules)}, nil
}

// maxClients is how many ranks may share a GPU: the policy's number, and never more than MPS serves.
func maxClients(ticket lease.Ticket) int {
	if ticket.MaxClients > 0 {
		return min(ticket.MaxClients, policy.Clients)
	}
	return policy.Clients
}

// rules are what the ranks of a job are dealt by where they say nothing, and this rank's.
func (r Rank) rules(ticket lease.Ticket) (granted, own policy.ShareRule) {
	granted = policy.Grant{Share: policy.ShareMode(ticket.Share), Overlap: ticket.Overlap}.Rule()
	own = granted
	if r.Options.Share != nil {
		own = policy.EffectiveRule(granted, *r.Options.Share)
	}
	return granted, own
}

// agreed are the words of all ranks of the launch, nil where they need not agree.
func (r Rank) agreed(ticket lease.Ticket, at position) ([]RankInfo, error) {
	if r.Exchange == nil {
		return nil, nil
	}
	_, own := r.rules(ticket)
	return r.Exchange(ticket.ExchangeDir, RankInfo{r.Task.LocalRank, at.devices, own.String()})
}

// beside are the rules of all ranks on one device, and which of them is this one's. Where the ranks agree it is what they
// said; else the others have the ticket's rule, or all have this one's variable.
func (r Rank) beside(ticket lease.Ticket, at position, device int, words []RankInfo) (rules []policy.ShareRule, index int, err error) {
	if words != nil {
		return rulesOnDevice(words, r.Task.LocalRank, device)
	}
	granted, own := r.rules(ticket)
	if !r.Options.Own {
		return slices.Repeat([]policy.ShareRule{own}, at.beside), at.index, nil
	}
	rules = slices.Repeat([]policy.ShareRule{granted}, at.beside)
	rules[at.index] = own
	return rules, at.index, nil
}

// parts are the rank's parts of all of its GPUs.
func (s Placement) parts() []GPUShare { return append([]GPUShare{s.GPUShare}, s.OtherGPUs...) }

// Percent is what CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is set to, 0 for no cap. CUDA takes one for all of a process's GPUs:
// where they differ it is the least.
func (s Placement) Percent() (least policy.Percent) {
	for _, part := range s.parts() {
		if p := part.Share.Percent; p != 0 && (least == 0 || p < least) {
			least = p
		}
	}
	return least
}

// visible is CUDA_VISIBLE_DEVICES.
func (s Placement) visible() string {
	var uuids []string
	for _, part := range s.parts() {
		uuids = append(uuids, string(part.Device.UUID))
	}
	return strings.Join(uuids, ",")
}

// limits is CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: of the rank's own devices alone, since a list with a device that the rank
// cannot see drops every limit (measured).
func (s Placement) limits() string {
	var limits []string
	for _, part := range s.parts() {
		if part.Memory.LimitMiB > 0 {
			limits = append(limits, fmt.Sprintf("%s=%dM", part.Device.UUID, part.Memory.LimitMiB))
		}
	}
	return strings.Join(limits, ",")
}

// Variables are the variables of a seat in order, an empty value means unset. CUDA_VISIBLE_DEVICES is always of UUIDs:
// indices mean another thing under every daemon, and unset makes PyTorch count devices that CUDA has not (measured).
func (s Placement) Variables() []Variable {
	percentage := ""
	if p := s.Percent(); p != 0 {
		percentage = p.String()
	}
	all := []Variable{
		{"CUDA_VISIBLE_DEVICES", s.visible()},
		{"CUDA_MPS_PIPE_DIRECTORY", s.Daemon.PipeDir},
		{"CUDA_MPS_LOG_DIRECTORY", s.Daemon.LogDir},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage},
	}
	if limits := s.limits(); limits != "" {
		all = append(all, Variable{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limits})
	}
	if s.Low {
		all = append(all, Variable{"CUDA_MPS_CLIENT_PRIORITY", "1"})
	}
	return all
}

// Variable is one of the environment.
type Variable struct {
	Name, Value string
}

// Environment is env with the seat's variables in it.
func (s Placement) Environment(env []string) []string {
	ours := s.Variables()
	result := make([]string, 0, len(env)+len(ours))
	for _, entry := range env {
		if !names(entry, ours) {
			result = append(result, entry)
		}
	}
	for _, v := range ours {
		if v.Value != "" {
			result = append(result, v.Name+"="+v.Value)
		}
	}
	return result
}

func names(entry string, variables []Variable) bool {
	name, _, _ := strings.Cut(entry, "=")
	for _, v := range variables {
		if v.Name == name {
			return true
		}
	}
	return false
}
