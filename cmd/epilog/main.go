// SPDX-License-Identifier: Apache-2.0

// Command epilog is slurmd's Epilog= on a node that shares GPUs through MPS. Under the name gpu-usage, it reports the
// GPUs' free memory and utilisation to a guard.
package main

import (
	"os"
	"path/filepath"

	"github.com/slurm-mps/slurm-mps/prolog/frame"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/guard/gpuusage"
)

func main() {
	if filepath.Base(os.Args[0]) == "gpu-usage" {
		os.Exit(gpuusage.Main(cli.ThisProcess()))
	}
	os.Exit(frame.Epilog(cli.ThisProcess()))
}
