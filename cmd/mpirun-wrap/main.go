// SPDX-License-Identifier: Apache-2.0

// Command mpirun-wrap places one rank on the job's GPUs and becomes its program, under MPS.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/wrap"
)

func main() { os.Exit(wrap.Wrap(cli.ThisProcess())) }
