// SPDX-License-Identifier: Apache-2.0

// Command mps-tune finds the number of ranks and the share that are the fastest for a user's program.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/mpsctl"
	"github.com/slurm-mps/slurm-mps/cmd/internal/tune"
)

func main() {
	os.Exit(mpsctl.RunAlone(cli.ThisProcess(), tune.Command))
}
