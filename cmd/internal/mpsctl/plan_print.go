// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
)

// writeJSON writes the plan in one line, for programs.
func (p Plan) writeJSON(w io.Writer) error { return cli.WriteJSON(w, p) }

// barCells is the width that the numbers leave for a bar on a line of 80 columns.
const barCells = 38

// Write writes the plan for people. Each rank has a line with a bar, and the whole bar is the GPU. Then each GPU has
// a line with its total.
func (p Plan) Write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", p.about)
	b.WriteString("rank  GPU    SMs     percent     memory\n")
	for _, r := range p.Ranks {
		fmt.Fprintf(&b, "%4d %4d  %5d  %10s %10s  %s\n", r.Rank, r.GPU, r.SMs, r.percent(), r.memory(), Bar(r.SMs, p.about.model.GPU.SMs, barCells))
	}
	b.WriteByte('\n')
	for gpu := range p.about.gpus {
		b.WriteString(p.total(gpu))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String returns the input of the plan.
func (a about) String() string {
	memory := "memory not known"
	if a.model.MemoryMiB > 0 {
		memory = fmt.Sprintf("%d MiB", a.model.MemoryMiB)
	}
	return fmt.Sprintf("%d × %s (%d SMs, %s)\nshare %s, memory %s, ceiling %s %%", a.gpus, a.model.Name, a.model.GPU.SMs, memory, a.share, a.memory, a.ceiling)
}

func (p Plan) total(gpu int) string {
	ranks, sms := 0, 0
	for _, r := range p.Ranks {
		if r.GPU == gpu {
			ranks, sms = ranks+1, sms+r.SMs
		}
	}
	if ranks == 0 {
		return fmt.Sprintf("GPU %d: no rank\n", gpu)
	}
	all := p.about.model.GPU.SMs
	return fmt.Sprintf("GPU %d: %d %s, %d of %d SMs dealt (%.2f ×)\n", gpu, ranks, noun(ranks, "rank"), sms, all, float64(sms)/float64(all))
}

func (r Rank) percent() string {
	if r.Percent == 0 {
		return "no cap"
	}
	return r.Percent.String()
}

func (r Rank) memory() string {
	if r.MemoryMiB == nil {
		return "no limit"
	}
	return strconv.Itoa(*r.MemoryMiB) + " MiB"
}
