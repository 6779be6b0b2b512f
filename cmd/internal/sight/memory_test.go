package sight

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
)

// A process that holds up whoever reads it costs one deadline, and is left alone from then on.
func TestAProcessThatHoldsUpItsReader(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	var asked atomic.Int32
	m := memory{fetch: func(path string) ([]byte, error) {
		if path == "/proc/5/environ" {
			asked.Add(1)
			<-release
		}
		return []byte(path), nil
	}}
	began := time.Now()
	for range 3 {
		if _, err := m.read(t.Context(), site.Proc{PID: 5, Start: 1}, "environ"); !errors.Is(err, errStuck) {
			t.Errorf("read: %v", err)
		}
	}
	if took := time.Since(began); asked.Load() != 1 || took < memoryDeadline || took > 2*memoryDeadline+time.Second {
		t.Errorf("asked %d times in %v, want once in %v", asked.Load(), took, memoryDeadline)
	}
	if content, err := m.read(t.Context(), site.Proc{PID: 6, Start: 1}, "cmdline"); err != nil || string(content) != "/proc/6/cmdline" {
		t.Errorf("another process: %q, %v", content, err)
	}
}

func TestMemoryOfAProcess(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	cmd.Env = []string{"CUDA_VISIBLE_DEVICES=GPU-1", "X=" + string(bytes.Repeat([]byte("x"), 100_000))}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	stat, err := site.ReadStat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	var m memory
	for { // between fork and exec it still has this process's environment
		content, err := m.read(t.Context(), stat.Proc, "environ")
		if err == nil && bytes.HasPrefix(content, []byte("CUDA_VISIBLE_DEVICES=GPU-1\x00X=xxx")) && len(content) > 100_000 {
			break
		}
		if !site.Pause(t.Context(), time.Millisecond) {
			t.Fatalf("the environment is not read: %v", err)
		}
	}
	if _, err := m.read(context.Background(), site.Proc{PID: 1 << 30}, "environ"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nobody: %v", err)
	}
}

// A wrapper may hold the files of a process that has died, and the driver goes on to list it.
func TestAProcessThatHasEndedIsNotOnTheGPU(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	var n Node
	(&Reader{}).takeGPUs(&n, []gpu.Sight{{Processes: []gpu.Process{{PID: dead.Process.Pid, MPS: true}, {PID: os.Getpid()}}}})
	if got := n.GPUs[0].Processes; len(got) != 1 || got[0].PID != os.Getpid() {
		t.Errorf("%+v", got)
	}
}
