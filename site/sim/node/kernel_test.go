// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Every user reads the files of the kernel, whatever the umask of the process that made the node.
func TestKernelFiles(t *testing.T) {
	old := unix.Umask(0o077)
	made := created(t, H200, A100SXM40.Cut(A100Slice3, A100Slice3))
	unix.Umask(old)
	uuid, _ := made.GPU(0).Text("uuid")
	const h200 = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 255\nGPU UUID: \t "
	const gpus = "proc/driver/nvidia/gpus"
	const open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  "
	for path, want := range map[string]string{
		"proc/driver/nvidia/version":                                       open,
		gpus + "/0000:10:00.0/information":                                 h200 + uuid + "\n",
		"proc/driver/nvidia/capabilities/gpu1/mig/gi1/access":              "DeviceFileMinor: 3\nDeviceFileMode: 292\n",
		"proc/driver/nvidia/capabilities/gpu1/mig/gi2/ci0/access":          "DeviceFileMinor: 6\n",
		"sys/bus/pci/devices/0000:20:00.0/numa_node":                       "0\n",
		gpus + "/0000:20:00.0/information":                                 "Model: \t\t NVIDIA A100-SXM4-40GB\n",
		filepath.Join("proc/driver/nvidia/capabilities", "mig", "config"):  "DeviceFileMinor: 1\n",
		filepath.Join("proc/driver/nvidia/capabilities", "mig", "monitor"): "DeviceFileMinor: 2\n",
	} {
		text, err := os.ReadFile(filepath.Join(made.Dir, path))
		if err != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("%s: %q, %v", path, text, err)
		}
		for dir := path; dir != "."; dir = filepath.Dir(dir) {
			info, err := os.Stat(filepath.Join(made.Dir, dir))
			if err != nil || info.IsDir() && info.Mode().Perm() != 0o755 || info.Mode().Perm()&0o444 != 0o444 {
				t.Errorf("%s: %v, %v", dir, info.Mode(), err)
			}
		}
	}
	whole, _ := os.ReadFile(filepath.Join(made.Dir, "proc/driver/nvidia/gpus/0000:20:00.0/information"))
	if !strings.Contains(string(whole), "Bus Location: \t 0000:20:00.0\nDevice Minor: \t 1\n") {
		t.Errorf("GPU 1: %q", whole)
	}
	if _, err := os.Stat(filepath.Join(made.Dir, "proc/driver/nvidia/capabilities/gpu0")); err == nil {
		t.Error("a GPU without instances has a folder in capabilities")
	}
	for _, device := range []string{"nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"} {
		if info, err := os.Stat(filepath.Join(made.Dir, "dev", device)); err != nil || info.Mode().Perm() != 0o666 {
			t.Errorf("%s: %v", device, err)
		}
	}
}
