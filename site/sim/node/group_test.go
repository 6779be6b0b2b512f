// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A group gets a signal while its leader is not reaped, also if the leader has ended. Afterwards the number may be another
// group's, and no process gets one.
func TestSignalGroup(t *testing.T) {
	for _, c := range []struct {
		name   string
		reaped bool
		left   string // what the member prints
	}{
		{"a leader that was waited for", true, "lives\n"},
		{"a leader that was not waited for", false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			leader := exec.Command("sh", "-c", "(echo begins; sleep 0.5; echo lives) & read line")
			leader.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			in, err1 := leader.StdinPipe()
			out, err2 := leader.StdoutPipe()
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			must.OK(t, leader.Start())
			lines := bufio.NewReader(out)
			if line, err := lines.ReadString('\n'); line != "begins\n" {
				t.Fatalf("%q, %v", line, err)
			}
			in.Close()
			if c.reaped {
				if _, err := leader.Process.Wait(); err != nil {
					t.Fatal(err)
				}
			} else {
				time.Sleep(50 * time.Millisecond)
			}
			if err := SignalGroup(leader, syscall.SIGKILL); (err != nil) != c.reaped {
				t.Errorf("the signal: %v", err)
			}
			if line, _ := lines.ReadString('\n'); line != c.left {
				t.Errorf("the member of the group prints %q, want %q", line, c.left)
			}
			_ = leader.Wait()
		})
	}
}
