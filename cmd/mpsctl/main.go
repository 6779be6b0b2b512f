// SPDX-License-Identifier: Apache-2.0

// Command mpsctl shows the state of a node, and the grants and shares that slurm-mps would give on any machine. Under
// the name mps-tune, it finds the number of ranks and the share that are the fastest for a user's program.
package main

import (
	"os"
	"path/filepath"

	"github.com/slurm-mps/slurm-mps/cmd/mpsctl/tune"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
)

func main() {
	if filepath.Base(os.Args[0]) == "mps-tune" {
		os.Exit(command.Run(cli.ThisProcess(), tune.Command))
	}
	os.Exit(command.Run(cli.ThisProcess(), mpsctl))
}
