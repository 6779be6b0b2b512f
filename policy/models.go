// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// The number of clients that MPS serves on one GPU. NVIDIA's MPS guide has 16 before Volta, 48 from Volta on and 60
// from CUDA 13.1 on; 48 was measured on an H200 under CUDA 13.0 (the 49th gets error 46), 60 was not. It counts
// contexts, and a raised CUDA_DEVICE_MAX_CONNECTIONS lowers it.
const (
	Clients    = 48
	MaxClients = 60
)

// ClientsOf returns how many clients MPS serves on one GPU with a driver of this version, "580.159.04". The control
// program and the server are parts of the driver, and CUDA 13.1 came with driver 590. For a version that cannot be
// read the number is 48.
func ClientsOf(driver string) int {
	branch, _, _ := strings.Cut(driver, ".")
	if n, err := strconv.Atoi(branch); err == nil && n >= 590 {
		return MaxClients
	}
	return Clients
}

// defaultSMsPerTPC is the SMs in a TPC of every model here: two, by NVIDIA's white papers from Pascal to Blackwell. On
// an H200 shares were measured to go in steps of two.
const defaultSMsPerTPC = 2

// Model is a GPU known by name.
type Model struct {
	Name      string // the common name, "H100 PCIe"
	Product   string // NVML's name, "NVIDIA H100 PCIe"
	GPU       GPU
	Clients   int // the maximum that MPS serves at the same time, before CUDA 13.1
	MemoryMiB int // total, as NVML reports it (driver R510 and later)
}

// models lists every GPU known by name. The SMs are from NVIDIA's white papers and data sheets, named at each group, or
// from CUDA's device query in public logs. The product's name and the memory are what nvidia-smi prints with driver R510
// or later, from NVIDIA's documents and public logs. Only the H200 was seen by us. The clients are from NVIDIA's MPS
// guide.
var models = []Model{
	// Volta white paper: 80 SMs in 40 TPCs. This is the 16 GB product.
	model("V100", "Tesla V100-SXM2-16GB", 80, 16384),
	model("V100-32", "Tesla V100-SXM2-32GB", 80, 32768),
	// Turing white paper and T4 data sheet: 2560 cores, 64 an SM.
	model("T4", "Tesla T4", 40, 15360),
	// GA100 white paper: the A100 has 108 SMs in 54 TPCs.
	model("A100-40", "NVIDIA A100-SXM4-40GB", 108, 40960),
	model("A100-80", "NVIDIA A100-SXM4-80GB", 108, 81920),
	// A30 data sheet: 3584 cores, 64 an SM.
	model("A30", "NVIDIA A30", 56, 24576),
	// GA102 white paper and data sheets: the A40 and the RTX A6000 have 10752 cores, the A10 9216, the RTX 3090
	// 10496, 128 an SM. The memory of A40 and A10 is that with ECC on, as they are shipped.
	model("A40", "NVIDIA A40", 84, 46068),
	model("RTX A6000", "NVIDIA RTX A6000", 84, 49140),
	model("A10", "NVIDIA A10", 72, 23028),
	// A2 and A16 data sheets: 1280 cores a GPU, 128 an SM; a board A16 has four GPUs. The memory is that with ECC on.
	model("A2", "NVIDIA A2", 10, 15356),
	model("A16", "NVIDIA A16", 10, 15356),
	model("RTX 3090", "NVIDIA GeForce RTX 3090", 82, 24576),
	// Ada white paper and data sheets: the L4 has 7424 cores, the L40 and the L40S and the RTX 6000 Ada 18176, the
	// RTX 4090 16384, 128 an SM.
	model("L4", "NVIDIA L4", 58, 23034),
	// The L20 has 11776 cores; 46068 MiB by nvidia-smi.
	model("L20", "NVIDIA L20", 92, 46068),
	model("L40", "NVIDIA L40", 142, 46068),
	model("L40S", "NVIDIA L40S", 142, 46068),
	// TU102 white paper: the Quadro RTX 6000 has 4608 cores, 64 an SM.
	model("Quadro RTX 6000", "Quadro RTX 6000", 72, 24576),
	model("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation", 142, 49140),
	model("RTX 4090", "NVIDIA GeForce RTX 4090", 128, 24564),
	// Hopper white paper: PCIe 114 SMs in 57 TPCs, SXM5 132 in 66. The NVL's data sheet: 16896 cores.
	model("H100 PCIe", "NVIDIA H100 PCIe", 114, 81559),
	model("H100 NVL", "NVIDIA H100 NVL", 132, 95830),
	model("H100 SXM", "NVIDIA H100 80GB HBM3", 132, 81559),
	// The H20 has no public data sheet: 78 SMs by CUDA, as reviews print it, and 97871 MiB by nvidia-smi.
	model("H20", "NVIDIA H20", 78, 97871),
	// Measured: 16896 cores, 128 an SM, 143771 MiB by NVML.
	model("H200", "NVIDIA H200", 132, 143771),
	// CUDA's device query: 148 SMs, 74 on each of two dies. The B300 has as many, and the GB200 152 (both by CUDA, in
	// public logs).
	model("B200", "NVIDIA B200", 148, 183359),
	model("GB200", "NVIDIA GB200", 152, 189471),
	model("B300", "NVIDIA B300 SXM6 AC", 148, 275040),
	// RTX Blackwell white paper and data sheets: 21760 and 24064 cores, 128 an SM, two SMs a TPC.
	model("RTX 5090", "NVIDIA GeForce RTX 5090", 170, 32607),
	model("RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 188, 97887),
	// GH200 data sheet: the GPU is the SXM5's; this is the product with 96 GB of HBM3.
	model("GH200", "NVIDIA GH200 480GB", 132, 97871),
}

func model(name, product string, sms, mib int) Model {
	return Model{Name: name, Product: product, GPU: GPU{SMs: sms, SMsPerTPC: defaultSMsPerTPC}, Clients: Clients, MemoryMiB: mib}
}

// FindModel returns the GPU with this name or product name. Case, spaces, hyphens and underscores do not matter:
// "h100-pcie" is the H100 PCIe. For an ambiguous name, like A100, the error lists the models to choose from, and
// otherwise all models.
func FindModel(name string) (Model, error) {
	wanted := normalName(name)
	var known, begun []string
	for _, m := range models {
		if wanted == normalName(m.Name) || wanted == normalName(m.Product) {
			return m, nil
		}
		known = append(known, m.Name)
		if wanted != "" && strings.HasPrefix(strings.TrimPrefix(normalName(m.Name), "quadro"), wanted) {
			begun = append(begun, m.Name)
		}
	}
	if len(begun) > 0 {
		return Model{}, fmt.Errorf("cannot find GPU %q: say %s", name, strings.Join(begun, " or "))
	}
	return Model{}, fmt.Errorf("cannot find GPU %q: known are %s", name, strings.Join(known, ", "))
}

// ModelName returns the name of a product's model, "H200" for "NVIDIA H200", also for a MIG instance of it. A product
// of no known model keeps its own name.
func ModelName(product string) string {
	product, _, _ = strings.Cut(product, " MIG ")
	if m, err := FindModel(product); err == nil {
		return m.Name
	}
	return product
}

// normalName removes the differences in how people write a name.
func normalName(name string) string {
	name = strings.NewReplacer(" ", "", "-", "", "_", "").Replace(strings.ToLower(name))
	return strings.TrimPrefix(strings.TrimPrefix(name, "nvidia"), "tesla")
}
