// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"

	"github.com/slurm-mps/slurm-mps/cmd/internal/logfile"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// Cleanup is what mpsctl reap does with a node: the undo of the house and its parts, for many jobs.
type Cleanup struct {
	n     node
	close func()
}

// OpenCleanup puts a node together for reaping. It makes the folders of state and the log where they are missing.
func OpenCleanup(paths site.Paths) (*Cleanup, error) {
	out, closeLog := logfile.Open(paths.Log())
	n, err := open(paths, out, "reap", 0)
	if err != nil {
		closeLog()
		return nil, err
	}
	return &Cleanup{n, closeLog}, nil
}

// Close gives back what was opened.
func (r *Cleanup) Close() { r.close() }

// Store is the node's.
func (r *Cleanup) Store() *lease.Store { return r.n.store }

// Within runs an act on one job with an epilog's deadline, which signals shorten. One that hangs in the driver past
// it is left behind.
func (r *Cleanup) Within(act func(context.Context) error) error {
	return within(r.n.config.EpilogDeadline, site.EpilogMargin, act)
}

// Undo undoes a lease as the epilog does; the caller has the job's turn.
func (r *Cleanup) Undo(ctx context.Context, l lease.Lease) error {
	c := r.n.closer()
	c.Log = logfile.Of(r.n.out, "reap", l.Job.ID)
	c.RerunCommand = func(job lease.Job) string { return r.n.paths.ReapCommand(job.ID) }
	return c.Undo(ctx, l)
}

// Void ends the daemons of a job that has no lease, and removes its files; the caller has the job's turn.
func (r *Cleanup) Void(ctx context.Context, job uint32, daemons []OrphanDaemon) error {
	log := logfile.Of(r.n.out, "reap", job)
	for _, d := range daemons {
		if err := r.n.control.Kill(ctx, d.Job, d.Daemon); err != nil {
			return err
		}
		log.Warn().Str("step", "daemon ended").Int("pid", d.Daemon.Proc.PID).Str("pipe_dir", d.Daemon.PipeDir).Msg("no lease named it")
	}
	if err := r.n.guards.End(ctx, job); err != nil {
		return err
	}
	if err := r.n.store.PurgeStale(ctx, job); err != nil {
		return err
	}
	log.Info().Msg("removed what was left of the job without a lease")
	return nil
}

// OrphanDaemon is a daemon that no lease names, with the job and the user that its own process says it is of.
type OrphanDaemon struct {
	Job    lease.Job
	Daemon lease.Daemon
}

// GPUs is the driver of this node.
type GPUs interface {
	Devices() ([]site.Device, error)
	Mode(site.UUID) (site.Mode, error)
}

// DriverReadOnly is the driver of the node for who only looks. Each call ends within the epilog's deadline.
func DriverReadOnly(paths site.Paths) GPUs {
	facts, _ := policyfile.ReadConfig(paths)
	return &lazyGPUs{library: facts.NVMLLibrary, timeout: facts.EpilogDeadline / 2}
}
