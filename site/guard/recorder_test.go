// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// At its end, the guard waits for the recorder's last report, and for no more: the end of a process with NVML takes
// longer. A recorder that hangs is killed.
func TestTheRecordersLastReport(t *testing.T) {
	const slow = "/bin/cat; /bin/sleep 0.1; echo whole >$0; exec >/dev/null; "
	for name, c := range map[string]struct {
		script, want string
		limit        time.Duration
	}{
		"it has written":  {slow + "exec /bin/sleep 1000", "whole\n", time.Minute},
		"it ends":         {slow, "whole\n", time.Minute},
		"it hangs before": {"exec /bin/sleep 1000", "", time.Millisecond},
	} {
		report := filepath.Join(t.TempDir(), "report")
		p := must.Get(proc.StartPiped("/bin/sh", "-c", c.script, report))(t)
		r := &recorder{make(chan usage.Event, 1), make(chan *proc.Child, 1), c.limit}
		r.started <- p
		go r.send(p.In)
		r.close()
		r.end()
		if got, _ := os.ReadFile(report); string(got) != c.want {
			t.Errorf("%s: the report is %q", name, got)
		}
		select {
		case <-p.Ended:
		case <-time.After(time.Minute):
			t.Errorf("%s: it is not killed", name)
		}
	}
}
