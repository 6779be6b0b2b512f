// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/plan"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/spf13/cobra"
)

const planHelp = `plan prints how ranks would be placed on the GPUs of a node: each rank's GPU, SMs, percentage and memory. It asks no
node: it divides by the arithmetic that mpirun-wrap uses.

Ranks go round the GPUs. Shares:
  none        no cap but the ceiling
  even        whole TPCs that add up to the GPU
  overlap:F   even, times F (1 to 48)
  PCT%        a percentage of the GPU, rounded down to a TPC
  Nsm         N SMs, rounded down to a TPC
  3:1         a list with an entry for each rank of a GPU: ratios, or percentages like 70%,30%
Memory is what a program can use, without its context: none, even, or a size like 8G or 16384M.`

// planCommand is mpsctl plan. A question without an answer is a mistake in usage.
func planCommand(call *command.Invocation) *cobra.Command {
	var q plan.Request
	c := &cobra.Command{
		Use: "plan --gpu NAME --ranks N", Short: "print what each rank would get", Long: planHelp,
		Example: "  mpsctl plan --gpu H200 --gpus 2 --ranks 7 --share even --mem even",
		Args:    command.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			answer, err := q.Answer()
			if err != nil {
				return command.SuggestShare(err, q.Share)
			}
			return call.Print("plan", answer, func(command.Screen) string { return planText(answer) })
		},
	}
	flags := c.Flags()
	flags.SortFlags = false
	flags.StringVar(&q.GPU, "gpu", "", "the GPU's `NAME`, such as H200, \"H100 PCIe\" or A100-80")
	flags.IntVar(&q.SMs, "sms", 0, "the GPU has no name here, and `N` multiprocessors")
	flags.IntVar(&q.GPUs, "gpus", 1, "the job has `N` GPUs on the node")
	flags.IntVar(&q.Ranks, "ranks", 0, "`N` ranks run on the node")
	flags.StringVar(&q.Share, "share", policy.DefaultGrant().Rule().String(), "the `RULE` of each rank's share")
	flags.StringVar(&q.Memory, "mem", "none", "the `RULE` of each rank's memory")
	flags.StringVar(&q.Over, "mem-overcommit", "1", "--mem=even promises the memory `F` times")
	flags.StringVar(&q.Ceiling, "ceiling", "100", "no rank exceeds `PCT` percent of a GPU")
	flags.IntVar(&q.Clients, "clients", 0, "MPS serves `N` clients on a GPU (default 48; 60 from CUDA 13.1 on)")
	command.CompleteValues(c, "gpu", modelNames()...)
	command.CompleteValues(c, "share", "none", "even", "overlap:")
	command.CompleteValues(c, "mem", "none", "even")
	return c
}

// modelNames are the names of known GPUs, as one word each.
func modelNames() (names []string) {
	for _, m := range policy.Models() {
		names = append(names, strings.ReplaceAll(m.Name, " ", "-"))
	}
	return names
}

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
