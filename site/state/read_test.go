// SPDX-License-Identifier: Apache-2.0

package state

import (
	"os"
	"os/exec"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A wrapper may hold the files of a process that has died, and the driver goes on to list it.
func TestAProcessThatHasEndedIsNotOnTheGPU(t *testing.T) {
	dead := exec.Command("true")
	must.OK(t, dead.Run())
	var n Node
	(&Reader{}).takeGPUs(&n, []gpu.Status{{Processes: []gpu.Process{{PID: dead.Process.Pid, MPS: true}, {PID: os.Getpid()}}}})
	if got := n.GPUs[0].Processes; len(got) != 1 || got[0].PID != os.Getpid() {
		t.Errorf("%+v", got)
	}
}
