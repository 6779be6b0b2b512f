// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

// TaskProlog takes from a job the daemon of the job that has submitted it. It leaves a job's own daemon, and a daemon
// that its user has started.
//
// Contract: K7
func TestTheSubmittersDaemon(t *testing.T) {
	paths, _, ticket := newJob(t)                // of job 7
	const first = "/run/slurm-mps/jobs/7/0/pipe" // as a prolog names it
	own := ticket.Daemons[0].PipeDir
	unset := "unset CUDA_MPS_PIPE_DIRECTORY\nunset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\n"
	for _, c := range []struct {
		name, pipe string
		job        int
		more       []string
		want       string
	}{
		{"a job without MPS, from a job with MPS", first, 8, nil, unset},
		{"the same, from --own", "/tmp/slurm-mps-1000/0123456789abcdef/jobs/7/0/pipe", 8, nil, unset},
		{"from --own outside of Slurm", "/run/user/1000/slurm-mps-1000/0123456789abcdef/jobs/1/0/pipe", 8, nil, unset},
		{"a task of a step", first, 8, []string{"SLURM_STEP_ID=0"}, unset},
		{"an array's task", first, 8, []string{"SLURM_ARRAY_JOB_ID=7", "SLURM_ARRAY_TASK_ID=1"}, unset},
		{"from a component of a heterogeneous job", first, 8, []string{"SLURM_HET_SIZE=2", "SLURM_JOB_ID_HET_GROUP_0=6", "SLURM_JOB_ID_HET_GROUP_1=7"}, unset},
		{"a component's own", own, 6, []string{"SLURM_HET_SIZE=2", "SLURM_JOB_ID_HET_GROUP_0=6", "SLURM_JOB_ID_HET_GROUP_1=7"},
			"export CUDA_VISIBLE_DEVICES="},
		{"a user's own daemon", "/tmp/mps-of-job-8/pipe", 8, nil, ""},
		{"CUDA's own place", "/tmp/nvidia-mps", 8, nil, ""},
		{"the daemon that --own has started in this job", "/tmp/slurm-mps-1000/0123456789abcdef/jobs/8/0/pipe", 8, nil, ""},
		{"a job with MPS, from another one", strings.Replace(first, "/7/", "/6/", 1), 7, nil, "export CUDA_VISIBLE_DEVICES="},
		{"the same, switched off", strings.Replace(first, "/7/", "/6/", 1), 7, []string{"SLURM_MPS=off"}, unset},
		{"switched off, its own", own, 7, []string{"SLURM_MPS=off"}, ""},
		{"a job with gres/mps, whose percentage is Slurm's", first, 8, []string{"GPU_DEVICE_ORDINAL=3"}, "unset CUDA_MPS_PIPE_DIRECTORY\n"},
		{"its place cannot be read", first, 8, []string{"SLURM_GTIDS=x"}, unset},
	} {
		env := []string{
			"CUDA_MPS_PIPE_DIRECTORY=" + c.pipe, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25", "CUDA_VISIBLE_DEVICES=0", fmt.Sprintf("SLURM_TASK_PID=%d", os.Getpid()),
			fmt.Sprintf("SLURM_JOB_ID=%d", c.job), "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NODEID=0",
		}
		var out bytes.Buffer
		run := newRun(os.Getpid(), append(append(c.more, "SLURM_GTIDS=0", "GPU_DEVICE_ORDINAL=0"), env...), &out, &out)
		run.Paths = paths
		whole := !strings.HasPrefix(c.want, "export")
		if run.printTask(); whole && out.String() != c.want || !strings.HasPrefix(out.String(), c.want) {
			t.Errorf("%s: it prints\n%swant\n%s", c.name, out.String(), c.want)
		}
	}
	var out bytes.Buffer
	run := newRun(1, []string{"SLURM_JOB_ID=7", "SLURM_LOCALID=0", "CUDA_MPS_PIPE_DIRECTORY=/run/slurm-mps/jobs/6/0/pipe"}, &out, nil)
	run.printUnplaced(errors.New("its own daemon does not answer"))
	if !strings.HasPrefix(out.String(), "print slurm-mps: its own") || !strings.HasSuffix(out.String(), "\nunset CUDA_MPS_PIPE_DIRECTORY\n") {
		t.Errorf("it gives up with\n%s", out.String())
	}
}

// A batch script that was submitted by a task of a step with two tasks is no rank, and sees all GPUs of its job.
func TestABatchScriptFromAStep(t *testing.T) {
	paths, store, ticket := newJob(t)
	second := ticket.Devices[0]
	second.UUID, second.Minor, second.Position = "GPU-4", 4, 1
	ticket.Devices, ticket.Daemons[0].Devices = append(ticket.Devices, second), []site.UUID{"GPU-3", "GPU-4"}
	must.OK(t, store.WriteTicket(ticket))
	env := []string{
		"SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_NODEID=0", fmt.Sprintf("SLURM_TASK_PID=%d", os.Getpid()),
		"SLURM_STEP_ID=3", "SLURM_STEP_TASKS_PER_NODE=2", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_GPUS=0",
	}
	for step, want := range map[string]int{"batch": 2, "interactive": 2, "3": 1, "": 1} {
		var out bytes.Buffer
		run := newRun(os.Getpid(), env, &out, &out)
		run.Paths, run.stepOf = paths, func(int, int) string { return step }
		run.printTask()
		list, _, _ := strings.Cut(strings.TrimPrefix(out.String(), "export CUDA_VISIBLE_DEVICES="), "\n")
		if got := strings.Count(list, "GPU-"); got != want {
			t.Errorf("step %q: %d GPUs, want %d:\n%s", step, got, want, out.String())
		}
	}
}

// A program whose user has hidden all GPUs gets no GPU, no place and no slot. In a job without a ticket, it hears why.
func TestNoGPUIsWanted(t *testing.T) {
	paths, _, ticket := newJob(t)
	for _, list := range []string{"", "-1", "NoDevFiles", "-1,0"} {
		for job, want := range map[int]string{7: "", 8: "cannot find ticket of job 8"} {
			env := []string{
				fmt.Sprintf("SLURM_JOB_ID=%d", job), "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_NODEID=0",
				"CUDA_VISIBLE_DEVICES=" + list, "CUDA_MPS_PIPE_DIRECTORY=" + ticket.Daemons[0].PipeDir, "A=b",
			}
			var said bytes.Buffer
			run := newRun(os.Getpid(), env, nil, &said)
			run.Paths, run.Options = paths, Options{Slots: 4, Report: true}
			got, err := run.prepare()
			if want != "" {
				must.Hold(t, err != nil && strings.HasPrefix(err.Error(), want), "%q in job %d: %v, want %s", list, job, err, want)
				continue
			}
			if err != nil || !slices.Equal(got[len(got)-2:], []string{"A=b", "CUDA_VISIBLE_DEVICES=" + list}) ||
				slices.Contains(got, env[6]) || run.task.Source == launch.SourceSlot {
				t.Errorf("%q: %v, %v", list, got, err)
			}
			if want := fmt.Sprintf("mpirun-wrap: running without a GPU and MPS: CUDA_VISIBLE_DEVICES is %q\n", list); said.String() != want {
				t.Errorf("%q: it prints %q, want %q", list, said.String(), want)
			}
		}
	}
}
