// SPDX-License-Identifier: Apache-2.0

// Command task-prolog is slurmd's TaskProlog=. It places ranks that run without mpirun-wrap. Its command line is in
// mpirun-wrap/wrap, and what it does in mpirun-wrap.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/mpirun-wrap/wrap"
	"github.com/slurm-mps/slurm-mps/site/cli"
)

func main() { os.Exit(wrap.TaskProlog(cli.ThisProcess())) }
