// SPDX-License-Identifier: Apache-2.0

// Command gpu-usage reports the GPUs' free memory and utilisation to a guard.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/hook"
)

func main() { os.Exit(hook.Usage(cli.ThisProcess())) }
