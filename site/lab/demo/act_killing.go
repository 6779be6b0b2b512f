// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/lab"
)

var killing = act{
	title: "A process is killed beside its neighbours",
	before: "You see four ranks on one GPU. The last one is killed (SIGKILL) while its kernel runs, its program on the GPU. " +
		"The first job has slurm-mps. The second job starts NVIDIA's MPS itself, without slurm-mps.",
	after: "It means: a rank that ends during its work does not take the others along. A root process of slurm-mps, the " +
		"guard, keeps the GPU files of the dead rank open until its work on the GPU is done. This was simulated, and " +
		"the simulation loses the neighbours each time. Measured in turns on a real H200 (driver 580.159.04, mode DEFAULT): with " +
		"the guard no neighbour died in 30 endings. On bare MPS, one died in 24 of 30. docs/benchmarks.md (Ends of clients) " +
		"has the rest. A rank that writes to a wrong GPU address still ends the others.",
	run: showKilling,
}

const (
	killWith    = "srun --gres=gpu:1 --constraint=mps -n4 mpirun-wrap ./killed"
	killWithout = "salloc --quiet --gres=gpu:1 -n4 ./bare-mps srun ./killed"
)

func showKilling(ctx context.Context, s showing) error {
	for _, c := range []struct{ line, want string }{{killWith, "finished"}, {killWithout, "died of CUDA error"}} {
		result, err := s.do(ctx, s.user, c.line)
		if err != nil {
			return err
		}
		if err := checkKilled(result, 3, c.want); err != nil {
			return err
		}
		if err := s.waitIdle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// checkKilled checks that exactly one rank was killed, and that its neighbours ended as expected.
func checkKilled(result lab.Result, neighbours int, want string) error {
	killed := strings.Count(result.Stdout, ": killed with SIGKILL")
	if killed != 1 {
		return fmt.Errorf("%d ranks were killed, want 1", killed)
	}
	if got := strings.Count(result.Stdout, ": "+want); got != neighbours {
		return fmt.Errorf("%d of %d neighbours %s, not all", got, neighbours, want)
	}
	if result.Exit == 0 {
		return errors.New("the launch ends with code 0, although a rank was killed")
	}
	return nil
}
