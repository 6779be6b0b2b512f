// Command mpsctl says what slurm-mps would do, on any machine: no GPU, no daemon and no Slurm is asked.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/plan"
)

func main() { os.Exit(plan.Mpsctl(cli.ThisProcess())) }
