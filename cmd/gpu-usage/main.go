// SPDX-License-Identifier: Apache-2.0

// Command gpu-usage tells a guard what GPUs have left and how busy they are.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/hook"
)

func main() { os.Exit(hook.Usage(cli.ThisProcess())) }
