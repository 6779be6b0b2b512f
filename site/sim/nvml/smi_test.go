// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

func smi(t *testing.T, made sim.Sim, args ...string) (output string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, made.Program("nvidia-smi"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // as a plain user
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 2001, Gid: 2001}
	}
	out, _ := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("nvidia-smi %q hangs: %q", args, out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestSMI(t *testing.T) {
	made, _ := created(t, node.H200, node.A100SXM40.Cut(node.A100Slice3))
	text := func(gpu node.GPU, attribute string) string {
		text, err := gpu.Text(attribute)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	h200, a100 := text(made.Node.GPU(0), "uuid"), text(made.Node.GPU(1), "uuid")
	const all = "--query-gpu=index,uuid,name,pci.bus_id,driver_version,compute_mode,mig.mode.current," +
		"memory.total,memory.used,memory.free,utilization.gpu"
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"-L"}, "GPU 0: NVIDIA H200 (UUID: " + h200 + ")\nGPU 1: NVIDIA A100-SXM4-40GB (UUID: " + a100 +
			")\n  MIG 3g.20gb      Device  0: (UUID: " + text(made.Node.GPU(1), "mig/0/uuid") + ")\n", 0},
		{[]string{all, "--format=csv,noheader,nounits"},
			"0, " + h200 + ", NVIDIA H200, 00000000:10:00.0, 580.159.04, Default, Disabled, 143771, 0, 143771, 0\n1, " + a100 +
				", NVIDIA A100-SXM4-40GB, 00000000:20:00.0, 580.159.04, Default, Enabled, 40960, 0, 40960, [N/A]\n", 0},
		{[]string{"--query-gpu=memory.total, utilization.gpu", "--format=csv"},
			"memory.total [MiB], utilization.gpu [%]\n143771 MiB, 0 %\n40960 MiB, [N/A]\n", 0},
		{[]string{"--query-gpu=uuid,sms", "--format=csv"}, "Field \"sms\" is not a valid field to query.\n\n", 2},
	} {
		if got, code := smi(t, made, c.args...); got != c.want || code != c.code {
			t.Errorf("nvidia-smi %q: code %d, %q\nwant %d, %q", c.args, code, got, c.code, c.want)
		}
	}
	if err := made.Node.Fail("nvmlInit_v2", 9, 0); err != nil {
		t.Fatal(err)
	}
	const failed = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
	if got, code := smi(t, made, "-L"); code != 9 || !strings.HasPrefix(got, failed) {
		t.Errorf("without a driver: code %d, %q", code, got)
	}
}
