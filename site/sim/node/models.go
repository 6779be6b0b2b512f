// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Model describes a kind of GPU. Create makes a GPU of the node from it.
type Model struct {
	Name         string // as NVML returns it
	Cores        int    // CUDA cores, as NVML returns them: SMs times the cores of an SM
	SMs          int    // multiprocessors
	TPC          int    // multiprocessors in a TPC
	Major, Minor int    // compute capability
	Architecture int    // nvmlDeviceArchitecture_t
	MemoryMiB    int    // total, as NVML (driver R510 and later) returns it

	// If Instances is not empty, the GPU is in MIG mode and has these instances.
	Instances []Instance
}

// Instance is a MIG instance: a GPU instance with one compute instance of the same size.
type Instance struct {
	Profile   string // "1g.5gb"; its first letter is the number of compute slices
	SMs       int
	MemoryMiB int
}

// The models. SMs and cores are from NVIDIA's architecture white papers and data sheets, which are named at each
// group. The memory is what nvidia-smi prints for the product with a driver of R510 or later. The H200's figures were
// measured (site/sim/nvml/testdata/nvml-h200.txt).
var (
	// P100 is here because MPS's shares do not work on it: its capability is below 7.0. Pascal white paper: 56 SMs of
	// 64 cores.
	P100 = Model{Name: "Tesla P100-PCIE-16GB", Cores: 56 * 64, SMs: 56, TPC: 2, Major: 6, Minor: 0, Architecture: 4, MemoryMiB: 16384}

	// Volta white paper: 80 SMs of 64 cores in 40 TPCs. Turing white paper and T4 data sheet: 2560 cores, 64 in an
	// SM.
	V100 = Model{Name: "Tesla V100-SXM2-16GB", Cores: 80 * 64, SMs: 80, TPC: 2, Major: 7, Minor: 0, Architecture: 5, MemoryMiB: 16384}
	T4   = Model{Name: "Tesla T4", Cores: 40 * 64, SMs: 40, TPC: 2, Major: 7, Minor: 5, Architecture: 6, MemoryMiB: 15360}

	// GA100 white paper: the A100 has 108 SMs of 64 cores. A30 data sheet: 3584 cores, 64 in an SM. GA102 white
	// paper: the A40 has 84 SMs of 128 cores.
	A100SXM40 = Model{Name: "NVIDIA A100-SXM4-40GB", Cores: 108 * 64, SMs: 108, TPC: 2, Major: 8, Minor: 0, Architecture: 7, MemoryMiB: 40960}
	A100SXM80 = Model{Name: "NVIDIA A100-SXM4-80GB", Cores: 108 * 64, SMs: 108, TPC: 2, Major: 8, Minor: 0, Architecture: 7, MemoryMiB: 81920}
	A30       = Model{Name: "NVIDIA A30", Cores: 56 * 64, SMs: 56, TPC: 2, Major: 8, Minor: 0, Architecture: 7, MemoryMiB: 24576}
	A40       = Model{Name: "NVIDIA A40", Cores: 84 * 128, SMs: 84, TPC: 2, Major: 8, Minor: 6, Architecture: 7, MemoryMiB: 46068}

	// Ada white paper and data sheets: the L4 has 7424 cores and the L40S 18176 cores, 128 in an SM.
	L4   = Model{Name: "NVIDIA L4", Cores: 58 * 128, SMs: 58, TPC: 2, Major: 8, Minor: 9, Architecture: 8, MemoryMiB: 23034}
	L40S = Model{Name: "NVIDIA L40S", Cores: 142 * 128, SMs: 142, TPC: 2, Major: 8, Minor: 9, Architecture: 8, MemoryMiB: 46068}

	// Hopper white paper: 114 SMs (PCIe) and 132 SMs (SXM5), 128 cores in an SM. The H200 and the GH200 have as many
	// SMs as the SXM5.
	H100PCIe = Model{Name: "NVIDIA H100 PCIe", Cores: 114 * 128, SMs: 114, TPC: 2, Major: 9, Minor: 0, Architecture: 9, MemoryMiB: 81559}
	H100SXM  = Model{Name: "NVIDIA H100 80GB HBM3", Cores: 132 * 128, SMs: 132, TPC: 2, Major: 9, Minor: 0, Architecture: 9, MemoryMiB: 81559}
	H200     = Model{Name: "NVIDIA H200", Cores: 16896, SMs: 132, TPC: 2, Major: 9, Minor: 0, Architecture: 9, MemoryMiB: 143771}
	GH200    = Model{Name: "NVIDIA GH200 480GB", Cores: 132 * 128, SMs: 132, TPC: 2, Major: 9, Minor: 0, Architecture: 9, MemoryMiB: 97871}

	// CUDA's device query on a B200: 148 SMs of 128 cores.
	B200 = Model{Name: "NVIDIA B200", Cores: 148 * 128, SMs: 148, TPC: 2, Major: 10, Minor: 0, Architecture: 10, MemoryMiB: 183359}
)

