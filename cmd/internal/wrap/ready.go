// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// announcer prints messages, each once for all ranks of a launch on this node.
type announcer struct {
	p         cli.Process
	env       slurm.Env
	placement mpirunwrap.Placement
}

// first reports whether this rank must print the message about thing. The other ranks of the launch do not print it.
func (h announcer) first(thing string) bool {
	launch, err := launchOf(h.env, h.p.PID, h.placement.Task)
	if err != nil {
		return h.placement.Task.LocalRank == 0
	}
	return mpirunwrap.OncePerNode(h.placement.Ticket.ExchangeDir, launch, thing, h.placement.Task.LocalRank)
}

// remark prints that the ranks get another share than they asked for, that their memory may not be available, or that
// a variable is misspelt. Ranks with the same options print each message once.
func (h announcer) remark(o mpirunwrap.Options) {
	for _, name := range mpirunwrap.UnknownVariables(h.env) {
		if h.first("variable " + name) {
			do := cli.Suggest("", name, mpirunwrap.Variables(), "mpirun-wrap")
			h.p.PrintError("mpirun-wrap", fmt.Errorf("ignoring variable %s: no flag has it: %s", name, do))
		}
	}
	if h.placement.Remark != "" && h.first("share "+o.Share.String()) {
		h.p.PrintError("mpirun-wrap", errors.New(h.placement.Remark))
	}
	if h.placement.MemRemark != "" && h.first("memory "+o.Memory.String()) {
		h.p.PrintError("mpirun-wrap", errors.New(h.placement.MemRemark))
	}
}

// ready waits until MPS accepts this rank. The error is the reason why MPS does not.
func (h announcer) ready() error {
	return h.placement.WaitReady(context.Background(), h.status, func(what string) {
		if h.first("waits") {
			h.p.PrintError("mpirun-wrap", errors.New(what))
		}
	})
}

// waitRoom waits while ranks that have ended take room on this rank's GPU. The guard limits the wait to the policy's
// hold.
func (h announcer) waitRoom(paths site.Paths) {
	if read := roomOf(paths, h.placement); read != nil {
		h.placement.WaitRoom(context.Background(), read, func(what string) {
			if h.first("room") {
				h.p.PrintError("mpirun-wrap", errors.New(what))
			}
		})
	}
}

// roomOf returns the function that reads the room of a placement's job, or nil if it cannot be read.
func roomOf(paths site.Paths, placement mpirunwrap.Placement) func() (lease.Room, error) {
	boot, err := site.BootID()
	if err != nil {
		return nil
	}
	store := lease.OpenReadOnly(paths.Run(), boot)
	return func() (lease.Room, error) { return store.ReadRoom(placement.Ticket.Job.ID) }
}

// warnOfNeighbour prints one sentence if several processes of the job run as "rank 0 of 1" on the same GPU.
func (h announcer) warnOfNeighbour() {
	task := h.placement.Task
	if task.LocalSize > 1 || task.Source == slurm.SourceSlot || h.placement.Ticket.ExchangeDir == "" {
		return
	}
	if is, err := mpirunwrap.HasNeighbour(h.placement); err != nil || !is || !h.first("neighbour") {
		return
	}
	h.p.PrintError("mpirun-wrap", errors.New("another process of this job runs on the same GPU, and each has the whole share: to divide it, give all of them --slots=N (or set SLURM_MPS_SLOTS=N)"))
}

// unavailable decides about a rank that cannot use MPS. The rank runs without MPS if the site's policy allows that,
// and if the mode of the GPU allows more than one process. Otherwise the result is an error.
func (h announcer) unavailable(program []string, err error) error {
	var off *mpirunwrap.UnavailableError
	if !errors.As(err, &off) || !h.placement.Ticket.RunWithoutMPS {
		return err
	}
	if h.placement.Ticket.Exclusive {
		return fmt.Errorf("%w; the policy's run_without does not help: the GPU is in EXCLUSIVE_PROCESS mode, in which one process alone could use it", err)
	}
	if h.first("without") {
		h.p.PrintError("mpirun-wrap", fmt.Errorf("running without MPS, as this site's policy allows: %s", off.Summary()))
	}
	return mpirunwrap.Exec(program, h.placement.Without(h.p.Env))
}

const (
	// answerWithin limits the time of one question. An answer takes at most 5 ms (measured).
	answerWithin = 5 * time.Second
	// maxAnswer limits what is read of an answer. A genuine answer is one word.
	maxAnswer = 4 << 10
)

// status asks the daemon for the state of a server, by the control program. The daemon drops a third of the questions
// of ranks that ask at the same time (measured). A dropped question is an error, and the rank asks again. os/exec is
// not used, because this program must stay small.
func (h announcer) status(ctx context.Context, server int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	question, err := pipeOf(fmt.Sprintf("get_server_status %d\n", server))
	if err != nil {
		return "", err
	}
	defer question.Close()
	answer, out, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer answer.Close()
	program := h.placement.Ticket.ControlProgram
	env := []string{"PATH=/usr/bin:/bin", "CUDA_MPS_PIPE_DIRECTORY=" + h.placement.Daemon.PipeDir}
	if program.LibraryPath != "" {
		env = append(env, "LD_LIBRARY_PATH="+program.LibraryPath)
	}
	process, err := os.StartProcess(program.Path, []string{program.Path}, &os.ProcAttr{
		Dir: "/", Env: env, Files: []*os.File{question, out, nil}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	out.Close()
	if err != nil {
		return "", fmt.Errorf("cannot ask daemon: %w", err)
	}
	deadline, _ := ctx.Deadline()
	_ = answer.SetReadDeadline(deadline)
	output, err := io.ReadAll(io.LimitReader(answer, maxAnswer))
	_ = syscall.Kill(-process.Pid, syscall.SIGKILL) // it has answered or hangs, and is not reaped yet, so no other group has this number
	end, waited := process.Wait()
	state := strings.TrimSpace(string(output))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "", fmt.Errorf("cannot ask daemon: %w", site.ErrNoAnswer)
	case err != nil || waited != nil:
		return "", fmt.Errorf("cannot ask daemon: %w", errors.Join(err, waited))
	case state == "" || !end.Success():
		return "", fmt.Errorf("cannot ask daemon: it answers %q (%s)", state, end)
	}
	return state, nil
}

// pipeOf returns the read end of a pipe that contains a text. The text must fit into a pipe.
func pipeOf(text string) (*os.File, error) {
	reads, writes, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = writes.WriteString(text)
	if err = errors.Join(err, writes.Close()); err != nil {
		reads.Close()
		return nil, err
	}
	return reads, nil
}
