// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"errors"
	"slices"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

func (p Prolog) publish(l lease.Lease, t lease.Ticket) error {
	return errors.Join(p.Store.SetPhase(&l, lease.Opened), p.Store.WriteTicket(t))
}

// ticket returns the ticket of a job. The lease that serves it has the daemons: its own, or a shared one.
func (p Prolog) ticket(l, serving lease.Lease, a admission, devices []site.Device) lease.Ticket {
	l.Job.Groups = nil // only the lease needs them
	g, positions := a.verdict.Grant, positions(a.job)
	g.MaxClients = p.maxClients(serving, g)
	t := lease.Ticket{
		Job: l.Job, Rule: a.verdict.Rule, Grant: g, RunWithoutMPS: g.OnFailure == policy.FailRunWithout,
		Exclusive: slices.ContainsFunc(l.GPUs, func(gpu lease.LeasedGPU) bool { return gpu.NewMode == site.ModeExclusiveProcess }),
		Daemons:   serving.Daemons, ControlProgram: p.Site.Control, ExchangeDir: p.Store.ExchangeDir(l.Job.ID),
		Part: l.Part, Joined: l.Joined,
	}
	for i, device := range devices {
		n := slices.IndexFunc(serving.Daemons, func(d lease.Daemon) bool { return slices.Contains(d.Devices, device.UUID) })
		position := -1
		if positions != nil {
			position = positions[i]
		}
		t.Devices = append(t.Devices, lease.TicketDevice{Device: device, Position: position, Daemon: n})
	}
	return t
}

// maxClients returns how many ranks may share a GPU: the granted number, or fewer if MPS serves fewer or the daemons
// may not open enough files.
func (p Prolog) maxClients(l lease.Lease, g policy.Grant) int {
	g.MaxClients = min(g.MaxClients, l.Clients)
	clients := g.MaxClients
	for _, d := range l.Daemons {
		if fit, err := p.Daemons.Fit(len(d.Devices)); err == nil {
			clients = min(clients, fit)
		}
	}
	if clients < g.MaxClients {
		p.Log.Warn().Int("granted", g.MaxClients).Int("max_clients", clients).Msg("fewer ranks fit on a GPU: the daemon's limit of open files is low: mpsctl doctor")
	}
	return clients
}
