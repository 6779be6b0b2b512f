// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"fmt"
	"slices"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// resolution is the devices of a job and its part of each, or why it is not certain which devices it has.
type resolution struct {
	devices []site.Device
	part    lease.Part
	refusal string
}

// resolve finds the devices of the job, which MPS must be able to share.
func (p Prolog) resolve(job slurm.Job) (resolution, error) {
	found, err := p.locate(job, p.ask)
	if err != nil || found.refusal != "" {
		return resolution{refusal: found.refusal}, err
	}
	found.refusal, err = p.unsuitable(found.devices)
	return found, err
}

// locate finds the devices of the job among those of find. If they are not certain, the job is refused with a sentence
// for the ticket.
func (p Prolog) locate(job slurm.Job, find func([]slurm.DeviceRef) ([]site.Device, error)) (resolution, error) {
	gres, err := p.Slurm.Gres(job)
	if err != nil {
		return resolution{refusal: unread(err)}, nil
	}
	refs, err := slurm.ResolvePositions(gres, job)
	if err != nil {
		return resolution{refusal: err.Error()}, nil
	}
	if len(refs) == 0 {
		return resolution{refusal: fmt.Sprintf("job %d asks for MPS and has no GPU on node %s: submit it with --gres=gpu:N", job.ID, job.Node)}, nil
	}
	var found resolution
	if found.part, err = partOf(gres, job); err != nil {
		return resolution{refusal: err.Error()}, nil
	}
	all, err := find(refs)
	if err != nil {
		return resolution{}, err
	}
	if found.devices, err = slurm.MatchDevices(gres, refs, all); err != nil {
		return resolution{refusal: err.Error()}, nil
	}
	return found, nil
}

// unread is the sentence of a job that is refused because Slurm's files cannot be read. slurmd has started with them and
// has sent the job, so the node is no worse than its files, and stays in service.
func unread(err error) string {
	return fmt.Sprintf("%v: ask your admin, whose mpsctl doctor shows it", err)
}

// ask asks NVML for devices, for each by itself, so that a failed GPU fails only the jobs that have it. The place in a
// list that Slurm has sorted needs all devices of the node.
func (p Prolog) ask(refs []slurm.DeviceRef) (all []site.Device, err error) {
	for _, ref := range refs {
		var device site.Device
		switch ref.By {
		case slurm.ByUUID:
			device, err = p.GPUs.Find(ref.UUID)
		case slurm.ByMinor:
			device, err = p.GPUs.ByMinor(ref.N)
		default:
			return p.GPUs.Devices()
		}
		if err != nil {
			return nil, err
		}
		all = append(all, device)
	}
	return all, nil
}

// list lists the node's GPUs without NVML, which may hang. MIG instances are in no list of the driver's.
func (p Prolog) list(refs []slurm.DeviceRef) (all []site.Device, err error) {
	all, err = p.Listed()
	for _, ref := range refs {
		if ref.UUID.MIG() {
			all = append(all, site.Device{UUID: ref.UUID, Minor: -1})
		}
	}
	return all, err
}

// partOf returns the part of each GPU that Slurm has given the job. On a node with shards, nothing tells a prolog whether
// the job has a part or whole GPUs (recorded). So other jobs may have the same GPUs, and
// each rank finds the job's part in SLURM_SHARDS_ON_NODE.
func partOf(gres slurm.Gres, job slurm.Job) (lease.Part, error) {
	if job.MPSPercent > 0 {
		return lease.Part{Gres: lease.GresMPS, Units: job.MPSPercent, Count: 100}, nil
	}
	if !slices.Contains(gres.Shared, lease.GresShard) {
		return lease.Part{}, nil
	}
	position := 0
	if len(job.GPUs) > 0 {
		position = job.GPUs[0]
	}
	count, err := gres.SharedCount(lease.GresShard, position)
	if err != nil || count == 0 { // no other job has a part of this GPU
		return lease.Part{}, err
	}
	return lease.Part{Gres: lease.GresShard, Count: count}, nil
}

// singleServer returns why several daemons cannot serve the job's GPUs, if other jobs may have daemons there. In
// EXCLUSIVE_PROCESS mode, one server alone can use a GPU.
func (p Prolog) singleServer(found resolution) (refusal string, err error) {
	if !found.part.Shared() {
		return "", nil
	}
	for _, d := range found.devices {
		if d.UUID.MIG() {
			continue
		}
		mode, err := p.GPUs.Mode(d.UUID)
		if err != nil {
			return "", err
		}
		if mode != site.ModeDefault {
			return fmt.Sprintf("%s is in mode %s, and Slurm shares it among jobs by gres/%s, so that several MPS daemons must serve it: ask your admin to set it back: "+
				"nvidia-smi -i %s -c DEFAULT", d.UUID, mode, found.part.Gres, d.UUID), nil
		}
	}
	return "", nil
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
