// SPDX-License-Identifier: Apache-2.0

// Package mpirunwrap places one rank on the job's GPUs and prepares the process that becomes its program. It has all
// that mpirun-wrap and task-prolog do: read their command lines (command.go, taskprolog.go), read the rank's place, find
// its ticket, choose its GPU and share, wait for MPS, and print messages. Both programs are static and link no C, no
// NVML, no HCL and no cobra, because they also run in containers, and thousands of them may start at the same time.
//
// A rank runs under MPS on its own device with its own share, or it does not run and prints the reason. CUDA itself
// would start without MPS and without a message if the daemon is not there (measured).
package mpirunwrap

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

// Placement is a rank's devices, daemon and share.
type Placement struct {
	Task      launch.Task
	gpuShare              // of the rank's first GPU
	OtherGPUs []gpuShare  // of the other GPUs, for a rank with several
	Sees      []site.UUID // all GPUs that the rank sees, its own among them
	indices   bool        // the rank wants numbers of GPUs
	pinned    bool        // by the user's CUDA_VISIBLE_DEVICES
	Daemon    lease.Daemon
	Ticket    lease.Ticket // with the grant of this rank
	Why       []string     // the reasons, if they are asked for
}

// gpuShare is a rank's part of one GPU.
type gpuShare struct {
	GPU        int // the device's index among the job's
	Device     site.Device
	Share      policy.Share
	Memory     policy.Memory
	RanksOnGPU int // ranks on the device, with this one
	Ceiling    policy.Percent
	Remark     string // how the share differs from the one that the user asked for, "" if it does not
	MemRemark  string // why the memory that the user asked for may not be available, "" if it is
}

// refusedError means that the job has no MPS. If Without is set, the program runs all the same.
type refusedError struct {
	Reason  string
	Without bool
}

func (e *refusedError) Error() string {
	return "this job has no MPS: " + e.Reason
}

// noTicketError means that no prolog has opened the job for MPS on this node.
type noTicketError struct{ error }

// findTicket returns the ticket of the first of the task's jobs that has one.
func findTicket(store *lease.Store, task launch.Task) (ticket lease.Ticket, err error) {
	for _, job := range task.JobIDs {
		ticket, err = store.ReadTicket(job)
		if errors.Is(err, lease.ErrNotFound) || errors.Is(err, lease.ErrStaleBoot) {
			continue
		}
		if errors.Is(err, fs.ErrPermission) {
			return ticket, fmt.Errorf("%w: it is another user's job", err)
		}
		return ticket, err
	}
	if len(task.JobIDs) == 0 {
		return ticket, noTicketError{errors.New(
			"cannot use MPS: this is not a Slurm job (SLURM_JOB_ID is not set), or Slurm's variables were unset: " +
				"submit it: sbatch --gres=gpu:1 --constraint=mps JOB.sh; or give --own")}
	}
	folder := filepath.Dir(store.TicketPath(task.JobIDs[0]))
	if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) {
		return ticket, noTicketError{fmt.Errorf("cannot find ticket of job %d: there is no folder %s here: "+
			"in a container, mount %s; if the site has not installed slurm-mps, give --own; elsewhere, submit the job with --constraint=mps",
			task.JobIDs[0], folder, filepath.Dir(folder))}
	}
	return ticket, noTicketError{fmt.Errorf("cannot find ticket of job %d on this node: the job did not ask for MPS: "+
		"submit it with --constraint=mps, or run the program without mpirun-wrap", task.JobIDs[0])}
}

// Place places a rank. The ranks of a device share it by the ticket's rule or the user's. The ceiling limits both.
func Place(ticket lease.Ticket, rank Rank) (*Placement, error) {
	if err := checkTicket(&ticket); err != nil {
		return nil, err
	}
	place := chooseGPU(ticket.Devices, rank.Task, rank.Binding, rank.Options.GPU, rank.CanOpen)
	pins := rank.pinned(ticket.Devices)
	if len(pins) > 0 {
		place = position{devices: pins, ranks: 1}
	}
	placement, err := rank.place(&ticket, place)
	if err == nil {
		placement.pinned = len(pins) > 0
		err = placement.checkMemory(rank.Options.GPU)
	}
	return placement, err
}

// placeNonRank places a process that is not a rank: the batch script, an interactive shell or a launcher's daemon. It
// has a single rank's share of all of the job's GPUs, or of the first one if each has a daemon of its own. The
// processes that it starts inherit the placement, and a wrapper replaces it. A limit of memory holds only for
// processes that see all GPUs.
func placeNonRank(ticket lease.Ticket, rank Rank) (*Placement, error) {
	if err := checkTicket(&ticket); err != nil {
		return nil, err
	}
	rank.Task.LocalRank, rank.Task.LocalSize, rank.Task.Source = 0, 1, launch.SourceSingle
	if rank.rule(&ticket).List() > 0 { // no entry of the list is for this process
		rank.Options.Share, ticket.Grant.Share = policy.ShareRule{}, policy.Overlap(1)
	}
	place := chooseGPU(ticket.Devices, rank.Task, rank.Binding, inheritGPUs, rank.CanOpen)
	if !sameDaemon(ticket.Devices, place.devices) {
		place.devices = place.devices[:1]
	}
	return rank.place(&ticket, place)
}

