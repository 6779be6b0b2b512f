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
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// Unchanged is the attribute of a policy with which the prolog does not change compute modes.
const Unchanged = `compute_mode = "unchanged"`

// MayChangeModes reports whether jobs may change the compute modes of real GPUs. You allow this with
// ALLOW_MODE_CHANGES=1 if the machine is yours and idle. No other value allows it, because another value may be a
// mistake and the GPUs may belong to other people.
func MayChangeModes() bool { return os.Getenv("ALLOW_MODE_CHANGES") == "1" }

// Compute returns the compute_mode for a policy on real GPUs. It is the shipped policy's mode if the modes may be
// changed.
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

// smiDeadline bounds nvidia-smi. If no persistence daemon holds the GPUs, the driver first initialises each of them.
const smiDeadline = time.Minute

// realGPUs returns this machine's GPUs. It reads their modes with nvidia-smi, because the programs under test must
// not be their own check.
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
			return nil, fmt.Errorf("cannot read compute modes: nvidia-smi prints %q", line)
		}
		gpus = append(gpus, GPU{site.UUID(uuid), site.Mode(strings.ToLower(mode))})
	}
	if len(gpus) == 0 {
		return nil, errors.New("cannot read compute modes: nvidia-smi lists no GPU")
	}
	return gpus, nil
}

// WrongModes returns the GPUs of a real node that have a wrong mode while a job holds some GPUs. The held GPUs must
// be in exclusive_process, and every other GPU in the mode that it had before. If the policy does not change modes,
// the result is empty.
func (s Node) WrongModes(held ...site.UUID) ([]string, error) {
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

// CloseLeft runs the epilog of every job that has a lease. Without it, a test that fails between a prolog and its
// epilog on a real node would leave GPUs in exclusive mode.
func (s Node) CloseLeft(ctx context.Context) error {
	boot, err := proc.BootID()
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

func (s Node) closeJob(ctx context.Context, journal *lease.Store, id uint32) error {
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
