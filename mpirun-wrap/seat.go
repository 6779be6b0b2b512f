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
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Seat is a rank's device, daemon and share.
type Seat struct {
	Task   slurm.Task
	Device site.Device
	Daemon lease.Daemon
	Share  policy.Share
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

// Take seats a rank: ranks go round the job's devices, and those of one device divide it by the ticket's rule.
func Take(ticket lease.Ticket, task slurm.Task) (Seat, error) {
	if ticket.Refused != "" {
		return Seat{}, &RefusedError{ticket.Refused, ticket.Without}
	}
	n := len(ticket.Devices)
	if n == 0 {
		return Seat{}, fmt.Errorf("cannot seat rank %d: the ticket of job %d names no device", task.LocalRank, ticket.Job.ID)
	}
	device := ticket.Devices[task.LocalRank%n]
	if device.Daemon < 0 || device.Daemon >= len(ticket.Daemons) {
		return Seat{}, fmt.Errorf("cannot seat rank %d: the ticket of job %d names no daemon for %s", task.LocalRank, ticket.Job.ID, device.UUID)
	}
	beside := (task.LocalSize - task.LocalRank%n + n - 1) / n // ranks on the same device
	grant := policy.Grant{Share: policy.Sharing(ticket.Share), Overlap: ticket.Overlap, Ceiling: ticket.Ceiling}
	shares, err := policy.Divide(policy.GPU{SMs: device.SMs, TPC: device.TPC}, beside, grant)
	if err != nil {
		return Seat{}, fmt.Errorf("cannot seat rank %d on %s: %w", task.LocalRank, device.UUID, err)
	}
	return Seat{task, device.Device, ticket.Daemons[device.Daemon], shares[task.LocalRank/n]}, nil
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
	return []Variable{
		{"CUDA_VISIBLE_DEVICES", string(s.Device.UUID)},
		{"CUDA_MPS_PIPE_DIRECTORY", s.Daemon.PipeDir},
		{"CUDA_MPS_LOG_DIRECTORY", s.Daemon.LogDir},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage},
	}
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
