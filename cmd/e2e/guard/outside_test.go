// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// The guard finds a process that was started without the daemon's folder and logs it with the cause, and leaves the
// process alone. It does not log a client of MPS beside that process.
//
// Contract: K4
func TestAProcessOutsideMPSIsNamed(t *testing.T) {
	s := e2e.NewShared(t, `compute_mode = "unchanged"`)
	client := s.Neighbour()
	titled := s.Start("title", "spin", "-for", "600") // which keeps the variable, and shows it no more
	s.Env = slices.DeleteFunc(slices.Clone(s.Env), func(v string) bool { return strings.HasPrefix(v, "CUDA_MPS_PIPE_DIRECTORY=") })
	began := time.Now()
	outsider := s.Neighbour()
	pid := outsider.Process.Pid
	line := fmt.Sprintf(`"pid":%d,`, pid)
	logged := func() string {
		for line := range strings.Lines(s.Log()) {
			if strings.Contains(line, "is not a client of its MPS daemon") {
				return line
			}
		}
		return ""
	}
	if !e2e.Comes(func() bool { return logged() != "" }) {
		t.Fatalf("the guard does not log process %d\n%s", pid, s.Log())
	}
	if took := time.Since(began); took < 5*time.Second-100*time.Millisecond {
		t.Errorf("logged after %v: the guard checked the process only once", took)
	}
	const cause = "it was started without CUDA_MPS_PIPE_DIRECTORY"
	if said := logged(); !strings.Contains(said, line) || !strings.Contains(said, cause) || !strings.Contains(said, `"program":"guard"`) {
		t.Errorf("the log has %s, want %s and %q", said, line, cause)
	}
	s.When(func() bool { return len(s.State().Outside) > 0 }) // the guard writes its state once a second
	for _, command := range []string{"status", "audit"} {
		if found := s.Outsiders(command); !strings.Contains(found[pid], cause) || len(found) != 1 {
			t.Errorf("%s: %v, want pid %d alone with %q", command, found, pid, cause)
		}
	}
	if status := s.Ctl("status").Output; !strings.Contains(status, "overwritten its environment") {
		t.Errorf("status of a client with a title:\n%s", status)
	}
	must.Hold(t, !s.Ended(outsider) && !s.Ended(client) && !s.Ended(titled), "a process has ended")
	for _, r := range []*e2e.Running{client, outsider, titled} {
		r.Kill()
	}
	s.Must(0, s.Job, "epilog")
	if log := s.Log(); strings.Count(log, "is not a client of its MPS daemon") != 1 || !strings.Contains(log, `"outside":1,`) {
		t.Errorf("the log does not report exactly one outside process:\n%s", log)
	}
}
