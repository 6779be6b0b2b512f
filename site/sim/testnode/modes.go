// SPDX-License-Identifier: Apache-2.0

package testnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// Unchanged is the attribute of a policy by which the prolog leaves compute modes alone.
const Unchanged = `compute_mode = "unchanged"`

// MayChangeModes reports whether whoever runs this lets jobs change the compute modes of real GPUs: the machine is
// theirs, and idle. Nothing but 1 says so, since what is almost a yes may be a mistake, and the GPUs somebody else's.
func MayChangeModes() bool { return os.Getenv("ALLOW_MODE_CHANGES") == "1" }

// Compute is the compute_mode that a policy for real GPUs gives: the shipped one where that is allowed.
func Compute() string {
	if MayChangeModes() {
		return `compute_mode = "exclusive_process"`
	}
	return Unchanged
}

// GPU is a GPU and its compute mode.
type GPU struct {
	UUID site.UUID
	Mode site.Mode
}

// smiDeadline bounds nvidia-smi: where no persistence daemon holds the GPUs, the driver initialises each of them first.
const smiDeadline = time.Minute

// realGPUs are this machine's GPUs. nvidia-smi says their modes, so that no program on stage is its own witness.
func realGPUs() ([]GPU, error) {
	ctx, cancel := context.WithTimeout(context.Background(), smiDeadline)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=uuid,compute_mode", "--format=csv,noheader").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("cannot read compute modes: nvidia-smi: %w: %s", err, out)
	}
	var gpus []GPU
	for line := range strings.Lines(string(out)) {
		uuid, mode, found := strings.Cut(strings.TrimSpace(line), ", ")
		if !found || !strings.HasPrefix(uuid, "GPU-") {
			return nil, fmt.Errorf("cannot read compute modes: nvidia-smi says %q", line)
		}
		gpus = append(gpus, GPU{site.UUID(uuid), site.Mode(strings.ToLower(mode))})
	}
	if len(gpus) == 0 {
		return nil, errors.New("cannot read compute modes: nvidia-smi lists no GPU")
	}
	return gpus, nil
}

// WrongModes says which GPUs of a real node are not in the mode that they should be in while a job holds some: those in
// exclusive_process, every other as it was before. Where modes are left alone there is nothing to say.
func (s Stage) WrongModes(held ...site.UUID) ([]string, error) {
	if len(s.Before) == 0 {
		return nil, nil
	}
	gpus, err := realGPUs()
	if err != nil {
		return nil, err
	}
	now := map[site.UUID]site.Mode{}
	for _, gpu := range gpus {
		now[gpu.UUID] = gpu.Mode
	}
	want := map[site.UUID]site.Mode{}
	for _, gpu := range s.Before {
		want[gpu.UUID] = gpu.Mode
	}
	for _, uuid := range held {
		want[uuid] = site.ModeExclusiveProcess
	}
	var wrong []string
	for uuid, mode := range want {
		if now[uuid] != mode {
			wrong = append(wrong, fmt.Sprintf("%s in mode %q, not %q", uuid, now[uuid], mode))
		}
	}
	slices.Sort(wrong)
	return wrong, nil
}

// CloseLeft runs the epilog of every job that has a lease. What fails between a prolog and its epilog on a real node
// would else leave somebody's GPUs exclusive.
func (s Stage) CloseLeft(ctx context.Context) error {
	boot, err := site.BootID()
	if err != nil {
		return err
	}
	journal := lease.OpenReadOnly(s.Paths().Run(), boot)
	jobs, err := journal.Jobs()
	for _, id := range jobs {
		err = errors.Join(err, s.closeJob(ctx, journal, id))
	}
	return err
}

func (s Stage) closeJob(ctx context.Context, journal *lease.Store, id uint32) error {
	left, err := journal.Read(id)
	if err != nil {
		return err
	}
	job := Job{ID: id, UID: left.Job.UID, GID: left.Job.GID}
	result, err := s.Run(ctx, job.Environment("epilog_slurmd"), "epilog")
	if err == nil && result.Code != 0 {
		err = fmt.Errorf("cannot close job %d: epilog ends with %d: %s", id, result.Code, result.Output)
	}
	return err
}
