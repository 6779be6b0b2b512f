// SPDX-License-Identifier: Apache-2.0

package gauge

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
)

// The line of the largest node arrives whole: each GPU has as many clients as MPS serves, and samples of two seconds.
func TestTheLineOfALargeNode(t *testing.T) {
	var want []Usage
	for range 16 {
		usage := Usage{Known: true, TotalMiB: 143771, FreeMiB: 143771, Clients: map[int]int{}, WorkKnown: true}
		for pid := range policy.MaxClients {
			usage.Clients[4194304-pid] = 143771
			usage.Processes = append(usage.Processes, 4194304-pid)
			usage.Work = append(usage.Work, Work{PID: 4194304 - pid, Micros: 1764374400000000, Percent: 100})
		}
		for range 20 {
			usage.Samples = append(usage.Samples, Sample{Micros: 1764374400000000, Percent: 100})
		}
		want = append(want, usage)
	}
	line, err := json.Marshal(want)
	path := filepath.Join(t.TempDir(), "line")
	if err == nil {
		err = os.WriteFile(path, append(line, '\n'), 0o600)
	}
	must.OK(t, err)
	g := must.Get(Start([]string{"/bin/cat", path}, func() {}))(t)
	defer g.Stop()
	select {
	case got := <-g.Lines:
		must.Hold(t, reflect.DeepEqual(got, want), "of a line of %d bytes, %d GPUs arrive", len(line), len(got))
	case <-time.After(time.Minute):
		t.Error("no line arrives")
	}
}

// A program that does not start leaves no file open: neither a pipe nor /dev/null.
func TestAGaugeThatDoesNotStart(t *testing.T) {
	if leaks := testproc.Leaks(t, func() {
		if _, err := Start([]string{"/none"}, func() {}); err == nil {
			t.Error("it starts")
		}
	}); leaks > 0 {
		t.Errorf("%d files are left open", leaks)
	}
}
