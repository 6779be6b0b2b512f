// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy/plan"
	"github.com/slurm-mps/slurm-mps/site/command"
)

// barCells is the width that the numbers leave for a bar on a line of 80 columns.
const barCells = 38

// planText returns the plan for people. Each rank has a line with a bar, and the whole bar is the GPU. Then each GPU
// has a line with its total.
func planText(p plan.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", askedText(p.Asked))
	b.WriteString("rank  GPU    SMs     percent     memory\n")
	for _, r := range p.Ranks {
		bar := command.Bar(r.SMs, p.Asked.Model.GPU.SMs, barCells)
		fmt.Fprintf(&b, "%4d %4d  %5d  %10s %10s  %s\n", r.Rank, r.GPU, r.SMs, percentText(r), memoryText(r.MemoryMiB), bar)
	}
	b.WriteByte('\n')
	for gpu := range p.Asked.GPUs {
		b.WriteString(p.Total(gpu) + "\n")
	}
	return b.String()
}

func askedText(a plan.Asked) string {
	memory := "memory not known"
	if a.Model.MemoryMiB > 0 {
		memory = fmt.Sprintf("%d MiB", a.Model.MemoryMiB)
	}
	return fmt.Sprintf("%d × %s (%d SMs, %s)\n%s", a.GPUs, a.Model.Name, a.Model.GPU.SMs, memory, a.Rules())
}

func percentText(r plan.Rank) string {
	if r.Percent == 0 {
		return "no cap"
	}
	return r.Percent.String()
}

// memoryText prints a limit of memory.
func memoryText(mib *int) string {
	if mib == nil {
		return "no limit"
	}
	return strconv.Itoa(*mib) + " MiB"
}
