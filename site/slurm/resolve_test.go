// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
)

// gresOf reads a gres.conf, and the Gres= of the node's line in slurm.conf if that is not "-".
func gresOf(t *testing.T, text, inSlurmConf string) Gres {
	t.Helper()
	all := files{"/e/gres.conf": text, "/e/slurm.conf": "NodeName=n1 Gres=" + inSlurmConf}
	gres := must.Get(readGres(all.open, "/e/gres.conf", "n1"))(t)
	if inSlurmConf != "-" {
		node := must.Get(readNode(all.open, "/e/slurm.conf", "n1"))(t)
		gres.Configured = node.GPUs
	}
	return gres
}

func minors(ns ...int) []DeviceRef {
	var refs []DeviceRef
	for _, n := range ns {
		refs = append(refs, DeviceRef{By: ByMinor, N: n})
	}
	return refs
}

const (
	migA = "MIG-11111111-1111-1111-1111-111111111111"
	migB = "MIG-22222222-2222-2222-2222-222222222222"
	gpuA = "GPU-33333333-3333-3333-3333-333333333333"
)

func TestResolve(t *testing.T) {
	tests := []struct {
		name, gres, conf string
		job              Job
		want             []DeviceRef
	}{
		{"nothing asked, nothing known", "", "-", Job{}, nil},
		{"in the middle", "Name=gpu File=/dev/nvidia[2-3]\n", "-", Job{Job: policy.Job{GPUs: []int{0, 1}}}, minors(2, 3)},
		{"against the numbers", "Name=gpu File=/dev/nvidia3\nName=gpu File=/dev/nvidia1\n", "-", Job{Job: policy.Job{GPUs: []int{0}}}, minors(3)},
		{"the job's order", "Name=gpu File=/dev/nvidia[0-3]\n", "-", Job{Job: policy.Job{GPUs: []int{3, 0}}}, minors(3, 0)},
		{"one type", "Name=gpu Type=a File=/dev/nvidia[0-3]\n", "-", Job{Job: policy.Job{GPUs: []int{1}}}, minors(1)},
		{"slurm.conf agrees", "Name=gpu Type=a File=/dev/nvidia[0-3]\n", "gpu:A:4", Job{Job: policy.Job{GPUs: []int{1}}}, minors(1)},
		{"slurm.conf drops a type", "Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1\n", "gpu:b:1", Job{Job: policy.Job{GPUs: []int{0}}}, minors(1)},
		{"slurm.conf without types takes them away", "Name=gpu Type=a File=/dev/nvidia1\nName=gpu Type=b " +
			"File=/dev/nvidia0\n", "gpu:2", Job{Job: policy.Job{GPUs: []int{0, 1}}}, minors(1, 0)},
		{"nvml", "AutoDetect=nvml\n", "-", Job{Job: policy.Job{GPUs: []int{2, 0}}}, []DeviceRef{{By: byPCI, N: 2}, {By: byPCI, N: 0}}},
		{"nvidia", "AutoDetect=nvidia\n", "gpu:4", Job{Job: policy.Job{GPUs: []int{3}}}, []DeviceRef{{By: byMinorOrder, N: 3}}},
		{"MIG", "AutoDetect=nvml\n", "gpu:1g.10gb:7",
			Job{Job: policy.Job{GPUs: []int{3, 4}}, MIG: []site.UUID{migA, migB}, Visible: []string{migA, migB}}, []DeviceRef{{By: ByUUID, UUID: migA}, {By: ByUUID, UUID: migB}}},
		{"env_uuid", "AutoDetect=nvml\n", "gpu:2", Job{Job: policy.Job{GPUs: []int{1}}, UUIDs: []site.UUID{gpuA}, Visible: []string{gpuA}}, []DeviceRef{{By: ByUUID, UUID: gpuA}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.job.ID = 7
			got, err := ResolvePositions(gresOf(t, tt.gres, tt.conf), tt.job)
			must.Hold(t, err == nil && reflect.DeepEqual(got, tt.want), "got %v, %v, want %v", got, err, tt.want)
		})
	}
}

