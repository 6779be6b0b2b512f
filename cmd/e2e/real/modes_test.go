// SPDX-License-Identifier: Apache-2.0

package real_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// These tests use the code for a real machine (testnode.Real, its policies, nvidia-smi) with a simulated driver and
// daemon. Their names lack the word by which gpu.sh selects tests for a real machine.

// smi replaces nvidia-smi. It knows one query.
const smi = `#!/bin/sh
[ "$*" = "--query-gpu=uuid,compute_mode --format=csv,noheader" ] || exit 2
for gpu in %s/gpu*; do
    case $(cat $gpu/compute_mode) in 0) mode=Default ;; 3) mode=Exclusive_Process ;; *) mode=Other ;; esac
    echo "$(cat $gpu/uuid), $mode"
done
`

// likeReal lets the TestReal* tests find a machine with three GPUs instead of this machine.
func likeReal(t *testing.T) sim.Sim {
	t.Helper()
	e2e.NeedRoot(t)
	built, err := e2e.Built()
	if err != nil {
		t.Fatal(err)
	}
	dir := e2e.PublicDir(t)
	s, err := sim.New(filepath.Join(dir, "sim"), filepath.Join(built, "sim"), node.H200, node.H200, node.H200)
	if err != nil {
		t.Fatal(err)
	}
	if err := node.WriteProgram(filepath.Join(dir, "nvidia-smi"), fmt.Appendf(nil, smi, s.Node.Dir)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("LD_LIBRARY_PATH", s.Libraries())
	control := s.Program("nvidia-cuda-mps-control")
	simulatedMachine = &machine{3, control, fmt.Sprintf("mps_control = %q\nnvml_library = %q\n", control, s.NVML())}
	t.Cleanup(func() { simulatedMachine = nil })
	return s
}

// nodeModes are the simulated driver's modes, read without a program. "303" means that the second of three is
// DEFAULT.
func nodeModes(t *testing.T, s sim.Sim) string {
	t.Helper()
	return e2e.Node{Node: testnode.Node{Sim: &s}, T: t}.Modes()
}

// refuseModes makes the driver refuse every change of a mode.
func refuseModes(t *testing.T, s sim.Sim) {
	t.Helper()
	for i := range 3 {
		if err := s.Node.GPU(i).Fail("nvmlDeviceSetComputeMode", 4, 0); err != nil { // 4: not permitted
			t.Fatal(err)
		}
	}
}

// Only ALLOW_MODE_CHANGES=1 allows a change of a compute mode. Otherwise the tests of a real machine refuse a policy
// that changes modes, and they pass on a driver that refuses every change.
func TestModesAreLeftAloneUnlessAllowed(t *testing.T) {
	for _, said := range []string{"", "0", "2", "11", "1 ", "true", "yes"} {
		t.Run(said, func(t *testing.T) {
			s := likeReal(t)
			t.Setenv("ALLOW_MODE_CHANGES", said)
			for _, policy := range []string{testnode.Default(), testnode.Default(`compute_mode = "exclusive_process"`)} {
				if _, err := testnode.Real(t.TempDir(), "", policy); err == nil || !strings.Contains(err.Error(), "ALLOW_MODE_CHANGES") {
					t.Errorf("a real node under %s: %v", policy, err)
				}
			}
			refuseModes(t, s)
			p := realTestNode(t)
			p.Must(0, p.Job(7, "0,2"), "prolog")
			p.holdsModes(7)
			if got := nodeModes(t, s); got != "000" {
				t.Errorf("modes %s while the job is open", got)
			}
			p.Must(0, p.Job(7, "0,2"), "epilog")
			p.Clean()
		})
	}
}

// With ALLOW_MODE_CHANGES=1 the prolog sets only the job's GPUs exclusive, and the epilog restores their modes. The
// checks of the tests of a real machine see the change.
func TestModesChangeWhereAllowed(t *testing.T) {
	s := likeReal(t)
	t.Setenv("ALLOW_MODE_CHANGES", "1")
	p := realTestNode(t, `drain_grace = "100ms"`)
	p.Must(0, p.Job(7, "0,2"), "prolog")
	if got := nodeModes(t, s); got != "303" {
		t.Errorf("modes %s while the job is open, want 303", got)
	}
	p.holdsModes(7)
	if out := p.info(7); !strings.Contains(out, "sm=") {
		t.Errorf("a rank prints %q", out)
	}
	outside := exec.CommandContext(p.Ctx, p.CudaClient(), "info")
	outside.Env = []string{"LD_LIBRARY_PATH=" + s.Libraries(), "CUDA_MPS_PIPE_DIRECTORY=/nonexistent"}
	p.Client(7, "spin", "-ms", "1", "-for", "60") // so that the server holds the GPU
	if out, _ := outside.CombinedOutput(); !strings.Contains(string(out), "err=46") {
		t.Errorf("a process outside MPS is not kept out: %s", out)
	}
	if left := p.Leftovers(); !slices.ContainsFunc(left, func(l string) bool { return strings.Contains(l, `in mode "exclusive_process", not "default"`) }) {
		t.Errorf("two modes are not as before, but left reports only %q", left)
	}
	if err := s.Node.GPU(1).SetMode(node.ExclusiveProcess); err != nil {
		t.Fatal(err)
	}
	if wrong, err := p.WrongModes(p.Ticket(7).Devices[0].UUID, p.Ticket(7).Devices[1].UUID); err != nil || len(wrong) != 1 {
		t.Errorf("the mode of a GPU that is not the job's has changed: %q, %v", wrong, err)
	}
	if err := s.Node.GPU(1).SetMode(node.Default); err != nil {
		t.Fatal(err)
	}
	p.Must(0, p.Job(7, "0,2"), "epilog")
	if got := nodeModes(t, s); got != "000" {
		t.Errorf("modes %s after the epilog", got)
	}
	p.Clean()
}

// A test that ends before its epilog leaves no GPU exclusive. A driver that refuses a change of mode fails the
// prolog, and TestModesAreLeftAloneUnlessAllowed depends on this.
func TestModesArePutBackAfterAFailure(t *testing.T) {
	s := likeReal(t)
	t.Setenv("ALLOW_MODE_CHANGES", "1")
	p := realTestNode(t)
	p.Must(0, p.Job(7, "0"), "prolog")
	p.Must(0, p.Job(8, "1,2"), "prolog")
	if got := nodeModes(t, s); got != "333" {
		t.Errorf("modes %s while the jobs are open", got)
	}
	p.closeLeft()
	if got := nodeModes(t, s); got != "000" {
		t.Errorf("modes %s afterwards", got)
	}
	p.Clean()
	refuseModes(t, s)
	p.Must(1, p.Job(9, "0"), "prolog")
	p.Clean()
}

// The tests of a real machine pass if modes may change. TestRealCounts is not among them, because it takes too long
// for what it shows here.
func TestActsWhereModesMayChange(t *testing.T) {
	s := likeReal(t)
	t.Setenv("ALLOW_MODE_CHANGES", "1")
	for _, act := range []struct {
		name string
		test func(*testing.T)
	}{
		{"life", TestRealLife}, {"trial", TestRealTrial}, {"tools", TestRealTools}, {"epilog", TestRealEpilogEndsWhatIsLeft},
		{"placements", TestRealPlacementsOnTwoGPUs},
	} {
		t.Run(act.name, func(t *testing.T) {
			act.test(t)
			if got := nodeModes(t, s); got != "000" {
				t.Errorf("modes %s afterwards", got)
			}
		})
	}
}
