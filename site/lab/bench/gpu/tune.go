// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/lab/bench/record"
)

// These constants are the parameters for mps-tune: a number of ranks at which rules differ, and the tries for each
// rule.
const (
	tuneRanks   = 8
	tuneRepeats = 5 // mps-tune's own: with fewer, it proves little
)

// tunes returns the programs for mps-tune. Each is asked about alone.
func (b *bench) tunes() []cell {
	var all []cell
	for program := range strings.SplitSeq(wide, ",") {
		all = append(all, cell{kind: "kernels", ranks: tuneRanks, programs: program})
	}
	if b.python == "" {
		return all
	}
	return append(all, cell{kind: "torch", ranks: tuneRanks, programs: "transformer"}, cell{kind: "torch", ranks: tuneRanks, programs: "cg"})
}

// tune lets mps-tune choose a rule for each program, in a job of a real Slurm as a user would.
func (b *bench) tune(ctx context.Context) error {
	return sideBySide(b, b.tunes(), func(l *lane, c cell) error {
		seconds := 5 * tuneRepeats * (c.seconds() - 2) // the cell needs no place of its own
		return b.attempt(ctx, fmt.Sprintf("tune/%s/%d", c.programs, c.ranks), seconds, func(ctx context.Context) ([]record.Line, error) {
			found, err := l.askTune(ctx, c)
			return []record.Line{{Tune: &found}}, err
		})
	})
}

// askTune runs the ranks on the lane's CPUs. Slurm chooses the GPU of the job.
func (l *lane) askTune(ctx context.Context, c cell) (found record.Tune, err error) {
	s, cluster, err := l.ourLab(ctx)
	if err != nil {
		return found, err
	}
	program, err := l.program(c)
	if err != nil {
		return found, err
	}
	line := append(s.Command("mps-tune"), "--json", "--repeats", fmt.Sprint(tuneRepeats), "--within", "1h",
		"--rate", `'"total": ?([0-9.e+]+)'`, "--", "srun", "--mpi=pmix", fmt.Sprintf("-n%d", c.ranks))
	line = append(line, s.Command("mpirun-wrap")...)
	printed, err := l.job(ctx, cluster, []string{"--gres=gpu:1", "--constraint=mps", fmt.Sprintf("-n%d", c.ranks)},
		"export CUDA_LOG_FILE=stderr", // if CUDA refuses a rank, the rank prints the reason, and the report keeps it
		strings.Join(append(line, l.bound(program...)...), " "))
	if err != nil {
		return found, err
	}
	for text := range strings.Lines(printed) {
		if strings.HasPrefix(text, `{"unit"`) {
			found.Program, found.Ranks = c.programs, c.ranks
			return found, json.Unmarshal([]byte(text), &found.Report)
		}
	}
	return found, fmt.Errorf("mps-tune reported nothing: %s", lastLines(printed))
}
