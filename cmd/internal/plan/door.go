package plan

import (
	"errors"
	"fmt"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/spf13/cobra"
)

// errWrite marks an answer that could not be printed: the one failure that is not the question's.
var errWrite = errors.New("cannot print plan")

const printFailed = 1

// Mpsctl is the door of mpsctl. A question that has no answer is a mistake of usage.
func Mpsctl(p cli.Process) int {
	root := &cobra.Command{
		Use: "mpsctl", Short: "say what slurm-mps would do", Version: cli.Version(),
		SilenceErrors: true, SilenceUsage: true, DisableSuggestions: true,
		Args: noOperand,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("cannot run: no command is given: see mpsctl --help")
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{Hidden: true, Use: "no-help", RunE: root.RunE})
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("cannot read flags: %w: see %s --help", err, c.CommandPath())
	})
	root.AddCommand(command(p))
	root.SetArgs(p.Args)
	root.SetOut(p.Out)
	root.SetErr(p.Err)
	if err := root.Execute(); err != nil {
		p.Complain("mpsctl", err)
		if errors.Is(err, errWrite) {
			return printFailed
		}
		return cli.Usage
	}
	return cli.OK
}

func noOperand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if c.HasSubCommands() {
		return fmt.Errorf("cannot run %q: there is no such command: see mpsctl --help", args[0])
	}
	return fmt.Errorf("cannot take %q: %s takes flags alone: see %s --help", args[0], c.CommandPath(), c.CommandPath())
}

const planHelp = `plan prints how ranks would be seated on the GPUs of a node: each rank's GPU, SMs, percentage and memory. It asks no
node: it divides by the arithmetic that mpirun-wrap seats by.

Ranks go round the GPUs. Shares:
  none        no cap but the ceiling
  even        whole TPCs that add up to the GPU
  overlap:F   even, times F (1 to 48)
  weight:W    by weight, which is even where all ranks weigh the same
  PCT%        a percentage of the GPU, rounded down to a TPC
  Nsm         so many SMs, rounded down to a TPC
Memory is what a program can use beside its context: none, even, or a size like 8G or 16384M.`

func command(p cli.Process) *cobra.Command {
	var q question
	var asJSON bool
	c := &cobra.Command{
		Use: "plan --gpu NAME --ranks N", Short: "print what each rank would get", Long: planHelp,
		Example:               "  mpsctl plan --gpu H200 --gpus 2 --ranks 7 --share even --mem even",
		DisableFlagsInUseLine: true, Args: noOperand,
		RunE: func(*cobra.Command, []string) error {
			answer, err := q.answer()
			if err != nil {
				return err
			}
			write := answer.writeTable
			if asJSON {
				write = answer.writeJSON
			}
			if err := write(p.Out); err != nil {
				return fmt.Errorf("%w: %w", errWrite, err)
			}
			return nil
		},
	}
	flags := c.Flags()
	flags.SortFlags = false
	flags.StringVar(&q.gpu, "gpu", "", "the GPU's `NAME`: "+known())
	flags.IntVar(&q.sms, "sms", 0, "the multiprocessors of a GPU that has no name here: `N`")
	flags.IntVar(&q.gpus, "gpus", 1, "GPUs that the job has on the node: `N`")
	flags.IntVar(&q.ranks, "ranks", 0, "ranks that run on the node: `N`")
	flags.StringVar(&q.share, "share", policy.DefaultGrant().Rule().String(), "each rank's share: `RULE`")
	flags.StringVar(&q.memory, "mem", "none", "each rank's memory: `RULE`")
	flags.StringVar(&q.over, "mem-overcommit", "1", "how many times over --mem=even promises the memory: `F`")
	flags.StringVar(&q.ceiling, "ceiling", "100", "the percentage of a GPU that no rank exceeds: `PCT`")
	flags.IntVar(&q.clients, "clients", 0, "clients that MPS serves on a GPU: `N` (default 48; 60 from CUDA 13.1 on)")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
