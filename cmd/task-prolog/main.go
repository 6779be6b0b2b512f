// SPDX-License-Identifier: Apache-2.0

// Command task-prolog is slurmd's TaskProlog=. It places ranks that run without mpirun-wrap.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/wrap"
)

func main() { os.Exit(wrap.TaskProlog(cli.ThisProcess())) }
