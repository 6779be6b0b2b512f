// SPDX-License-Identifier: Apache-2.0

// Command task-prolog is slurmd's TaskProlog=. It places ranks that run without mpirun-wrap. Its command line is in
// cmd/internal/wrap, and what it does in mpirun-wrap.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/wrap"
)

func main() { os.Exit(wrap.TaskProlog(cli.ThisProcess())) }
