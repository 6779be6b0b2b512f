// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// A stranger opens the driver's device 10,000 times a second. The guard's scans then take 2 % of a core. Go's runtime
// adds up to the same again for the wake-ups, on a virtual machine with slow system calls (measured: 6 to 8 % in all).
// The guard finds a client nevertheless, because the daemon writes a line when the client connects.
//
// Contract: G3
func TestHostileOpeningsCostLittle(t *testing.T) {
	s := e2e.NewShared(t)
	device := filepath.Join(s.Paths().Devices(), "nvidia-uvm")
	var opened atomic.Int64
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
			select {
			case <-stop:
				return
			default:
			}
			for range 10 {
				if file, err := os.Open(device); err == nil {
					file.Close()
					opened.Add(1)
				}
			}
		}
	}()
	const settle, window, least = 2 * time.Second, 4 * time.Second, 10000
	wait.Sleep(s.Ctx, settle) // the first looks are frequent
	before, began, first := computed(t, s.Guard.PID), time.Now(), opened.Load()
	wait.Sleep(s.Ctx, window)
	s.Until("attack", func() bool { return opened.Load()-first >= least }) // on a busy machine it takes longer
	used, took := computed(t, s.Guard.PID)-before, time.Since(began)
	client := s.Start("spin", "-ms", "5", "-for", "900")
	s.Holds(2)
	t.Logf("%d openings, %v of processor time in %v", opened.Load()-first, used, took)
	if used > took/3 { // a guard that looks at each opening takes all of a core
		t.Errorf("%v of processor time in %v", used, took)
	}
	client.Kill()
}
