// SPDX-License-Identifier: Apache-2.0

package own

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// No signal to all processes of a step ends the keeper before the ranks.
func TestSignalsOfAStep(t *testing.T) {
	if os.Getenv("IGNORE") != "" {
		ignoreSignals()
		status, err := os.ReadFile("/proc/self/status")
		must.OK(t, err)
		fmt.Printf("%s\n", status)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSignalsOfAStep$")
	cmd.Env = append(os.Environ(), "IGNORE=1")
	status, err := cmd.Output()
	_, mask, found := strings.Cut(string(status), "SigIgn:\t")
	if err != nil || !found {
		t.Fatalf("%v: %s", err, status)
	}
	ignored, err := strconv.ParseUint(strings.Fields(mask)[0], 16, 64)
	must.OK(t, err)
	for from, signals := range map[string][]syscall.Signal{
		"a terminal":              {unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP},
		"Slurm":                   {unix.SIGTERM, unix.SIGXCPU},
		"a user, before the end":  {unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM},
		"a reader that has ended": {unix.SIGPIPE},
	} {
		for _, signal := range signals {
			if ignored&(1<<(signal-1)) == 0 {
				t.Errorf("%v of %s ends the keeper", signal, from)
			}
		}
	}
}
