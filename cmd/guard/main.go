// SPDX-License-Identifier: Apache-2.0

// Command guard holds the driver files of a job's dead clients, so that the job's other clients live.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/guard/program"
)

func main() { os.Exit(program.Main(cli.ThisProcess())) }
