// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// outsiders returns the processes that a command of mpsctl reports as no clients of MPS, and the report on each.
// status reports them with the job's guard, audit reports them as findings.
func (s *shared) outsiders(command string) map[int]string {
	s.t.Helper()
	var report struct {
		Jobs []struct {
			Guard struct{ Outside []lease.Outside }
		}
		Findings []struct {
			Kind, What string
			PID        int
		}
	}
	result := s.ctl(command, "--json")
	if err := json.Unmarshal([]byte(result.Output), &report); err != nil {
		s.t.Fatalf("%s: %v: %s", command, err, result.Output)
	}
	found := map[int]string{}
	for _, j := range report.Jobs {
		for _, o := range j.Guard.Outside {
			found[o.Proc.PID] += o.Cause + "\n"
		}
	}
	for _, f := range report.Findings {
		if f.Kind == "process-without-mps" {
			found[f.PID] += f.What + "\n"
		}
	}
	return found
}

// The guard finds a process that was started without the daemon's folder and logs it with the cause, and leaves the
// process alone. It does not log a client of MPS beside that process.
//
// Contract: K4
func TestAProcessOutsideMPSIsNamed(t *testing.T) {
	s := newShared(t, `compute_mode = "unchanged"`)
	client := s.neighbour()
	s.env = slices.DeleteFunc(slices.Clone(s.env), func(v string) bool { return strings.HasPrefix(v, "CUDA_MPS_PIPE_DIRECTORY=") })
	began := time.Now()
	outsider := s.neighbour()
	pid := outsider.Process.Pid
	line := fmt.Sprintf(`"pid":%d,`, pid)
	logged := func() string {
		for line := range strings.Lines(s.log()) {
			if strings.Contains(line, "is not a client of its MPS daemon") {
				return line
			}
		}
		return ""
	}
	for logged() == "" {
		if time.Since(began) > 5*time.Second+slack || !site.Sleep(s.ctx, 50*time.Millisecond) {
			t.Fatalf("the guard does not log process %d\n%s", pid, s.log())
		}
	}
	if took := time.Since(began); took < 5*time.Second-100*time.Millisecond {
		t.Errorf("logged after %v: the guard checked the process only once", took)
	}
	const cause = "it was started without CUDA_MPS_PIPE_DIRECTORY"
	if said := logged(); !strings.Contains(said, line) || !strings.Contains(said, cause) || !strings.Contains(said, `"program":"guard"`) {
		t.Errorf("the log has %s, want %s and %q", said, line, cause)
	}
	// The guard writes its state once a second.
	for len(s.state().Outside) == 0 && site.Sleep(s.ctx, 50*time.Millisecond) {
	}
	for _, command := range []string{"status", "audit"} {
		if found := s.outsiders(command); !strings.Contains(found[pid], cause) || len(found) != 1 {
			t.Errorf("%s: %v, want pid %d alone with %q", command, found, pid, cause)
		}
	}
	if s.ended(outsider) || s.ended(client) {
		t.Error("a process has ended")
	}
	for _, r := range []*running{client, outsider} {
		r.kill()
	}
	s.must(0, s.job, "epilog")
	if log := s.log(); strings.Count(log, "is not a client of its MPS daemon") != 1 || !strings.Contains(log, `"outside":1,`) {
		t.Errorf("the log does not report exactly one outside process:\n%s", log)
	}
}
