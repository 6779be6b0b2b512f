// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Recorded bindings of tasks: all GPUs of the step, or the one that Slurm bound to the task.
func TestReadBindingRecorded(t *testing.T) {
	for folder, want := range map[string]func(rank int) Binding{
		"a-gres2-n4": func(int) Binding { return Binding{GPUs: []int{0, 1}, AllOfStep: true} },
		"b-gpt1":     func(rank int) Binding { return Binding{GPUs: []int{rank}, TasksPerGPU: 1, GPUsPerTask: 1, OwnGPUs: 1} },
		"c-gpubind":  func(rank int) Binding { return Binding{GPUs: []int{rank}, TasksPerGPU: 1} },
		"i-nogpu":    func(int) Binding { return Binding{OneTask: true} },
	} {
		for _, path := range recordings(t, "slurm-env/"+folder+"/*.task.n1.s0.p*", 1) {
			got, err := ReadBinding(recording(t, path))
			if rank := int(path[len(path)-1] - '0'); err != nil || !reflect.DeepEqual(got, want(rank)) {
				t.Errorf("%s: %+v, %v; want %+v", path, got, err, want(rank))
			}
		}
	}
}

// For the recorded launches: how many tasks of a node share a task's GPU, and whether all tasks of the step have the
// same GPUs.
func TestReadBindingRecordedLaunches(t *testing.T) {
	same := func(n int) func(int) int { return func(int) int { return n } }
	for name, want := range map[string]struct {
		whole   bool
		highest func(rank int) int
	}{
		"one.srun.n1":                              {true, same(0)},
		"one.two-steps.n1":                         {true, same(0)},
		"one.mpirun.n1":                            {false, same(0)}, // the batch step has no such variable
		"bound.bind-closest.n1":                    {true, same(0)},
		"bound.bind-single-1.n1":                   {false, same(2)},
		"bound.bind-single-2.n1":                   {false, same(2)},
		"bound.bind-single-4.n1":                   {false, same(4)},
		"bound.bind-map_gpu-1-0.n1":                {false, same(2)},
		"bound.bind-map_gpu-1.n1":                  {false, same(4)},
		"bound.bind-map_gpu-1x2-0.n1":              {false, func(rank int) int { return []int{3, 3, 1, 3}[rank] }},
		"bound.bind-mask_gpu-1-2.n1":               {false, same(2)},
		"bound.a-GPU-per-task.n1":                  {false, same(1)},
		"bound.two-tasks-per-GPU.n1":               {false, same(2)},
		"bound.two-tasks-per-GPU-by-srun.n1":       {false, same(2)},
		"bound.more-tasks-than-places.n1":          {false, same(3)},
		"confined.bind-single-2.n1":                {false, same(2)},
		"confined.a-GPU-per-task.n1":               {false, same(1)},
		"three.a-GPU-per-task-mpirun.n2":           {true, same(0)},
		"three.a-GPU-per-task-hydra.n2":            {false, same(0)},
		"three.srun-bound.n2":                      {false, func(rank int) int { return []int{2, 1, 2}[rank] }},
		"three.both-groups.n2":                     {true, same(0)},
		"one.mpirun-in-srun-a-shell-between.n1":    {true, same(0)},
		"one.srun-in-mpirun-a-shell-between.n1":    {true, same(0)},
		"bound.two-tasks-per-GPU-mpirun.n1":        {false, same(2)},
		"confined.two-tasks-per-GPU.n1":            {false, same(2)},
		"confined.a-GPU-per-task-hydra.n1":         {false, same(0)},
		"confined.bind-map_gpu-1.n1":               {false, same(4)},
		"24.11/bound.bind-map_gpu-1.n1":            {false, same(4)},
		"24.11/bound.a-GPU-per-task.n1":            {false, same(1)},
		"24.11/bound.two-tasks-per-GPU-by-srun.n1": {false, same(2)},
		"24.11/confined.a-GPU-per-task.n1":         {false, same(1)},
		"24.11/three.a-GPU-per-task-mpirun.n2":     {true, same(0)},
		"confined.more-tasks-than-places.n1":       {false, same(3)},
	} {
		ranks := launchRecordings(t)[name]
		must.Hold(t, len(ranks) != 0, "%s is not recorded", name)
		for rank, env := range ranks {
			got, err := ReadBinding(env)
			if err != nil || got.AllOfStep != want.whole || got.TasksPerGPU != want.highest(rank) {
				t.Errorf("%s, rank %d: %+v, %v; want %v, %d", name, rank, got, err, want.whole, want.highest(rank))
			}
		}
	}
}

