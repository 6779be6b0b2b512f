// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/lab/bench/record"
)

// What mps-tune is tried with: the ranks, at which rules differ, and how often it tries each rule.
const (
	tuneRanks   = 8
	tuneRepeats = 2
)

// tunes are the programs that it is asked about, each by itself.
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

// tune has mps-tune name a rule for each program, in a job of a real Slurm as a user would.
func (b *bench) tune(ctx context.Context) error {
	return sideBySide(b, b.tunes(), func(l *lane, c cell) error {
		seconds := 5 * tuneRepeats * (c.seconds() - 2) // a place of its own it need not have
		return b.attempt(ctx, fmt.Sprintf("tune/%s/%d", c.programs, c.ranks), seconds, func(ctx context.Context) ([]record.Line, error) {
			found, err := l.askTune(ctx, c)
			return []record.Line{{Tune: &found}}, err
		})
	})
}

// askTune has the ranks on the lane's CPUs; which GPU the job gets is Slurm's to say.
func (l *lane) askTune(ctx context.Context, c cell) (found record.Tune, err error) {
	s, cluster, err := l.ourLab(ctx)
	if err != nil {
		return found, err
	}
	program, err := l.program(c)
	if err != nil {
		return found, err
	}
	line := append(s.Command("mps-tune"), "--json", "--repeats", fmt.Sprint(tuneRepeats), "--seconds", "2m", "--within", "1h", "--launcher",
		fmt.Sprintf("'srun --mpi=pmix -n%d'", c.ranks), "--rate", `'"total": ?([0-9.e+]+)'`, "--")
	said, err := l.job(ctx, cluster, []string{"--gres=gpu:1", "--constraint=mps", fmt.Sprintf("-n%d", c.ranks)},
		"export CUDA_LOG_FILE=stderr", // a rank that CUDA refuses says why, and the report keeps it
		strings.Join(append(line, l.bound(program...)...), " "))
	if err != nil {
		return found, err
	}
	for text := range strings.Lines(said) {
		if strings.HasPrefix(text, `{"unit"`) {
			found.Program, found.Ranks = c.programs, c.ranks
			return found, json.Unmarshal([]byte(text), &found.Report)
		}
	}
	return found, fmt.Errorf("mps-tune reported nothing: %s", lastLines(said))
}
