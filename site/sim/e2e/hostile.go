// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// MPSNames are the names of processes that root's programs look for, as the kernel cuts them.
var MPSNames = []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "slurmd", "slurmstepd"}

// OtherUID is a user who has nothing to do with the job.
var OtherUID = UID + 1

// Hostile is the program of the attacks, testdata/hostile, built once.
var Hostile = sync.OnceValues(func() (string, error) {
	shared, err := testnode.Shared()
	if err != nil {
		return "", err
	}
	path := filepath.Join(shared, "hostile")
	if os.Getenv("BUILT_FOLDER") != "" {
		return path, nil
	}
	build := exec.Command("go", "build", "-o", path, Module+"cmd/e2e/hostile/testdata/hostile")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build the attacks: %w: %s", err, out)
	}
	return path, nil
})

// ControlIs makes a script the control program of the site, and keeps the simulated library.
func (p Node) ControlIs(script string) {
	path := filepath.Join(filepath.Dir(p.Root), "control")
	p.Write(path, script)
	must.OK(p.T, os.Chmod(path, 0o755))
	p.Write(p.Paths().ConfigFile(), fmt.Sprintf("nvml_library = %q\nmps_control = %q\n", p.Sim.NVML(), path))
}