func checkTicket(ticket *lease.Ticket) error {
	if ticket.RefusalReason != "" {
		return &refusedError{ticket.RefusalReason, ticket.RunWithoutMPS}
	}
	if len(ticket.Devices) == 0 {
		return fmt.Errorf("cannot place ranks: the ticket of job %d names no device", ticket.Job.ID)
	}
	return nil
}

func (r *Rank) place(ticket *lease.Ticket, place position) (*Placement, error) {
	daemon, err := daemonOf(ticket, r.Task, place.visible())
	if err != nil {
		return nil, err
	}
	placement := &Placement{Task: r.Task, Ticket: *ticket, Daemon: *daemon, indices: r.Options.Indices}
	if r.Options.Memory != nil {
		placement.Ticket.Grant.Memory = *r.Options.Memory
	}
	parts := make([]gpuShare, len(place.devices))
	for i, device := range place.devices {
		if parts[i], err = r.gpuShare(&placement.Ticket, place, device); err != nil {
			return nil, fmt.Errorf("cannot place rank %d on %s: %w", r.Task.LocalRank, ticket.Devices[device].UUID, err)
		}
	}
	for _, device := range place.visible() {
		placement.Sees = append(placement.Sees, ticket.Devices[device].UUID)
	}
	placement.gpuShare, placement.OtherGPUs = parts[0], parts[1:]
	if r.Options.Verbose {
		placement.Why = r.why(ticket, &parts[0])
	}
	return placement, nil
}

// checkMemory refuses a limit of memory for a rank that chooses among several GPUs. CUDA drops all limits in a child
// that sees fewer GPUs than the limits name (measured), and the frameworks that need these choices start such
// children.
func (p *Placement) checkMemory(choice choice) error {
	if choice != allGPUs && choice != inheritGPUs || p.limits() == "" || len(p.Sees) == 1 {
		return nil
	}
	return fmt.Errorf("cannot limit the memory of rank %d: with --gpu=%s it sees several GPUs, and CUDA drops the limit "+
		"in each child process that sees fewer: use --gpu=cyclic, or --mem=none", p.Task.LocalRank, choice)
}

// daemonOf returns the daemon of all of a rank's devices.
func daemonOf(ticket *lease.Ticket, task launch.Task, devices []int) (*lease.Daemon, error) {
	if !sameDaemon(ticket.Devices, devices) {
		return nil, fmt.Errorf("cannot place rank %d on %d GPUs: each GPU of job %d has a daemon of its own (scope gpu), "+
			"and a process can use one: give each rank one GPU, as --gpu=cyclic does without --gpus-per-task, "+
			"or ask your admin for scope \"job\"", task.LocalRank, len(devices), ticket.Job.ID)
	}
	first := ticket.Devices[devices[0]]
	if first.Daemon < 0 || first.Daemon >= len(ticket.Daemons) {
		return nil, fmt.Errorf("cannot place rank %d: the ticket of job %d names no daemon for %s", task.LocalRank, ticket.Job.ID, first.UUID)
	}
	return &ticket.Daemons[first.Daemon], nil
}

// gpuShare returns the rank's part of one of its devices.
func (r *Rank) gpuShare(ticket *lease.Ticket, place position, gpu int) (gpuShare, error) {
	device := ticket.Devices[gpu]
	rule := r.rule(ticket)
	if place.bounded && rule.List() > 0 {
		return gpuShare{}, fmt.Errorf("cannot take an entry of share %s: the rank does not know its number on the GPU: "+
			"leave out --gpus-per-task, --ntasks-per-gpu and --gpu-bind", rule)
	}
	// Each rank divides the GPU as if all ranks had its rule (docs/decisions.md, 31).
	grant, part := ticket.Grant, r.part(ticket)
	if place.ranks > grant.MaxClients {
		return gpuShare{}, fmt.Errorf("%d ranks share it, and at most %d can: use more GPUs or fewer ranks", place.ranks, grant.MaxClients)
	}
	if part != 0 && grant.Memory.None() { // the rest is other jobs'
		grant.Memory = policy.EvenMemory()
	}
	model, ceiling := policy.GPU{SMs: device.SMs, SMsPerTPC: device.TPC, Part: part}, policy.PercentFrom(grant.Ceiling)
	memoryMiB := policy.PartMiB(device.MemoryMiB, part)
	shares, err := policy.SplitSMs(model, rule, place.ranks, ceiling)
	if err != nil {
		return gpuShare{}, err
	}
	share, remark := shares[place.index], ""
	if r.Options.Share != (policy.ShareRule{}) {
		remark = policy.Remark(model, rule, place.ranks, place.index, ceiling, share)
	}
	memory, err := policy.MemoryPerRank(memoryMiB, policy.ContextMiB(share.SMs), place.ranks, grant.MemoryOverlap, grant.Memory)
	if err != nil {
		return gpuShare{}, err
	}
	memRemark := ""
	if r.Options.Memory != nil {
		memRemark = policy.MemoryRemark(memoryMiB, place.ranks, grant.Memory, memory)
	}
	return gpuShare{gpu, device.Device, share, memory, place.ranks, ceiling, remark, memRemark}, nil
}

