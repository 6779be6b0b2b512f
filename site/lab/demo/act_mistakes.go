// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
)

var mistakes = act{
	title: "A mistake gets a sentence",
	before: "You see three mistakes of a user: more SMs than the GPU has, no GPU, and a job that the site's policy denies. " +
		"After them you see the state of the node.",
	after: "It means: the user reads what is wrong and what to do. The node is idle and takes the next job, because a " +
		"user's mistake never takes a node out of service (in Slurm's words: it drains no node).",
	run: showMistakes,
}

// mistake is a command line of the user, and a part of the sentence that the program must print.
type mistake struct{ line, want string }

var userMistakes = []mistake{
	{"srun --gres=gpu:1 --constraint=mps mpirun-wrap --share=200% ./app", "want a percentage above 0 and up to 100"},
	{"srun --constraint=mps mpirun-wrap ./app", "submit it with --gres=gpu:N"},
	{"srun -p edu --gres=gpu:2 --constraint=mps mpirun-wrap ./app", "MPS on the edu partition is for one GPU at a time"},
}

func showMistakes(ctx context.Context, s showing) error {
	for _, m := range userMistakes {
		result, err := s.do(ctx, s.user, m.line)
		if err != nil {
			return err
		}
		if result.Exit == 0 || !strings.Contains(result.Stdout, m.want) {
			return fmt.Errorf("%s ends with code %d and does not print %q", m.line, result.Exit, m.want)
		}
		if err := s.waitIdle(ctx); err != nil {
			return err
		}
	}
	printed, err := s.must(ctx, s.user, sinfo)
	if err == nil && !strings.Contains(printed, "idle") {
		err = fmt.Errorf("the node is not idle")
	}
	return err
}

const sinfo = `sinfo -p main -o "%10P %8T %E"`
