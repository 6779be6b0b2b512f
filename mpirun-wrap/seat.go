// Package mpirunwrap seats one rank on the job's GPUs and runs its program there.
//
// The promise: a rank runs under MPS on its own device with its own share, or it does not run and says why in a
// sentence. CUDA itself starts without MPS and says nothing where the daemon is not there (measured).
package mpirunwrap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Seat is a rank's device, daemon and share.
type Seat struct {
	Task   slurm.Task
	GPU    int // the device's place among the job's
	Device site.Device
	Daemon lease.Daemon
	Share  policy.Share
	Memory policy.Memory
	Low    bool // priority below the others'
	Beside int  // ranks on the same device, this one among them
	Ticket lease.Ticket
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
func FindTicket(journal *lease.Journal, task slurm.Task) (lease.Ticket, error) {
	for _, job := range task.JobIDs {
		ticket, err := journal.ReadTicket(job)
		if errors.Is(err, lease.ErrNone) || errors.Is(err, lease.ErrVoid) {
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
	At      Whereabouts
	Options Options
	// Agree tells the other ranks of the launch this one's word and returns all of theirs; nil where none of them can
	// have a rule of its own.
	Agree func(folder string, own Word) ([]Word, error)
}

// Take seats a rank. The ranks of one device divide it by the ticket's rule; a rank's own rule is its own alone, and the
// ceiling is above both.
func Take(ticket lease.Ticket, rank Rank) (Seat, error) {
	if ticket.Refused != "" {
		return Seat{}, &RefusedError{ticket.Refused, ticket.Without}
	}
	task := rank.Task
	if len(ticket.Devices) == 0 {
		return Seat{}, fmt.Errorf("cannot seat rank %d: the ticket of job %d names no device", task.LocalRank, ticket.Job.ID)
	}
	at := choose(ticket.Devices, task, rank.Binding, rank.Options.GPU, rank.At)
	device := ticket.Devices[at.device]
	if device.Daemon < 0 || device.Daemon >= len(ticket.Daemons) {
		return Seat{}, fmt.Errorf("cannot seat rank %d: the ticket of job %d names no daemon for %s", task.LocalRank, ticket.Job.ID, device.UUID)
	}
	rules, index, err := beside(ticket, rank, at)
	if err != nil {
		return Seat{}, err
	}
	if len(rules) > policy.Clients {
		return Seat{}, fmt.Errorf("cannot seat rank %d on %s: %d ranks share it, and MPS serves %d at once: use more GPUs or fewer ranks", task.LocalRank, device.UUID, len(rules), policy.Clients)
	}
	shares, err := policy.Split(policy.GPU{SMs: device.SMs, TPC: device.TPC}, rules, policy.PercentFrom(ticket.Ceiling))
	if err != nil {
		return Seat{}, fmt.Errorf("cannot seat rank %d on %s: %w", task.LocalRank, device.UUID, err)
	}
	share := shares[index]
	memory, err := policy.MemoryEach(device.MemoryMiB, policy.ContextMiB(share.SMs), len(rules), 1, rank.Options.Memory)
	if err != nil {
		return Seat{}, fmt.Errorf("cannot seat rank %d on %s: %w", task.LocalRank, device.UUID, err)
	}
	return Seat{task, at.device, device.Device, ticket.Daemons[device.Daemon], share, memory, rank.Options.Low, len(rules), ticket}, nil
}

// beside are the rules of all ranks on one device, and which of them is this one's. Where the ranks agree it is what they
// said; else the others have the ticket's rule, or all have this one's variable.
func beside(ticket lease.Ticket, rank Rank, at place) (rules []policy.ShareRule, index int, err error) {
	granted := policy.Grant{Share: policy.Sharing(ticket.Share), Overlap: ticket.Overlap}.Rule()
	own := granted
	if rank.Options.Share != nil {
		own = policy.Lower(granted, *rank.Options.Share)
	}
	if rank.Agree != nil {
		word := Word{rank.Task.LocalRank, at.device, own.String()}
		words, err := rank.Agree(ticket.Meet, word)
		if err != nil {
			return nil, 0, err
		}
		return together(words, word)
	}
	if !rank.Options.Own {
		return slices.Repeat([]policy.ShareRule{own}, at.beside), at.index, nil
	}
	rules = slices.Repeat([]policy.ShareRule{granted}, at.beside)
	rules[at.index] = own
	return rules, at.index, nil
}

// Check proves that the seat's daemon is there: the process by pid and start time, and its socket. It asks the daemon
// nothing, since a third of questions asked by all ranks at once would fail (measured).
func (s Seat) Check() error {
	if !s.Daemon.Proc.Alive() {
		return fmt.Errorf("cannot use MPS on %s: its control daemon (%s) is gone: the job's epilog cleans up; submit the job again", s.Device.UUID, s.Daemon.Proc)
	}
	socket := filepath.Join(s.Daemon.PipeDir, "control")
	info, err := os.Lstat(socket)
	if err != nil {
		return fmt.Errorf("cannot use MPS on %s: %w", s.Device.UUID, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("cannot use MPS on %s: %s is not a socket", s.Device.UUID, socket)
	}
	return nil
}

// Variables are the variables of a seat in order, an empty value means unset. CUDA_VISIBLE_DEVICES is always a UUID:
// indices mean another thing under every daemon, and unset makes PyTorch count devices that CUDA has not (measured).
func (s Seat) Variables() []Variable {
	percentage := ""
	if s.Share.Percent != 0 {
		percentage = s.Share.Percent.String()
	}
	all := []Variable{
		{"CUDA_VISIBLE_DEVICES", string(s.Device.UUID)},
		{"CUDA_MPS_PIPE_DIRECTORY", s.Daemon.PipeDir},
		{"CUDA_MPS_LOG_DIRECTORY", s.Daemon.LogDir},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage},
	}
	if s.Memory.LimitMiB > 0 { // of its own device alone: a list with a device that the rank cannot see drops every limit
		all = append(all, Variable{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", fmt.Sprintf("%s=%dM", s.Device.UUID, s.Memory.LimitMiB)})
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
func (s Seat) Environment(env []string) []string {
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
