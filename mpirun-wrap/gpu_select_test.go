// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

// A task that can open only its own GPU is on this GPU, whatever --gpu says.
func TestATaskThatIsConfinedToItsGPU(t *testing.T) {
	devices := ticketOf(4, policy.ScopeJob, 1).Devices
	for minor := range devices {
		devices[minor].Minor = minor
	}
	task := launch.Task{LocalRank: 0, LocalSize: 4, Source: launch.SourceStepd}
	for _, choice := range []choice{autoGPU, cyclicGPU, blockGPU} {
		for own := range devices {
			canOpen := func(minor int) bool { return minor == own }
			at := chooseGPU(devices, task, launch.Binding{}, choice, canOpen)
			if !slices.Equal(at.devices, []int{own}) {
				t.Errorf("--gpu=%s: GPU %v of a task that can open %d", choice, at.devices, own)
			}
		}
	}
}

// A process without a launcher keeps the GPUs that its user has named, if they are some of the job's and it is clear
// which. A list that Slurm or TaskProlog sets has all of them.
func TestPinnedByItsUser(t *testing.T) {
	devices := ticketOf(3, policy.ScopeJob, 1).Devices
	for i := range devices {
		devices[i].Position = i
	}
	moved := slices.Clone(devices)
	for i := range moved {
		moved[i].Position = i + 1 // Slurm's numbers of GPUs 1 to 3
	}
	alone, stepd := launch.Task{LocalSize: 1, Source: launch.SourceInherited}, launch.Task{LocalSize: 1, Source: launch.SourceStepd}
	inStep := launch.Task{LocalSize: 1, StepID: "0", Source: launch.SourceInherited}
	for _, c := range []struct {
		name    string
		devices []lease.TicketDevice
		task    launch.Task
		gpu     choice
		visible string
		want    []int
	}{
		{"a number", devices, alone, "", "2", []int{2}},
		{"two numbers in an order", devices, alone, autoGPU, "2,0", []int{2, 0}},
		{"a UUID", devices, alone, "", "GPU-1", []int{1}},
		{"a UUID, whatever Slurm's numbers are", moved, alone, "", "GPU-1", []int{1}},
		{"a number that may mean two GPUs", moved, alone, "", "1", nil},
		{"all of the job's", devices, alone, "", "0,1,2", nil},
		{"not set", devices, alone, "", "", nil},
		{"no GPU of the job", devices, alone, "", "7", nil},
		{"one that is and one that is not", devices, alone, "", "0,7", nil},
		{"what is no device", devices, alone, "", "NoDevFiles", nil},
		{"--gpu is the choice", devices, alone, cyclicGPU, "2", nil},
		{"Slurm's own variable of a task", devices, stepd, "", "2", nil},
		{"and in a shell of the task", devices, inStep, "", "2", nil},
	} {
		r := Rank{Task: c.task, Visible: c.visible, Options: Options{GPU: c.gpu}}
		if got := r.pinned(c.devices); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q gives %v, want %v", c.name, c.visible, got, c.want)
		}
	}
}

// What hides that nothing is shared is said: a job of several tasks without a launcher, and a GPU for each task.
func TestUnsharedGPUs(t *testing.T) {
	alone, four := launch.Task{LocalSize: 1, Source: launch.SourceSingle}, launch.Task{LocalSize: 4, Source: "openmpi"}
	for _, c := range []struct {
		name    string
		gpus    int
		task    launch.Task
		binding launch.Binding
		options Options
		want    string
	}{
		{"no launcher", 1, alone, launch.Binding{}, Options{}, "this starts one process, and the job has 8 tasks on this node: srun"},
		{"slots", 1, alone, launch.Binding{}, Options{Slots: 8}, ""},
		{"a GPU for each task", 4, four, launch.Binding{GPUsPerTask: 1}, Options{}, "each of the 4 ranks has a GPU of its own, so none is shared"},
		{"shared", 2, four, launch.Binding{}, Options{}, ""},
		{"as many ranks as GPUs", 4, four, launch.Binding{}, Options{}, ""},
	} {
		rank := Rank{Task: c.task, Binding: c.binding, Options: c.options, CanOpen: func(int) bool { return true }}
		p := must.Get(Place(ticketOf(c.gpus, policy.ScopeJob, 1), rank))(t)
		got := unshared(slurm.Env{"SLURM_TASKS_PER_NODE": "8"}, p, rank)
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Variables of CUDA that the placement replaces are named once, unless Slurm or slurm-mps has set them.
func TestIgnoredVariables(t *testing.T) {
	ticket := ticketOf(2, policy.ScopeJob, 1)
	ours := ticket.Daemons[0].PipeDir
	ticket.Daemons[0].Devices = []site.UUID{"GPU-0", "GPU-1"}
	for _, c := range []struct {
		env  slurm.Env
		want string
	}{
		{slurm.Env{"CUDA_VISIBLE_DEVICES": "1"}, `CUDA_VISIBLE_DEVICES="1": the rank's number chooses its GPU, see --gpu`},
		{slurm.Env{"CUDA_VISIBLE_DEVICES": "2,3"}, ""},
		{slurm.Env{"CUDA_VISIBLE_DEVICES": "0,0"}, `CUDA_VISIBLE_DEVICES="0,0": the rank's number chooses its GPU, see --gpu`},
		{slurm.Env{"CUDA_VISIBLE_DEVICES": "GPU-zzz"}, `CUDA_VISIBLE_DEVICES="GPU-zzz": the rank's number chooses its GPU, see --gpu`},
		{slurm.Env{"CUDA_VISIBLE_DEVICES": " 1"}, `CUDA_VISIBLE_DEVICES=" 1": the rank's number chooses its GPU, see --gpu`},
		{slurm.Env{"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1", "CUDA_MPS_PIPE_DIRECTORY": ours, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
			"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-0=8192M"}, ""},
		{slurm.Env{"CUDA_MPS_PIPE_DIRECTORY": ours, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M,1=8192M"}, ""},
		{slurm.Env{"CUDA_MPS_PIPE_DIRECTORY": ours, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "1=8192M"}, `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="1=8192M": give --mem, like --mem=8G`},
		{slurm.Env{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8G"}, `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=8G": give --mem, like --mem=8G`},
		{slurm.Env{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}, `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25": give --share, like --share=25%`},
		{slurm.Env{"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mine"}, `CUDA_MPS_PIPE_DIRECTORY="/tmp/mine": the job has an MPS daemon`},
		{slurm.Env{"CUDA_MPS_PIPE_DIRECTORY": "/run/slurm-mps/jobs/6/0/pipe"}, ""}, // of the job that has submitted this one
	} {
		p := must.Get(Place(ticket, Rank{Task: launch.Task{LocalSize: 2, Source: "openmpi"}}))(t)
		if got := strings.Join(p.ignored(c.env), "; "); got != c.want {
			t.Errorf("%v: %q, want %q", c.env, got, c.want)
		}
	}
	shared := Placement{Ticket: lease.Ticket{Part: lease.Part{Gres: "mps", Units: 50, Count: 100}}}
	if got := shared.ignored(slurm.Env{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}); got != nil {
		t.Errorf("Slurm's own percentage of gres/mps: %q", got)
	}
}
