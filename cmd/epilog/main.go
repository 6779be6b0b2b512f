// SPDX-License-Identifier: Apache-2.0

// Command epilog is slurmd's Epilog= on a node that shares GPUs through MPS.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/hook"
)

func main() { os.Exit(hook.Epilog(cli.ThisProcess())) }
