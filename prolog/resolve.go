// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"fmt"
	"slices"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// resolution is the devices of a job, or why it is not certain which devices it has.
type resolution struct {
	devices []site.Device
	refusal string
}

// resolve finds the devices of the job. If they are not certain, the job is refused with a sentence for the ticket.
func (p Prolog) resolve(job slurm.Job) (resolution, error) {
	gres, err := p.Slurm.Gres(job)
	if err != nil {
		return resolution{}, err
	}
	if refusal := shares(gres, job); refusal != "" {
		return resolution{refusal: refusal}, nil
	}
	refs, err := slurm.ResolvePositions(gres, job)
	if err != nil {
		return resolution{refusal: err.Error()}, nil
	}
	if len(refs) == 0 {
		return resolution{refusal: fmt.Sprintf("job %d asks for MPS and has no GPU on node %s: submit it with --gres=gpu:N", job.ID, job.Node)}, nil
	}
	var found resolution
	switch refs[0].By {
	case slurm.ByUUID:
		found.devices, err = findEach(refs, func(r slurm.DeviceRef) (site.Device, error) { return p.GPUs.Find(r.UUID) })
	case slurm.ByMinor:
		found.devices, err = findEach(refs, func(r slurm.DeviceRef) (site.Device, error) { return p.GPUs.ByMinor(r.N) })
	default:
		found.devices, found.refusal, err = p.picked(gres, refs)
	}
	if err != nil || found.refusal != "" {
		return resolution{refusal: found.refusal}, err
	}
	found.refusal, err = p.unsuitable(found.devices)
	return found, err
}

// shares returns why a job may not have whole GPUs: Slurm itself shares the node's GPUs among jobs.
func shares(gres slurm.Gres, job slurm.Job) string {
	switch {
	case job.GresMPS:
		return fmt.Sprintf("job %d has a part of a GPU by gres/mps, and MPS here takes whole GPUs: submit it with --gres=gpu:N", job.ID)
	case slices.Contains(gres.Shared, "shard"):
		return fmt.Sprintf("node %s shares its GPUs by gres/shard, and Slurm does not report whether job %d has a whole "+
			"one: submit it to a node without shards", job.Node, job.ID)
	}
	return ""
}

// findEach finds each device by itself, so that a failed GPU fails only the jobs that have it.
func findEach(refs []slurm.DeviceRef, one func(slurm.DeviceRef) (site.Device, error)) ([]site.Device, error) {
	devices := make([]site.Device, len(refs))
	for i, ref := range refs {
		device, err := one(ref)
		if err != nil {
			return nil, err
		}
		devices[i] = device
	}
	return devices, nil
}

// picked finds devices by their place in a list that Slurm sorted. For that it needs all devices of the node.
func (p Prolog) picked(gres slurm.Gres, refs []slurm.DeviceRef) (devices []site.Device, refusal string, err error) {
	all, err := p.GPUs.Devices()
	if err != nil {
		return nil, "", err
	}
	devices, err = slurm.MatchDevices(gres, refs, all)
	if err != nil {
		return nil, err.Error(), nil
	}
	return devices, "", nil
}

// volta is the first compute capability whose MPS isolates clients and has shares.
const volta = 7

// unsuitable returns why MPS cannot share one of the devices, "" if it can share all.
func (p Prolog) unsuitable(devices []site.Device) (string, error) {
	for _, d := range devices {
		if d.MIGMode {
			return fmt.Sprintf("%s is in MIG mode, and the job has it whole: ask for an instance of it", d.UUID), nil
		}
		major, minor, err := p.GPUs.Capability(d.UUID)
		if err != nil {
			return "", err
		}
		if major < volta {
			return fmt.Sprintf("%s (%s) has compute capability %d.%d: MPS shares a GPU safely from %d.0 (Volta) on", d.UUID, d.Name, major, minor, volta), nil
		}
	}
	return "", nil
}
