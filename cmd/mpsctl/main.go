// SPDX-License-Identifier: Apache-2.0

// Command mpsctl shows the state of a node, and what slurm-mps would do on it or on any machine.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/mpsctl"
)

func main() {
	os.Exit(mpsctl.Run(cli.ThisProcess(), mpsctl.Commands()...))
}
