package cmd_test

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// Work that no drain outlasts: the wrapper has the daemon end each rank, in turn, and no neighbour is harmed, nor where the
// work is on the GPU for a moment longer than its program.
func TestTheWrapperHasTheDaemonEndLongWork(t *testing.T) {
	for _, clears := range []string{"0", "200"} {
		t.Run("off the GPU after "+clears+" ms", func(t *testing.T) {
			p := newPlay(t, "", node.H200)
			p.fault("terminate_clears_ms", clears)
			p.must(0, p.job(7, "0"), "prolog")
			neighbour := p.client(7, "spin", "-ms", "1", "-for", "6")
			var ranks []*exec.Cmd
			for range 3 {
				ranks = append(ranks, p.client(7, "spin", "-ms", "60000", "-for", "60"))
			}
			began := time.Now()
			for _, rank := range ranks {
				if err := rank.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			for _, rank := range ranks {
				_ = rank.Wait()
				if code := rank.ProcessState.ExitCode(); code != 128+15 {
					t.Errorf("code %d after %v", code, time.Since(began))
				}
			}
			log := p.serverLog(7)
			if ended := strings.Count(log, "Client termination succeeded."); ended != 3 || strings.Contains(log, "fatal GPU error") {
				t.Errorf("%d ranks were terminated:\n%s", ended, log)
			}
			if _ = neighbour.Wait(); neighbour.ProcessState.ExitCode() != 0 {
				t.Errorf("the neighbour ends with %d", neighbour.ProcessState.ExitCode())
			}
			p.must(0, p.job(7, "0"), "epilog")
			p.clean()
		})
	}
}
