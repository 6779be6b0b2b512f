// SPDX-License-Identifier: Apache-2.0

// Command prolog is slurmd's Prolog= on a node that shares GPUs through MPS.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/prolog/frame"
	"github.com/slurm-mps/slurm-mps/site/cli"
)

func main() { os.Exit(frame.Prolog(cli.ThisProcess())) }