// part returns the job's part of each of its GPUs, 0 for whole GPUs. All shards of a job are on one GPU
// (recorded), and a job with whole GPUs has none.
func (r *Rank) part(ticket *lease.Ticket) policy.Percent {
	part := ticket.Part
	if part.Gres == lease.GresShard {
		part.Units = r.Shards
	}
	return part.Percent()
}

// rule returns this rank's rule: the user's, or else the ticket's. The policy's rule is a default and no limit, because a
// rank can remove the percentage from its own environment. The limit is the ceiling, which the daemon enforces
// (measured: a client that asks a daemon with 50 % for 80 % gets 50 %).
func (r *Rank) rule(ticket *lease.Ticket) policy.ShareRule {
	return cmp.Or(r.Options.Share, ticket.Grant.Share)
}

// parts returns the rank's parts of all of its GPUs.
func (p *Placement) parts() []gpuShare { return append([]gpuShare{p.gpuShare}, p.OtherGPUs...) }

// percent is the value of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, 0 for no cap. CUDA takes one value for all of a
// process's GPUs, so it is the smallest.
func (p *Placement) percent() (smallest policy.Percent) {
	for _, part := range p.parts() {
		if percent := part.Share.Percent; percent != 0 && (smallest == 0 || percent < smallest) {
			smallest = percent
		}
	}
	return smallest
}

// visible has the UUIDs of the devices that the rank sees.
func (p *Placement) visible() string {
	var uuids []string
	for _, uuid := range p.Sees {
		uuids = append(uuids, string(uuid))
	}
	return strings.Join(uuids, ",")
}

// visibleByIndex has the numbers of the visible devices in the daemon's list: that is how CUDA counts them (measured).
func (p *Placement) visibleByIndex() string {
	var numbers []string
	for _, uuid := range p.Sees {
		numbers = append(numbers, strconv.Itoa(slices.Index(p.Daemon.Devices, uuid)))
	}
	return strings.Join(numbers, ",")
}

// limits is CUDA_MPS_PINNED_DEVICE_MEM_LIMIT. It names only the rank's own devices, because a device that the rank
// cannot see makes all limits void (measured). A process that sees all of the daemon's devices by number has numbers
// here too, since processes of other nodes may inherit them (hydra), and no other node has these UUIDs.
func (p *Placement) limits() string {
	var limits []string
	numbers := p.indices && slices.Equal(p.Sees, p.Daemon.Devices)
	for i, part := range p.parts() {
		device := string(part.Device.UUID)
		if numbers {
			device = strconv.Itoa(i)
		}
		if part.Memory.LimitMiB > 0 {
			limits = append(limits, fmt.Sprintf("%s=%dM", device, part.Memory.LimitMiB))
		}
	}
	return strings.Join(limits, ",")
}

// variables returns a placement's variables in order. An empty value means that the variable is unset, since a rank
// may inherit the value of an unplaced process. CUDA_VISIBLE_DEVICES contains UUIDs unless the user wants indices, whose
// meaning depends on the daemon. Without the variable PyTorch counts devices that CUDA does not have (measured).
func (p *Placement) variables() []variable {
	percentage, priority := "", ""
	if percent := p.percent(); percent != 0 {
		percentage = percent.String()
	}
	if p.Ticket.Grant.Low {
		priority = "1"
	}
	visible := p.visible()
	if p.indices {
		visible = p.visibleByIndex()
	}
	return []variable{
		{"CUDA_VISIBLE_DEVICES", visible},
		{"CUDA_MPS_PIPE_DIRECTORY", p.Daemon.PipeDir},
		{"CUDA_MPS_LOG_DIRECTORY", p.Daemon.LogDir},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage},
		{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", p.limits()},
		{"CUDA_MPS_CLIENT_PRIORITY", priority},
	}
}

// variable is an environment variable.
type variable struct {
	Name, Value string
}

// environment returns env with the placement's variables.
func (p *Placement) environment(env []string) []string {
	ours := p.variables()
	var names, given []string
	for _, v := range ours {
		names = append(names, v.Name+"=")
		if v.Value != "" {
			given = append(given, v.Name+"="+v.Value)
		}
	}
	return append(without(env, names...), given...)
}
