package slurm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What was recorded of tasks: all GPUs of the step, or the one that Slurm bound to the task.
func TestReadBindingRecorded(t *testing.T) {
	for folder, want := range map[string]func(rank int) []int{
		"a-gres2-n4": func(int) []int { return []int{0, 1} },
		"b-gpt1":     func(rank int) []int { return []int{rank} },
		"c-gpubind":  func(rank int) []int { return []int{rank} },
		"i-nogpu":    func(int) []int { return nil },
	} {
		paths, err := filepath.Glob("testdata/slurm-env/" + folder + "/*.task.n1.s0.p*")
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %q, %v", folder, paths, err)
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			rank := int(path[len(path)-1] - '0')
			got, err := ReadBinding(NewEnviron(strings.Split(string(content), "\n")))
			if err != nil || !slices.Equal(got.GPUs, want(rank)) || got.PerGPU != 0 {
				t.Errorf("%s: %+v, %v; want %v", path, got, err, want(rank))
			}
		}
	}
}

func TestReadBindingRefuses(t *testing.T) {
	for value, want := range map[string]string{
		"SLURM_STEP_GPUS=x":         `cannot read binding: SLURM_STEP_GPUS is "x", want positions such as "0,2" or "0-3", each below`,
		"SLURM_NTASKS_PER_GPU=many": `cannot read binding: SLURM_NTASKS_PER_GPU is "many"`,
	} {
		if _, err := ReadBinding(NewEnviron([]string{value})); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", value, err, want)
		}
	}
	if got, err := ReadBinding(NewEnviron([]string{"SLURM_STEP_GPUS=1,3", "SLURM_NTASKS_PER_GPU=2"})); err != nil || got.PerGPU != 2 || !slices.Equal(got.GPUs, []int{1, 3}) {
		t.Errorf("%+v, %v", got, err)
	}
}