// The MIG profiles. `nvidia-smi mig -lgip` lists these SMs and this memory on the product (there in GiB, here in
// MiB).
var (
	A100Slice1 = Instance{Profile: "1g.5gb", SMs: 14, MemoryMiB: 4864}   // 4.75 GiB
	A100Slice3 = Instance{Profile: "3g.20gb", SMs: 42, MemoryMiB: 20096} // 19.62 GiB
	H100Slice1 = Instance{Profile: "1g.10gb", SMs: 16, MemoryMiB: 9984}  // 9.75 GiB
	H100Slice3 = Instance{Profile: "3g.40gb", SMs: 60, MemoryMiB: 40448} // 39.50 GiB
)

// Cut returns the model in MIG mode with these instances.
func (m Model) Cut(into ...Instance) Model {
	m.Instances = append([]Instance(nil), into...)
	return m
}

// driverVersion is the driver version of the machine on which the facts were measured.
const driverVersion = "580.159.04"

// Create makes the node's folder with these GPUs, in PCI order. It replaces a folder that exists. A UUID depends only
// on the position, so it is the same in every run.
func Create(dir string, gpus []Model) (Node, error) {
	made := Node{Dir: dir}
	err := errors.Join(
		os.RemoveAll(dir),
		makeFolder(dir, 0o755),
		makeFolder(filepath.Join(dir, "errors"), 0o777),
		makeFolder(filepath.Join(dir, "delay_ms"), 0o755),
		makeFolder(filepath.Join(dir, "faults"), 0o755),
		makeFolder(filepath.Join(dir, "dev"), 0o755),
		makeDevice(dir, "dev/nvidiactl"),
		makeDevice(dir, "dev/nvidia-uvm"),
		makeLock(dir),
		writeText(dir, "driver_version", driverVersion),
		os.WriteFile(filepath.Join(dir, "without_mps"), nil, 0o666),
		os.Chmod(filepath.Join(dir, "without_mps"), 0o666),
	)
	if err != nil {
		return Node{}, fmt.Errorf("cannot create simulated node %s: %w", dir, err)
	}
	for i, model := range gpus {
		if err := made.GPU(i).create(model); err != nil {
			return Node{}, fmt.Errorf("cannot create simulated GPU %d: %w", i, err)
		}
	}
	if err := made.describe(len(gpus)); err != nil {
		return Node{}, fmt.Errorf("cannot create simulated node %s: %w", dir, err)
	}
	return made, nil
}

func (g GPU) create(model Model) error {
	err := errors.Join(
		makeDevice(filepath.Dir(g.Dir), "dev/nvidia"+strconv.Itoa(g.Index)),
		makeFolder(g.Dir, 0o755),
		makeFolder(filepath.Join(g.Dir, "mig"), 0o755),
		makeFolder(filepath.Join(g.Dir, "contexts"), 0o777),
		makeFolder(filepath.Join(g.Dir, "samples"), 0o777),
		makeFolder(filepath.Join(g.Dir, "gpm"), 0o755),
		makeFolder(filepath.Join(g.Dir, "errors"), 0o777),
		makeLock(g.Dir),
	)
	for name, text := range g.attributes(model) {
		err = errors.Join(err, g.Set(name, text))
	}
	for k, instance := range model.Instances {
		err = errors.Join(err, g.createInstance(model, k, instance))
	}
	return err
}

func (g GPU) attributes(model Model) map[string]string {
	cut := 0
	if len(model.Instances) > 0 {
		cut = 1
	}
	return map[string]string{
		"uuid":         uuid("GPU", g.Index, 0),
		"name":         model.Name,
		"minor":        strconv.Itoa(g.Index),
		"bus_id":       fmt.Sprintf("%08X:%02X:00.0", g.Index/15, 16*(g.Index%15+1)),
		"cores":        strconv.Itoa(model.Cores),
		"sms":          strconv.Itoa(model.SMs),
		"tpc":          strconv.Itoa(model.TPC),
		"cc_major":     strconv.Itoa(model.Major),
		"cc_minor":     strconv.Itoa(model.Minor),
		"architecture": strconv.Itoa(model.Architecture),
		"memory_mib":   strconv.Itoa(model.MemoryMiB),
		"numa":         strconv.Itoa(g.Index / 4), // as on the usual node with eight GPUs and two sockets
		"compute_mode": strconv.Itoa(Default),
		"mig_mode":     strconv.Itoa(cut),
		"persistence":  "1",
	}
}

func (g GPU) createInstance(model Model, k int, instance Instance) error {
	dir := filepath.Join("mig", strconv.Itoa(k))
	err := makeFolder(filepath.Join(g.Dir, dir), 0o755)
	for name, text := range map[string]string{
		"uuid":       uuid("MIG", g.Index, k+1),
		"name":       model.Name + " MIG " + instance.Profile,
		"sms":        strconv.Itoa(instance.SMs),
		"memory_mib": strconv.Itoa(instance.MemoryMiB),
		"gi":         strconv.Itoa(k + 1), // 0 is the instance that fills the whole GPU
		"ci":         "0",
		"slices":     instance.Profile[:1],
	} {
		err = errors.Join(err, g.Set(filepath.Join(dir, name), text))
	}
	return err
}

func uuid(kind string, gpu, part int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "simulated %s %d %d", kind, gpu, part))
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", kind, sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// makeFolder makes a folder with exactly this mode, whatever the umask is, because users' processes write in some
// folders.
func makeFolder(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}

func makeLock(dir string) error {
	file := filepath.Join(dir, "lock")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		return err
	}
	return os.Chmod(file, 0o644)
}