// Contract: I1
func TestResolveRefuses(t *testing.T) {
	const pre = "cannot resolve GPUs of job 7: "
	const files4 = "Name=gpu File=/dev/nvidia[0-3]\n"
	tests := []struct {
		gres, conf string
		job        Job
		want       string
	}{
		{"", "-", Job{Job: policy.Job{GPUs: []int{0}}}, pre + "/e/gres.conf has neither File= of a GPU nor AutoDetect= for node n1: add " +
			"Name=gpu File=/dev/nvidia[0-N] or AutoDetect=nvml"},
		{"AutoDetect=off\nName=gpu Count=2\n", "-", Job{Job: policy.Job{GPUs: []int{0}}}, pre + "/e/gres.conf has neither File= of a GPU " +
			"nor AutoDetect= for node n1: add Name=gpu File=/dev/nvidia[0-N] or AutoDetect=nvml"},
		{files4, "-", Job{Job: policy.Job{GPUs: []int{4}}}, pre + "position 4, but node n1 has 4 GPUs in /e/gres.conf"},
		{files4, "gpu:2", Job{Job: policy.Job{GPUs: []int{2}}}, pre + "position 2, but node n1 has 2 GPUs in /e/gres.conf"},
		{files4, "gpu:a:4", Job{Job: policy.Job{GPUs: []int{0}}}, pre + "of the GPUs in /e/gres.conf none has a type that " +
			"slurm.conf gives node n1: make Type= and Gres= agree"},
		{"AutoDetect=off\nName=gpu Type=a Count=2\n", "gpu:a:2", Job{Job: policy.Job{GPUs: []int{0}}}, pre + "/e/gres.conf has neither " +
			"File= of a GPU nor AutoDetect= for node n1: add Name=gpu File=/dev/nvidia[0-N] or AutoDetect=nvml"},
		{files4, "-", Job{Job: policy.Job{GPUs: []int{1, 0, 1}}}, pre + "SLURM_JOB_GPUS names position 1 twice"},
		{"Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1\n", "-", Job{Job: policy.Job{GPUs: []int{1}}}, pre +
			"node n1 has GPU types a and b in gres.conf, and Slurm may name only a part of the job's GPUs: give MPS jobs a node with one type"},
		{"AutoDetect=nvml\n", "gpu:b:1,gpu:a:1", Job{Job: policy.Job{GPUs: []int{1}}}, pre + "node n1 has GPU types a and b in slurm.conf, " +
			"and Slurm may name only a part of the job's GPUs: give MPS jobs a node with one type"},
		{"AutoDetect=nvml\n", "gpu:2", Job{Job: policy.Job{GPUs: []int{2}}}, pre + "position 2, but slurm.conf gives node n1 2 GPUs"},
		{"AutoDetect=rsmi\n", "-", Job{Job: policy.Job{GPUs: []int{0}}}, pre + "AutoDetect=rsmi in /e/gres.conf: which GPU a position " +
			"means is not known: use nvml, nvidia or File= lines; or Flags=env_uuid, with Slurm 26.05 and later"},
		{"Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap1\n", "-", Job{Job: policy.Job{GPUs: []int{0}}}, pre +
			"position 0 is MultipleFiles= (/e/gres.conf:1), a MIG instance, and CUDA_VISIBLE_DEVICES does not name it: use AutoDetect=nvml"},
		{"AutoDetect=nvml\n", "-", Job{Job: policy.Job{GPUs: []int{0, 1}}, MIG: []site.UUID{migA}, Visible: []string{migA, "1"}}, pre +
			`CUDA_VISIBLE_DEVICES is "` + migA + `,1", a mix of MIG instances and whole GPUs: give MPS jobs a node with one kind`},
		{"AutoDetect=nvml\n", "-",
			Job{Job: policy.Job{GPUs: []int{0, 1}}, MIG: []site.UUID{migA}, UUIDs: []site.UUID{gpuA}, Visible: []string{migA, gpuA}}, pre +
				`CUDA_VISIBLE_DEVICES is "` + migA + `,` + gpuA[:23] + `"…, a mix of MIG instances and whole GPUs: give MPS jobs a node with one kind`},
		{"AutoDetect=nvml\n", "-", Job{Job: policy.Job{GPUs: []int{0}}, MIG: []site.UUID{migA, migB}, Visible: []string{migA, migB}}, pre +
			"SLURM_JOB_GPUS names 1 devices and CUDA_VISIBLE_DEVICES 2"},
		{"AutoDetect=nvml\n", "-", Job{MIG: []site.UUID{migA, migA}, Visible: []string{migA, migA}}, pre + "CUDA_VISIBLE_DEVICES names " + migA + " twice"},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			tt.job.ID = 7
			if refs, err := ResolvePositions(gresOf(t, tt.gres, tt.conf), tt.job); recorded.Message(err) != tt.want {
				t.Errorf("got  %v, %v\nwant %s", refs, err, tt.want)
			}
		})
	}
}

