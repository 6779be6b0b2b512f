// SPDX-License-Identifier: Apache-2.0

// Command mpsctl looks at a node, and says what slurm-mps would do there or on any machine.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/cmd/internal/audit"
	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/ctl"
	"github.com/slurm-mps/slurm-mps/cmd/internal/doctor"
	"github.com/slurm-mps/slurm-mps/cmd/internal/metrics"
	"github.com/slurm-mps/slurm-mps/cmd/internal/plan"
	"github.com/slurm-mps/slurm-mps/cmd/internal/policycmd"
	"github.com/slurm-mps/slurm-mps/cmd/internal/reap"
	"github.com/slurm-mps/slurm-mps/cmd/internal/sitefiles"
	"github.com/slurm-mps/slurm-mps/cmd/internal/status"
	"github.com/slurm-mps/slurm-mps/cmd/internal/tune"
)

func main() {
	os.Exit(ctl.Mpsctl(cli.ThisProcess(), status.Command, audit.Command, plan.Command, policycmd.Command, reap.Command, doctor.Command, metrics.Command, sitefiles.Command, tune.Command))
}
