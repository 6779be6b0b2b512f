// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// A rank runs without MPS only if the policy allows it, and never on an exclusive GPU. One rank says so.
//
// Contract: K3
func TestWhichRankRunsWithoutMPS(t *testing.T) {
	off := &mpirunwrap.UnavailableError{UUID: "GPU-1", Cause: errors.New("its daemon is gone")}
	for _, c := range []struct {
		name               string
		err                error
		without, exclusive bool
		runs               bool
	}{
		{"the policy does not allow it", off, false, false, false},
		{"the policy allows it", off, true, false, true},
		{"the GPU is exclusive", off, true, true, false},
		{"for another reason", errors.New("no ticket"), true, false, false},
	} {
		var printed bytes.Buffer
		h := announcer{p: cli.Process{PID: os.Getpid(), Err: &printed}, placement: mpirunwrap.Placement{
			Ticket: lease.Ticket{RunWithoutMPS: c.without, Exclusive: c.exclusive},
		}}
		err := h.unavailable([]string{"/nowhere/program"}, c.err) // a program that runs would replace this test
		var program *mpirunwrap.ProgramError
		if errors.As(err, &program) != c.runs || !c.runs && !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.name, err)
		}
		if says := strings.Contains(printed.String(), "running without MPS"); says != c.runs {
			t.Errorf("%s: it prints %q", c.name, printed.String())
		}
	}
}