// gpus makes GPUs from minor numbers in the order of their PCI bus ids.
func gpus(inOrder ...int) []site.Device {
	var devices []site.Device
	for i, minor := range inOrder {
		devices = append(devices,
			site.Device{UUID: site.UUID(fmt.Sprintf("GPU-%d", minor)), Name: "NVIDIA H200", Minor: minor, BusID: fmt.Sprintf("00000000:%02X:00.0", 7+i*8)})
	}
	return devices
}

// MatchDevices gives these devices for the positions of the list; "!" means that it refuses the position.
func TestPickPlaces(t *testing.T) {
	dgx := []int{2, 3, 0, 1} // minors by bus id, as on machines whose driver probes them in another order
	tests := []struct {
		name, gres, conf string
		devices          []int
		want             string
	}{
		{"nvml, orders agree", "AutoDetect=nvml\n", "-", []int{0, 1, 2, 3}, "0 1 2 3"},
		{"nvml, gaps", "AutoDetect=nvml\n", "-", []int{1, 4, 6}, "1 4 6"},
		{"nvml, orders differ, count unknown", "AutoDetect=nvml\n", "-", dgx, "!"},
		{"nvml, orders differ, all counted", "AutoDetect=nvml\n", "gpu:4", dgx, "2 3 0 1"},
		{"nvml, orders differ, some counted", "AutoDetect=nvml\n", "gpu:2", dgx, "!"},
		{"nvml, orders agree, some counted", "AutoDetect=nvml\n", "gpu:2", []int{0, 1, 2, 3}, "0 1 2 3"},
		{"nvml and a type", "AutoDetect=nvml\nName=gpu Type=h200\n", "gpu:h200:4", dgx, "2 3 0 1"},
		{"nvidia", "AutoDetect=nvidia\n", "-", dgx, "0 1 2 3"},
		{"nvml, all listed", "AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-3]\n", "-", []int{0, 1, 2, 3}, "0 1 2 3"},
		{"nvml, all listed, orders differ", "AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-3]\n", "gpu:4", dgx, "!"},
		{"nvml, all listed by bus id", "AutoDetect=nvml\nName=gpu File=/dev/nvidia[2-3]\nName=gpu File=/dev/nvidia[0-1]\n", "-", dgx, "2 3 0 1"},
		{"nvml, typed and listed by bus id", "AutoDetect=nvml\nName=gpu Type=x File=/dev/nvidia[2-3,0-1]\n", "-", dgx, "!"},
		{"nvml, the first listed", "AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-1]\n", "-", []int{0, 1, 2, 3}, "0 1"},
		{"nvml, the last listed, count unknown", "AutoDetect=nvml\nName=gpu File=/dev/nvidia[2-3]\n", "-", []int{0, 1, 2, 3}, "!"},
		{"nvml, the last listed and counted", "AutoDetect=nvml\nName=gpu File=/dev/nvidia[2-3]\n", "gpu:2", []int{0, 1, 2, 3}, "2 3"},
		{"nvml, the last listed, more counted", "AutoDetect=nvml\nName=gpu File=/dev/nvidia[2-3]\n", "gpu:4", []int{0, 1, 2, 3}, "!"},
		{"nvml, listed and not there", "AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-1]\n", "-", []int{0}, "!"},
		{"nvidia, listed", "AutoDetect=nvidia\nName=gpu File=/dev/nvidia[0-1]\n", "-", dgx, "0 1"},
		{"nvidia, listed against the numbers", "AutoDetect=nvidia\nName=gpu File=/dev/nvidia[1,0]\n", "-", dgx, "!"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			gres := gresOf(t, tt.gres, tt.conf)
			by := must.Get(gres.order())(t)
			devices := gpus(tt.devices...)
			devices[0], devices[len(devices)-1] = devices[len(devices)-1], devices[0] // their order must not matter
			var got []string
			for place := 0; ; place++ {
				picked, err := MatchDevices(gres, []DeviceRef{{By: by, N: place}}, devices)
				if err != nil {
					break
				}
				got = append(got, fmt.Sprint(picked[0].Minor))
			}
			if len(got) == 0 {
				got = []string{"!"}
			}
			must.Equal(t, fmt.Sprintf("got %v, want", got), strings.Join(got, " "), tt.want)
		})
	}
}

