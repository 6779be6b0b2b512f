// SPDX-License-Identifier: Apache-2.0

package frame

import (
	"context"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/logfile"
)

// Cleanup undoes what jobs have left on this node. It is the executor of mpsctl reap, and has the same parts as the
// epilog.
type Cleanup struct {
	n     node
	Close func() // closes the log
}

// OpenCleanup builds a Cleanup. It creates the folders of the state and of the log if they do not exist.
func OpenCleanup(paths site.Paths) (*Cleanup, error) {
	out, closeLog := logfile.Open(paths.Log())
	n, err := newNode(paths, out, "reap", 0)
	if err != nil {
		closeLog()
		return nil, err
	}
	return &Cleanup{n, closeLog}, nil
}

// Lock takes a job's lock. It waits for a prolog or an epilog of the job until the context ends. An epilog waits for the
// holder, as for another epilog, and does not take it for a prolog.
func (c *Cleanup) Lock(ctx context.Context, job uint32) (release func(), err error) {
	lock, err := c.n.store.Lock(ctx, job)
	if err != nil {
		return nil, err
	}
	lock.MarkClosing()
	return func() { _ = lock.Release() }, nil
}

// Within runs a function for one job with the epilog's deadline. SIGTERM and SIGINT end the function's context
// earlier. If the function hangs in the driver past the deadline, Within returns an error and does not wait longer.
func (c *Cleanup) Within(run func(context.Context) error) error {
	_, err := within(c.n.config.EpilogDeadline, site.EpilogMargin, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, run(ctx)
	})
	return err
}

// Undo undoes a lease as the epilog does. The caller holds the job's lock.
func (c *Cleanup) Undo(ctx context.Context, l lease.Lease) error {
	e := c.n.epilog()
	e.Log = logfile.Of(c.n.out, "reap", l.Job.ID)
	e.RerunCommand = func(job lease.Job) string { return c.n.paths.ReapCommand(job.ID) }
	return e.Undo(ctx, l)
}

// Void ends the daemons of a job without a lease, and removes the job's files. The caller holds the job's lock.
func (c *Cleanup) Void(ctx context.Context, job uint32, daemons []lease.OrphanDaemon) error {
	log := logfile.Of(c.n.out, "reap", job)
	for _, d := range daemons {
		if err := c.n.control.Kill(ctx, d.Job, d.Daemon); err != nil {
			return err
		}
		log.Warn().Str("step", "daemon ended").Int("pid", d.Daemon.Proc.PID).Str("pipe_dir", d.Daemon.PipeDir).Msg("no lease named it")
	}
	if err := c.n.guards.End(ctx, job); err != nil {
		return err
	}
	if err := c.n.store.PurgeStale(ctx, job); err != nil {
		return err
	}
	log.Info().Msg("removed what was left of the job without a lease")
	return nil
}

// FreeBusy unmounts the file systems of closed jobs that are in use no more.
func (c *Cleanup) FreeBusy() error { return c.n.store.FreeBusy(func(lease.Busy) bool { return true }) }
