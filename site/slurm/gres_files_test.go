// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
)

// slurmd takes any file for a GPU (run: slurmd -G of 22.05 with each of these). A job with a whole GPU beside such a line
// is found, and a job with such a position is refused.
func TestFilesThatAreNoWholeGPU(t *testing.T) {
	const whole, not = "Name=gpu File=/dev/nvidia[0,1]\n", " is not the device of a whole NVIDIA GPU: File= wants /dev/nvidiaN"
	for _, c := range []struct{ text, refused string }{
		{whole + "Name=gpu File=/dev/nvidia-caps/nvidia-cap[337,346]\n", `position 2 (/g:2): "/dev/nvidia-caps/nvidia-cap337"` + not},
		{whole + "Name=gpu File=/dev/nvidia-caps/nvidia-cap66\nName=gpu File=/dev/nvidia-caps/nvidia-cap75\n", `position 2 (/g:2): "/dev/nvidia-caps/nvidia-cap66"` + not},
		{whole + "Name=gpu File=/dev/nvidiactl\n", `position 2 (/g:2): "/dev/nvidiactl"` + not},
		{whole + "Name=gpu File=/dev/dri/renderD[128-129]\n", `position 2 (/g:2): "/dev/dri/renderD128"` + not},
		{whole + "Name=gpu File=/dev/nvidia[00-01]\n", `position 2 (/g:2): "/dev/nvidia00"` + not},
		{whole + "Name=gpu File=/dev/nvidia255\n", `position 2 (/g:2): "/dev/nvidia255" is not the device of a GPU: its number is above 253`},
	} {
		gres, err := readGres(files{"/g": c.text}.open, "/g", "n1")
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		refs, err := ResolvePositions(gres, Job{Job: policy.Job{ID: 7, GPUs: []int{0, 1}}})
		if want := []DeviceRef{{By: ByMinor, N: 0}, {By: ByMinor, N: 1}}; err != nil || !slices.Equal(refs, want) {
			t.Errorf("%s: whole GPUs are %v, %v, want %v", c.text, refs, err, want)
		}
		_, err = ResolvePositions(gres, Job{Job: policy.Job{ID: 7, GPUs: []int{2}}})
		if want := "cannot resolve GPUs of job 7: " + c.refused; recorded.Message(err) != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		mig := site.UUID("MIG-GPU-aaaaaaaa/1/0")
		refs, err = ResolvePositions(gres, Job{Job: policy.Job{ID: 7, GPUs: []int{2}}, MIG: []site.UUID{mig}, Visible: []string{string(mig)}})
		if want := []DeviceRef{{By: ByUUID, UUID: mig}}; err != nil || !slices.Equal(refs, want) {
			t.Errorf("%s: the instance that Slurm names is %v, %v, want %v", c.text, refs, err, want)
		}
	}
}

// slurmd follows links, whatever their names are.
func TestLinksToGPUs(t *testing.T) {
	dir := t.TempDir()
	for link, target := range map[string]string{"gpu-a": "nvidia3", "nvidia0": "nvidia1", "loop": "loop", "chain": "gpu-a"} {
		must.OK(t, os.Symlink(filepath.Join(dir, target), filepath.Join(dir, link)))
	}
	for _, name := range []string{"nvidia1", "nvidia3"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	for name, want := range map[string]int{"gpu-a": 3, "chain": 3, "nvidia0": 1, "nvidia1": 1, "nvidia2": 2, "loop": -1} {
		got, err := readGres(files{"/g": "Name=gpu File=" + filepath.Join(dir, name) + "\n"}.open, "/g", "n1")
		if err != nil || len(got.Entries) != 1 || got.Entries[0].Minor != want {
			t.Errorf("%s is %+v, %v, want minor %d", name, got.Entries, err, want)
		}
	}
}

// A healthy node with instances: whole GPUs and the files of instances (slurmd -G with AutoDetect=nvml).
func TestSlurmdsListWithInstances(t *testing.T) {
	const printed = "slurmd: Gres Name=gpu Type=nvidia_h100 Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Flags=HAS_FILE\n" +
		"slurmd: Gres Name=gpu Type=h100_4g.40gb Count=1 Index=1 ID=7696487 File=/dev/nvidia-caps/nvidia-cap291 Flags=HAS_FILE\n"
	got, err := ParseGresList(printed)
	if want := []int{0, -1}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}