// How many GPUs each task of a recorded launch has for itself: by srun's own binding, and as the only task of its step.
func TestReadBindingOwnGPUs(t *testing.T) {
	for name, want := range map[string]struct {
		own int
		one bool
	}{
		"one.srun.n1":                                     {0, false},
		"bound.a-GPU-per-task.n1":                         {1, false},
		"bound.bind-map_gpu-1-0.n1":                       {0, false},
		"bound.bind-mask_gpu-3-c.n1":                      {2, false},
		"bound.two-GPUs-per-task.n1":                      {2, false},
		"bound.two-GPUs-per-task-by-srun.n1":              {2, false},
		"bound.two-GPUs-per-task-by-both.n1":              {2, false},
		"bound.two-GPUs-per-task-without-sbatch.n1":       {2, false},
		"bound.one-GPU-per-task-of-two.n1":                {1, false},
		"bound.all-GPUs-for-one-task.n1":                  {0, true},
		"bound.two-GPUs-per-task-mpirun.n1":               {0, false}, // the batch script's task
		"confined.two-GPUs-per-task-by-srun.n1":           {2, false},
		"24.11/bound.two-GPUs-per-task-by-srun.n1":        {2, false},
		"24.11/bound.two-GPUs-per-task-without-sbatch.n1": {2, false},
		"24.11/bound.all-GPUs-for-one-task.n1":            {0, true},
		"24.11/confined.two-GPUs-per-task-by-srun.n1":     {2, false},
		"26.05/bound.two-GPUs-per-task-by-srun.n1":        {2, false},
		"26.05/bound.two-GPUs-per-task-without-sbatch.n1": {2, false},
		"26.05/bound.all-GPUs-for-one-task.n1":            {4, true},
		"26.05/confined.two-GPUs-per-task-by-srun.n1":     {2, false},
		"interactive.mpirun.n1":                           {0, false},
	} {
		ranks := launchRecordings(t)[name]
		must.Hold(t, len(ranks) != 0, "%s is not recorded", name)
		for rank, env := range ranks {
			if got, err := ReadBinding(env); err != nil || got.OwnGPUs != want.own || got.OneTask != want.one {
				t.Errorf("%s, rank %d: %+v, %v; want %+v", name, rank, got, err, want)
			}
		}
	}
}

