// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

// A stranger opens the driver's device 10,000 times a second. That costs a guard some 3 % of a core. It finds a client nevertheless, because the daemon writes a line when the client connects.
//
// Contract: G3
func TestHostileOpeningsCostLittle(t *testing.T) {
	s := e2e.NewShared(t)
	device := filepath.Join(s.Paths().Devices(), "nvidia-uvm")
	stop, ended := make(chan struct{}), make(chan int)
	go func() {
		opened := 0
		for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
			select {
			case <-stop:
				ended <- opened
				return
			default:
			}
			for range 10 {
				if file, err := os.Open(device); err == nil {
					file.Close()
					opened++
				}
			}
		}
	}()
	const settle, window = 2 * time.Second, 4 * time.Second
	site.Sleep(s.Ctx, settle) // the first looks are frequent
	before := computed(t, s.Guard.PID)
	site.Sleep(s.Ctx, window)
	used := computed(t, s.Guard.PID) - before
	client := s.Start("spin", "-ms", "5", "-for", "60")
	s.Holds(2, time.Second)
	close(stop)
	opened := <-ended
	t.Logf("%d openings, %v of processor time in %v", opened, used, window)
	if opened < 1000 {
		t.Errorf("only %d openings", opened)
	}
	if used > window/10 { // 4 % by the guard's own bound, and a busy machine counts more
		t.Errorf("%v of processor time in %v", used, window)
	}
	client.Kill()
}
