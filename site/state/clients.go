// SPDX-License-Identifier: Apache-2.0

package state

import (
	"cmp"
	"context"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/clientenv"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// readClients finds the clients of each device of each job, and their limits. The daemon lists the clients. If the
// daemon was not asked, the driver lists them.
func (r *Reader) readClients(ctx context.Context, n *Node) {
	for i := range n.Jobs {
		j := &n.Jobs[i]
		var pids []int
		for k := range j.Devices {
			held := &j.Devices[k]
			for _, d := range j.Daemons {
				held.Clients = append(held.Clients, n.clientsOf(d, held.UUID)...)
			}
			for _, c := range held.Clients {
				pids = append(pids, c.PID)
			}
		}
		known := clientenv.Read(ctx, pids, j.UID)
		for k := range j.Devices {
			clients := j.Devices[k].Clients
			for i := range clients {
				n.limit(&clients[i], *j, j.Devices[k].UUID, known[clients[i].PID])
			}
			slices.SortFunc(clients, func(a, b Client) int { // those without a rank come last
				return cmp.Or(cmp.Compare(uint(a.Rank), uint(b.Rank)), a.PID-b.PID)
			})
		}
		n.readUse(j)
	}
}

// readUse reads a job's report, which has the latest samples.
func (n *Node) readUse(j *Job) {
	if j.Phase != Opened && j.Phase != Recorded {
		return
	}
	folder := lease.OpenReadOnly(n.run, "").JobDir(cmp.Or(j.Joined, j.ID))
	report, err := usage.Read(filepath.Join(folder, usage.RunningOf(j.ID, j.Joined)))
	if err != nil {
		return
	}
	if j.Guard != nil && j.Guard.Boot != "" { // the guard's own counts, which the report has a moment later
		report.Counts = j.Guard.Counts
	}
	j.Report, j.Totals = report, &report.Totals
	for k := range j.Devices {
		for _, g := range report.GPUs {
			if g.UUID == j.Devices[k].UUID && len(g.Samples) > 0 {
				j.Devices[k].Use = &g.Samples[len(g.Samples)-1]
			}
		}
	}
}

// used returns the memory that a process has on a GPU, 0 if that is not known.
func (g *GPU) used(pid int) int {
	if g != nil {
		for _, p := range g.Processes {
			if p.PID == pid {
				return p.UsedMiB
			}
		}
	}
	return 0
}

// clientsOf returns the clients of a daemon on a device, without their limits. If the daemon does not answer, these are
// the driver's.
func (n *Node) clientsOf(d Daemon, uuid site.UUID) (clients []Client) {
	switch {
	case !slices.Contains(d.Devices, uuid):
		return nil
	case d.State == Serves:
		for _, row := range d.rows {
			if on(row.Device, d.Devices, uuid) {
				clients = append(clients, Client{PID: row.PID, Command: path.Base(row.Command), Server: row.Server})
			}
		}
		return clients
	}
	if g := n.GPU(uuid); g != nil && d.State != Gone && len(g.Holders) < 2 {
		for _, p := range g.Processes {
			if p.Kind == KindClient {
				clients = append(clients, Client{PID: p.PID, Command: p.Name})
			}
		}
	}
	return clients
}

// on reports whether a row of ps belongs to a device. The row has the beginning of a UUID. If this fits several of
// the daemon's devices, or none, the row counts for the first device, so that no client is missed.
func on(beginning string, devices []site.UUID, uuid site.UUID) bool {
	fits := func(d site.UUID) bool { return beginning != "" && strings.HasPrefix(string(d), beginning) }
	return devices[max(slices.IndexFunc(devices, fits), 0)] == uuid
}

// limit sets a client's limits on a device. Its own percentage can only lower its server's (measured).
func (n *Node) limit(c *Client, j Job, uuid site.UUID, env clientenv.Environment) {
	c.Unknown, c.ignored, c.Percent = env.Unknown, env.Ignored, env.Percent
	c.Rank, c.Step, c.UsedMiB = env.Rank, env.Step, n.GPU(uuid).used(c.PID)
	if mib, ok := env.MemoryMiB(uuid); ok {
		c.MemoryMiB = &mib
	}
	g := n.GPU(uuid)
	if g == nil || g.SMs == 0 || env.Unknown != "" {
		return
	}
	c.SMs = env.SMs(policy.GPU{SMs: g.SMs, SMsPerTPC: max(g.tpc, 1)}, j.serverPercent(c.Server, uuid))
}

// serverPercent returns the percentage of a client's server. The daemon prints one decimal. If that agrees with the
// job's ceiling, it is the ceiling. It returns 0 if no server reported one.
func (j Job) serverPercent(pid int, uuid site.UUID) policy.Percent {
	for _, d := range j.Daemons {
		if !slices.Contains(d.Devices, uuid) {
			continue
		}
		for _, s := range d.Servers {
			if s.PID == pid || len(d.Servers) == 1 {
				if near(s.Percent, j.Ceiling) {
					return j.Ceiling
				}
				return policy.PercentFrom(s.Percent)
			}
		}
	}
	return 0
}

// near reports whether a daemon's one decimal is a rounded percentage.
func near(reported float64, meant policy.Percent) bool {
	return math.Abs(reported-float64(meant)/1e6) <= 0.0501
}
