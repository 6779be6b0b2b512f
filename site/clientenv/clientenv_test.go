// SPDX-License-Identifier: Apache-2.0

package clientenv

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
)

const (
	gpuA = site.UUID("GPU-aaaaaaaa-0000-0000-0000-000000000001")
	gpuB = site.UUID("GPU-bbbbbbbb-0000-0000-0000-000000000002")
)

// The environment of a client, as CUDA reads it.
func TestParseLimits(t *testing.T) {
	a, b := string(gpuA), string(gpuB)
	for _, c := range []struct {
		environment string // a variable a word
		percent     policy.Percent
		ignored     string
		memory      map[site.UUID]int
	}{
		{"", 0, "", nil},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=33.333334", 33333334, "", nil},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=0", 0, `"0"`, nil},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=101", 0, `"101"`, nil},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=abc", 0, `"abc"`, nil},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=-5", 0, `"-5"`, nil},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=", 0, `""`, nil},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=NaN", 0, `"NaN"`, nil},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=\x1b[31m", 0, `"\x1b[31m"`, nil},
		{"CUDA_VISIBLE_DEVICES=" + a + " CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + a + "=512M", 0, "", map[site.UUID]int{gpuA: 512}},
		{"CUDA_VISIBLE_DEVICES=" + a + "," + b + " CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=1=2G", 0, "", map[site.UUID]int{gpuB: 2048}},
		{"CUDA_VISIBLE_DEVICES=" + a + " CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + a + "=2G," + b + "=2G", 0, "", nil}, // one is not seen: all are dropped
		{"CUDA_VISIBLE_DEVICES=" + a + " CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=1=2G", 0, "", nil},
		{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G", 0, "", map[site.UUID]int{gpuA: 2048, gpuB: 2048}}, // which it means cannot be told
		{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=", 0, "", nil},
		{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=99999999999999999999G", 0, "", nil},
		{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1K", 0, "", map[site.UUID]int{gpuA: 1, gpuB: 1}},
	} {
		variables := map[string]string{}
		for entry := range strings.FieldsSeq(c.environment) {
			name, value, _ := strings.Cut(entry, "=")
			variables[name] = value
		}
		l := environmentIn(variables)
		must.Hold(t, l.Percent == c.percent && l.Ignored == c.ignored,
			"%q: percentage %v, ignored %s", c.environment, l.Percent, l.Ignored)
		for _, uuid := range []site.UUID{gpuA, gpuB} {
			mib, ok := l.MemoryMiB(uuid)
			if want, has := c.memory[uuid]; mib != want || ok != has {
				t.Errorf("%q: on %s %d MiB, %v, want %d, %v", c.environment, uuid, mib, ok, want, has)
			}
		}
	}
}

// A task of a job array has the array's name and its own number, as in Slurm's JOB_TASK.
func TestJobName(t *testing.T) {
	for want, variables := range map[string]map[string]string{
		"":                      {},
		"relax_":                {nameVariable: "relax_"},
		"ar.sh_1":               {nameVariable: "ar.sh", taskVariable: "1"},
		strings.Repeat("x", 64): {nameVariable: strings.Repeat("x", 64), taskVariable: "1"},
	} {
		if got := environmentIn(variables).JobName; got != want {
			t.Errorf("%v: %q, want %q", variables, got, want)
		}
	}
}

// The name of a task in its array is 4711_3. A user can set one of the two variables without the other.
func TestArray(t *testing.T) {
	for _, c := range []struct{ array, task, want string }{
		{"4711", "3", "4711_3"}, {"", "3", ""}, {"4711", "", ""}, {"", "", ""}, {"4711", "-3", ""}, {"x", "3", ""},
	} {
		got := environmentIn(map[string]string{arrayVariable: c.array, taskVariable: c.task}).Array
		must.Hold(t, got == c.want, "%q and %q: %q, want %q", c.array, c.task, got, c.want)
	}
}

// A daemon is its user's, and may name any pid: the environment of a process that is not the user's stays unread.
func TestLimitsOfSomebodyElsesProcess(t *testing.T) {
	own := uint32(os.Getuid())
	if l := Read(t.Context(), []int{os.Getpid()}, own)[os.Getpid()]; l.Unknown != "" {
		t.Errorf("of this process: %s", l.Unknown)
	}
	for pid, want := range map[int]string{os.Getpid(): fmt.Sprintf("it is not a process of uid %d", own+1), 1 << 30: "the process has ended"} {
		if l := Read(t.Context(), []int{pid}, own+1)[pid]; l.Unknown != want {
			t.Errorf("of %d: %q, want %q", pid, l.Unknown, want)
		}
	}
}

// A program that writes a title over its environment has its own copy, with limits that are not known then.
func TestAProgramThatHasOverwrittenItsEnvironment(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	cmd.Env = []string{"A=b", "SLURM_JOB_ID=7", percentVariable + "=25", "CUDA_MPS_PIPE_DIRECTORY=/run/x"}
	must.OK(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	testproc.Overwrite(t, cmd.Process.Pid)
	e := Read(t.Context(), []int{cmd.Process.Pid}, uint32(os.Getuid()))[cmd.Process.Pid]
	must.Hold(t, e.Unknown == "its program has overwritten its environment", "%+v", e)
}