func TestPick(t *testing.T) {
	mig := site.Device{UUID: migA, Minor: 0, BusID: "00000000:07:00.0"}
	devices := append(gpus(0, 1), mig)
	got, err := MatchDevices(Gres{Node: "n1"}, []DeviceRef{{By: ByMinor, N: 0}, {By: ByUUID, UUID: migA}}, devices)
	must.Hold(t, err == nil && len(got) == 2 && got[0].UUID == "GPU-0" && got[1].UUID == migA, "got %v, %v", got, err)
}

// Contract: I1
func TestPickRefuses(t *testing.T) {
	const pre = "cannot find GPU of node n1: "
	inMIG := gpus(0, 1)
	inMIG[1].MIGMode = true
	mixed := gpus(0, 1)
	mixed[1].Name = "NVIDIA L4"
	tests := []struct {
		gres    string
		ref     DeviceRef
		devices []site.Device
		want    string
	}{
		{"", DeviceRef{By: ByMinor, N: 5}, gpus(0), pre + "/dev/nvidia5 is in Slurm's list and not on the node"},
		{"", DeviceRef{By: ByUUID, UUID: gpuA}, gpus(0), pre + gpuA + " is in Slurm's list and not on the node"},
		{"AutoDetect=nvml\n", DeviceRef{By: byPCI, N: 2}, gpus(0, 1), pre + "place 2 of 2 GPUs"},
		{"AutoDetect=nvml\n", DeviceRef{By: byPCI, N: 0}, inMIG, pre + "place 0: with GPU-1 in MIG mode Slurm's list " +
			"counts its instances too: give MPS jobs a node without MIG"},
		{"AutoDetect=nvml\nName=gpu Type=a\n", DeviceRef{By: byPCI, N: 0}, mixed, pre + "place 0: GPUs NVIDIA H200 and " +
			"NVIDIA L4 under one type with AutoDetect=nvml: name them by File= lines with AutoDetect=off"},
		{"AutoDetect=nvml\n", DeviceRef{By: byPCI, N: 0}, gpus(1, 0), pre + "place 0: PCI order differs from minor order, " +
			"and slurm.conf (not read) is needed to tell how many of the 2 GPUs Slurm uses: set SLURM_CONF"},
		{"AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-1]\n", DeviceRef{By: byPCI, N: 0}, gpus(1, 0), pre +
			"place 0: /e/gres.conf mixes AutoDetect=nvml with File= lines, and which GPU comes first is not certain: list all GPUs in the order of their PCI bus ids, or set AutoDetect=off"},
		{"AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-3]\n", DeviceRef{By: byPCI, N: 0}, gpus(0, 1), pre +
			"place 0: /e/gres.conf lists 4 GPUs by File= and 2 of them are on the node"},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			if got, err := MatchDevices(gresOf(t, tt.gres, "-"), []DeviceRef{tt.ref}, tt.devices); recorded.Message(err) != tt.want {
				t.Errorf("got  %v, %v\nwant %s", got, err, tt.want)
			}
		})
	}
	if _, err := MatchDevices(gresOf(t, "AutoDetect=nvml\n", "gpu:1"), []DeviceRef{{By: byPCI}},
		gpus(1, 0)); recorded.Message(err) != pre+"place 0: PCI order differs from minor order, and slurm.conf uses 1 of 2 GPUs: name them by File= lines with AutoDetect=off" {
		t.Errorf("got %v", err)
	}
}
