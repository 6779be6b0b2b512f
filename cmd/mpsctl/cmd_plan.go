// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/plan"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/tuned"
	"github.com/spf13/cobra"
)

const planHelp = `plan prints how ranks would be placed on the GPUs of a node: each rank's GPU, SMs, percentage and memory. It asks no
node: it divides by the arithmetic that mpirun-wrap uses.

Ranks go round the GPUs. Shares:
  none        no cap but the ceiling
  even        whole TPCs that add up to the GPU
  overlap:F   even, times F (1 to 48)
  weight:W    by weight, which is even if all ranks have the same weight
  PCT%        a percentage of the GPU, rounded down to a TPC
  Nsm         N SMs, rounded down to a TPC
  tuned:NAME  what mps-tune has saved for the program, in your file or the site's
Memory is what a program can use, without its context: none, even, or a size like 8G or 16384M.

--svg also draws the GPUs: a column for each SM, and a bar for each rank. MPS limits how many SMs a rank uses, and not
which, so the places of the bars are an example.`

// planCommand is mpsctl plan. A question without an answer is a mistake in usage.
func planCommand(call *command.Invocation) *cobra.Command {
	var q plan.Request
	var picture string
	c := &cobra.Command{
		Use: "plan --gpu NAME --ranks N", Short: "print what each rank would get", Long: planHelp,
		Example: "  mpsctl plan --gpu H200 --gpus 2 --ranks 7 --share even --mem even",
		Args:    command.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			q, err := withTuned(q, tuned.UserFile(call.Variable("XDG_CONFIG_HOME"), call.Variable("HOME")), call.Paths.Tuned())
			if err != nil {
				return err
			}
			answer, err := q.Answer()
			if err != nil {
				return command.SuggestShare(err, q.Share)
			}
			if picture != "" {
				if err := savePicture(picture, answer); err != nil {
					return cli.RuntimeError{Err: err}
				}
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
	flags.StringVar(&picture, "svg", "", "write a picture of the plan to `FILE` too")
	command.CompleteValues(c, "gpu", modelNames()...)
	command.CompleteValues(c, "share", "none", "even", "overlap:", "weight:")
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

// withTuned replaces the share tuned:NAME by the one that mpirun-wrap would find in these files.
func withTuned(q plan.Request, userFile, siteFile string) (plan.Request, error) {
	program, product, err := q.Tuned()
	if err != nil || program == "" {
		return q, err
	}
	rule, _, err := tuned.Find(userFile, siteFile, tuned.NewKey(program, q.Ranks, q.GPUs, product))
	q.Share = rule.String()
	return q, err
}

// savePicture writes the picture of a plan into a file. The file is whole or absent.
func savePicture(path string, p plan.Plan) error {
	var picture bytes.Buffer
	if err := p.WriteSVG(&picture); err != nil {
		return fmt.Errorf("cannot draw the plan: %w", err)
	}
	return replaceFile(path, picture.Bytes())
}
