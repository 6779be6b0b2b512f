// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

func TestModels(t *testing.T) {
	want := map[string]Model{ // by name: SMs, clients and MiB
		"V100": {GPU: GPU{SMs: 80, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 16384}, "T4": {GPU: GPU{SMs: 40, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 15360},
		"A100-40": {GPU: GPU{SMs: 108, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 40960}, "A100-80": {GPU: GPU{SMs: 108, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 81920},
		"A30": {GPU: GPU{SMs: 56, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 24576}, "A40": {GPU: GPU{SMs: 84, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 46068},
		"L4": {GPU: GPU{SMs: 58, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 23034}, "L40S": {GPU: GPU{SMs: 142, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 46068},
		"H100 PCIe": {GPU: GPU{SMs: 114, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 81559}, "H100 SXM": {GPU: GPU{SMs: 132, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 81559},
		"H200": {GPU: GPU{SMs: 132, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 143771}, "B200": {GPU: GPU{SMs: 148, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 183359},
		"V100-32": {GPU: GPU{SMs: 80, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 32768}, "RTX A6000": {GPU: GPU{SMs: 84, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 49140},
		"A10": {GPU: GPU{SMs: 72, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 23028}, "RTX 3090": {GPU: GPU{SMs: 82, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 24576},
		"L40": {GPU: GPU{SMs: 142, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 46068}, "Quadro RTX 6000": {GPU: GPU{SMs: 72, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 24576}, "RTX 6000 Ada": {GPU: GPU{SMs: 142, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 49140},
		"RTX 4090": {GPU: GPU{SMs: 128, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 24564}, "H100 NVL": {GPU: GPU{SMs: 132, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 95830},
		"GH200": {GPU: GPU{SMs: 132, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 97871}, "A2": {GPU: GPU{SMs: 10, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 15356},
		"A16": {GPU: GPU{SMs: 10, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 15356}, "L20": {GPU: GPU{SMs: 92, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 46068},
		"H20": {GPU: GPU{SMs: 78, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 97871}, "GB200": {GPU: GPU{SMs: 152, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 189471},
		"B300":         {GPU: GPU{SMs: 148, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 275040},
		"RTX 5090":     {GPU: GPU{SMs: 170, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 32607},
		"RTX PRO 6000": {GPU: GPU{SMs: 188, SMsPerTPC: 2}, Clients: 48, MemoryMiB: 97887},
	}
	for _, m := range models {
		w, ok := want[m.Name]
		must.Hold(t, ok && m.GPU == w.GPU && m.Clients == w.Clients && m.MemoryMiB == w.MemoryMiB, "%+v, want %+v", m, w)
		for _, name := range []string{m.Name, m.Product} {
			if found, err := FindModel(name); err != nil || found != m {
				t.Errorf("%q is found as %q, %v", name, found.Name, err)
			}
		}
		delete(want, m.Name)
	}
	must.Equal(t, fmt.Sprintf("not there: %v", want), len(want), 0)
}

func TestClientsOf(t *testing.T) {
	for driver, want := range map[string]int{
		"470.256.02": 48, "580.159.04": 48, "589": 48, "590.44.01": 60, "595.71.05": 60, "610": 60, "1000.1": 60, "": 48, "none": 48, " 590.1": 48, "-590": 48,
	} {
		must.Equal(t, fmt.Sprintf("driver %q", driver), ClientsOf(driver), want)
	}
}

func TestFindModel(t *testing.T) {
	for given, want := range map[string]string{
		"h200": "H200", "H100-PCIe": "H100 PCIe", "h100pcie": "H100 PCIe", "H100_SXM": "H100 SXM", "nvidia l40s": "L40S", "Tesla-V100": "V100",
		"a100-80": "A100-80", "tesla t4": "T4", "rtx3090": "RTX 3090", "rtx-a6000": "RTX A6000", "NVIDIA H100 80GB HBM3": "H100 SXM",
	} {
		if m, err := FindModel(given); err != nil || m.Name != want {
			t.Errorf("%q is found as %q, %v, want %q", given, m.Name, err, want)
		}
	}
	for given, want := range map[string]string{
		"H100":        `cannot find GPU "H100": say H100 PCIe or H100 NVL or H100 SXM`,
		"RTX 6000":    `cannot find GPU "RTX 6000": say Quadro RTX 6000 or RTX 6000 Ada`,
		"NVIDIA A100": `cannot find GPU "NVIDIA A100": say A100-40 or A100-80`,
		"rtx2080":     `cannot find GPU "rtx2080": known are V100, V100-32, T4, A100-40, A100-80, A30, A40, RTX A6000, A10, A2, A16, RTX 3090, L4, L20, L40, L40S, Quadro RTX 6000, RTX 6000 Ada, RTX 4090, H100 PCIe, H100 NVL, H100 SXM, H20, H200, B200, GB200, B300, RTX 5090, RTX PRO 6000, GH200`,
		"":            `cannot find GPU "": known are V100, V100-32, T4, A100-40, A100-80, A30, A40, RTX A6000, A10, A2, A16, RTX 3090, L4, L20, L40, L40S, Quadro RTX 6000, RTX 6000 Ada, RTX 4090, H100 PCIe, H100 NVL, H100 SXM, H20, H200, B200, GB200, B300, RTX 5090, RTX PRO 6000, GH200`,
	} {
		if _, err := FindModel(given); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestModelName(t *testing.T) {
	for product, want := range map[string]string{
		"NVIDIA H200": "H200", "NVIDIA H100 80GB HBM3": "H100 SXM", "NVIDIA A100-SXM4-40GB MIG 1g.5gb": "A100-40", "H200": "H200",
		"NVIDIA RTX PRO 4500": "NVIDIA RTX PRO 4500", "NVIDIA A100 80GB PCIe MIG 1g.10gb": "NVIDIA A100 80GB PCIe", "": "",
	} {
		must.Equal(t, fmt.Sprintf("%q is", product), ModelName(product), want)
	}
}

// The models with the names of the simulated GPUs have the same numbers.
func TestModelsAreTheSimulatedOnes(t *testing.T) {
	simulated := []node.Model{node.V100, node.T4, node.A100SXM40, node.A100SXM80, node.A30, node.A40, node.L4, node.L40S, node.H100PCIe, node.H100SXM, node.H200, node.GH200, node.B200}
	for _, s := range simulated {
		m, err := FindModel(s.Name)
		if err != nil {
			t.Error(err)
			continue
		}
		got, want := fmt.Sprint(m.GPU.SMs, m.GPU.SMsPerTPC, m.MemoryMiB), fmt.Sprint(s.SMs, s.TPC, s.MemoryMiB)
		must.Equal(t, s.Name, got, want)
	}
}
