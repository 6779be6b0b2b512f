// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/spf13/cobra"
)

const planHelp = `plan prints how ranks would be placed on the GPUs of a node: each rank's GPU, SMs, percentage and memory. It asks no
node: it divides by the arithmetic that mpirun-wrap uses.

Ranks go round the GPUs. Shares:
  none        no cap but the ceiling
  even        whole TPCs that add up to the GPU
  overlap:F   even, times F (1 to 48)
  weight:W    by weight, which is even where all ranks weigh the same
  PCT%        a percentage of the GPU, rounded down to a TPC
  Nsm         so many SMs, rounded down to a TPC
Memory is what a program can use beside its context: none, even, or a size like 8G or 16384M.`

// planCommand is mpsctl plan. A question that has no answer is a mistake of usage.
func planCommand(call *Invocation) *cobra.Command {
	var q Request
	c := &cobra.Command{
		Use: "plan --gpu NAME --ranks N", Short: "print what each rank would get", Long: planHelp,
		Example:               "  mpsctl plan --gpu H200 --gpus 2 --ranks 7 --share even --mem even",
		DisableFlagsInUseLine: true, Args: NoArgs,
		RunE: func(*cobra.Command, []string) error {
			answer, err := q.Answer()
			if err != nil {
				return err
			}
			write := answer.Write
			if call.JSON {
				write = answer.writeJSON
			}
			return WriteError("plan", write(call.Out))
		},
	}
	flags := c.Flags()
	flags.SortFlags = false
	flags.StringVar(&q.GPU, "gpu", "", "the GPU's `NAME`: "+known())
	flags.IntVar(&q.SMs, "sms", 0, "the multiprocessors of a GPU that has no name here: `N`")
	flags.IntVar(&q.GPUs, "gpus", 1, "GPUs that the job has on the node: `N`")
	flags.IntVar(&q.Ranks, "ranks", 0, "ranks that run on the node: `N`")
	flags.StringVar(&q.Share, "share", policy.DefaultGrant().Rule().String(), "each rank's share: `RULE`")
	flags.StringVar(&q.Memory, "mem", "none", "each rank's memory: `RULE`")
	flags.StringVar(&q.Over, "mem-overcommit", "1", "how many times over --mem=even promises the memory: `F`")
	flags.StringVar(&q.Ceiling, "ceiling", "100", "the percentage of a GPU that no rank exceeds: `PCT`")
	flags.IntVar(&q.Clients, "clients", 0, "clients that MPS serves on a GPU: `N` (default 48; 60 from CUDA 13.1 on)")
	return c
}