// Ways to bind that were not recorded give these results. The result of an invalid way is unknown.
func TestReadBindingWays(t *testing.T) {
	for bind, want := range map[string]int{
		"gres/gpu:single:3":         3,
		"gpu:verbose,single:3":      3,
		"gpu:single:0":              0,
		"gpu:single:x":              0,
		"gpu:map_gpu:0x1,1,2":       4, // ranks 0, 1, 3 and 4 of 6
		"gpu:map_gpu:1*0":           0,
		"gpu:map_gpu:":              0,
		"gpu:map_gpu:1*99999999":    0,
		"gpu:mask_gpu:0xf,10":       3,
		"gpu:mask_gpu:3,1":          6,
		"gpu:per_task:1":            3, // ranks 4 and 5 find no free GPU, and get the first GPU
		"gpu:per_task:9":            0,
		"gpu:none":                  0,
		"gpu:closest":               0,
		"nic:single:1;gpu:single:6": 6,
		"nic:single:1":              0,
		"single:1":                  0,
	} {
		env := slurm.Env{"SLURM_STEP_GPUS": "0", "SLURM_GPUS_ON_NODE": "4", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0,1,2,3,4,5", "SLURMD_TRES_BIND": bind}
		if got, err := ReadBinding(env); err != nil || got.TasksPerGPU != want {
			t.Errorf("%s: %+v, %v; want %d", bind, got, err, want)
		}
	}
}

// A step that binds nothing has the variable of the process that has submitted its job. Its tasks see two GPUs of two.
func TestASubmittersBinding(t *testing.T) {
	env := slurm.Env{"SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "0,1", "SLURM_GPUS_ON_NODE": "2", "SLURM_LOCALID": "1", "SLURM_GTIDS": "0,1,2,3"}
	want, err := ReadBinding(env)
	must.Have(t, err == nil && want.AllOfStep, "%+v, %v", want, err)
	for _, bind := range []string{"gpu:single:1", "gres/gpu:single:4", "gpu:map_gpu:1,0", "gpu:mask_gpu:0x1,0x2", "gpu:per_task:1", "gres/gpu:per_task:4"} {
		if got, err := ReadBinding(recorded.With(env, slurm.Env{"SLURMD_TRES_BIND": bind})); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", bind, got, err, want)
		}
	}
}

func FuzzReadBinding(f *testing.F) {
	f.Add("gpu:single:4611686018427387904", "4", "gres/gpu=2", "0", "0,1,2")
	f.Add("gres/gpu:mask_gpu:0xf,1*2", "99999999999", "cpu=1,gres/gpu:a:1", "2", "0,1,2")
	f.Add("gpu:per_task:1", "1", "gres/gpu", "-1", ",")
	f.Add("gpu:map_gpu:1,0", "2", "", "-1", "0,1")
	f.Fuzz(func(t *testing.T, bind, onNode, perTask, rank, ids string) {
		env := slurm.Env{"SLURMD_TRES_BIND": bind, "SLURM_GPUS_ON_NODE": onNode, "SLURM_TRES_PER_TASK": perTask, "SLURM_LOCALID": rank, "SLURM_GTIDS": ids}
		got, err := ReadBinding(env)
		if highest := strings.Count(ids, ",") + 1; err == nil && (got.TasksPerGPU < 0 || got.TasksPerGPU > highest) {
			t.Errorf("%q: %d of %d tasks share a GPU", bind, got.TasksPerGPU, highest)
		}
	})
}

func TestReadBindingRefuses(t *testing.T) {
	for value, want := range map[string]string{
		"SLURM_STEP_GPUS=x":         `cannot read binding: SLURM_STEP_GPUS is "x", want positions such as "0,2" or "0-3", each below`,
		"SLURM_NTASKS_PER_GPU=many": `cannot read binding: SLURM_NTASKS_PER_GPU is "many"`,
	} {
		if _, err := ReadBinding(slurm.NewEnv([]string{value})); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", value, err, want)
		}
	}
	for value, want := range map[string]int{
		"SLURM_GPUS_PER_TASK=2": 2, "SLURM_GPUS_PER_TASK=a100:1,h200:1": 2,
		"SLURM_TRES_PER_TASK=gres/gpu=2": 2, "SLURM_TRES_PER_TASK=cpu=4,gres/gpu:a100=2,gres/gpu:h200:1": 3, "SLURM_TRES_PER_TASK=cpu=4": 0,
		"SLURM_TRES_PER_TASK=gres/gpu": 1, "SLURM_TRES_PER_TASK=gres/gpu:h200": 1, "SLURM_TRES_PER_TASK=gres/gpumem=8": 0,
	} {
		if got, err := ReadBinding(slurm.NewEnv([]string{value})); err != nil || got.GPUsPerTask != want {
			t.Errorf("%s: %+v, %v; want %d", value, got, err, want)
		}
	}
	if got, err := ReadBinding(slurm.NewEnv([]string{"SLURM_STEP_GPUS=1,3", "SLURM_NTASKS_PER_GPU=2"})); err != nil ||
		got.TasksPerGPU != 2 || !slices.Equal(got.GPUs, []int{1, 3}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Of all recorded launches, only the steps of srun --gres=none have no GPU.
func TestWithoutGPU(t *testing.T) {
	for name, ranks := range launchRecordings(t) {
		for _, env := range ranks {
			task, err := ReadTask(env, 1)
			must.Have(t, err == nil, "%s: %v", name, err)
			must.Equal(t, name, WithoutGPU(env, task), strings.Contains(name, "one.no-GPU."))
		}
	}
}
