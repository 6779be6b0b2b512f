package rank

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// herald says a thing once for all ranks of a launch on this node.
type herald struct {
	p    cli.Process
	env  slurm.Environ
	seat mpirunwrap.Seat
}

// first reports whether this rank is to say it.
func (h herald) first(thing string) bool {
	launch, err := launchOf(h.env, h.p.PID, h.seat.Task)
	if err != nil {
		return h.seat.Task.LocalRank == 0
	}
	return mpirunwrap.First(h.seat.Ticket.Meet, launch, thing, h.seat.Task.LocalRank)
}

// ready makes sure that MPS is on for the rank and, where that is asked for, that it can be verified later.
func (h herald) ready(options mpirunwrap.Options) error {
	if options.Verify == mpirunwrap.VerifyFail && h.seat.Pass {
		return errors.New("cannot verify rank: --verify=fail needs --signals=protect: with pass nobody stays to look")
	}
	return h.seat.Ready(context.Background(), control{h.seat}.status, func(what string) {
		if h.first("waits") {
			h.p.Complain("mpirun-wrap", errors.New(what))
		}
	})
}

// instead is what becomes of a rank for which MPS is not on: it runs without, where the site's policy says so and more
// than one rank could.
func (h herald) instead(program []string, err error) error {
	var off *mpirunwrap.OffError
	if !errors.As(err, &off) || !h.seat.Ticket.Without {
		return err
	}
	if h.seat.Ticket.Exclusive {
		return fmt.Errorf("%w; the policy's run_without does not help: the GPU is in EXCLUSIVE_PROCESS mode, where one process alone could use it", err)
	}
	if h.first("without") {
		h.p.Complain("mpirun-wrap", fmt.Errorf("running without MPS, as this site's policy says: %s", off.Short()))
	}
	return mpirunwrap.Exec(program, h.seat.Without(h.p.Env))
}

// verification is how the guard finds out whether the rank computes under MPS, nil where it is not to.
func (h herald) verification(options mpirunwrap.Options) *mpirunwrap.Verification {
	if options.Verify == mpirunwrap.VerifyOff {
		return nil
	}
	return &mpirunwrap.Verification{
		Device: h.seat.Device.UUID, PipeDir: h.seat.Daemon.PipeDir, LogDir: h.seat.Daemon.LogDir,
		Fail: options.Verify == mpirunwrap.VerifyFail, Clients: control{h.seat}.clients,
		First: func() bool { return h.first("outside") },
	}
}

// statusPatience is for one question, which is answered within 5 ms (measured), and for the ranks that ask before.
const statusPatience = 5 * time.Second

// status is the state of a server, in the daemon's word.
func (c control) status(ctx context.Context, server int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	lines, err := c.inTurn(ctx, fmt.Sprintf("get_server_status %d", server))
	return strings.Join(lines, " "), err
}

// clients are the pids of all clients of the daemon's servers.
func (c control) clients(ctx context.Context) (pids []int, err error) {
	lines, err := c.inTurn(ctx, "ps")
	for _, line := range lines {
		word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if pid, err := strconv.Atoi(word); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

func (c control) inTurn(ctx context.Context, question string) ([]string, error) {
	done, err := c.turn(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot ask daemon %q: %w", question, err)
	}
	defer done()
	return c.askAgain(ctx, question)
}
