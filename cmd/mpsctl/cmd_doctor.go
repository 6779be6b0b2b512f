// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/doctor"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/spf13/cobra"
)

const doctorHelp = `doctor finds what would make a job with MPS fail on this node, and changes nothing. It reads our programs and files, the control
program, the driver and its GPUs, slurm.conf, gres.conf and the files beside them, slurmd's own list of GPUs (slurmd -G,
which reads those files and ends), limits, and what ended jobs have left. Each finding has a repair. A finding is a fault
if a job fails, or gets less than it was granted. Otherwise it is a warning.

slurm.conf is the one of --slurm-conf, else of SLURM_CONF, else /etc/slurm/slurm.conf, else /run/slurm/conf/slurm.conf. This
node's name there is that of --node, else of SLURMD_NODENAME, else the host's, up to its first dot.

It exits with 0 if everything was seen and there is no fault, with 1 otherwise, and with 2 for a wrong flag. Warnings alone
leave it at 0, so that Slurm's HealthCheckProgram can use it. With --strict they make it 1. -v lists what was checked.
Only root can see everything.`

func doctorCommand(call *command.Invocation) *cobra.Command {
	var conf, name, slurmd string
	var strict, verbose bool
	c := &cobra.Command{
		Use: "doctor", Short: "find what would make a job fail on this node", Long: doctorHelp,
		Example: "  mpsctl doctor\n  mpsctl doctor --slurm-conf /etc/slurm/slurm.conf --node gpu01\n" +
			"  mpsctl doctor --json | jq -r '.findings[].fix'",
		Args: command.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if conf != "" && !filepath.IsAbs(conf) {
				return fmt.Errorf("cannot use --slurm-conf %q: give an absolute path", conf)
			}
			if slurmd != "" && slurmd != doctor.LeaveSlurmd && !filepath.IsAbs(slurmd) {
				return fmt.Errorf("cannot use --slurmd %q: give an absolute path, or none", slurmd)
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			host, err := os.Hostname()
			host, _, _ = strings.Cut(host, ".")
			name := cmp.Or(name, call.Variable("SLURMD_NODENAME"), host)
			if name == "" {
				return cli.RuntimeError{Err: fmt.Errorf("cannot find out which node this is: %w: give --node", err)}
			}
			conf := cmp.Or(conf, call.Variable("SLURM_CONF"))
			ctx, stop := command.SignalContext()
			defer stop()
			r := doctor.Examine(ctx, doctor.Question{Paths: call.Paths, Conf: conf, Node: name, Slurmd: slurmd})
			if ctx.Err() != nil {
				return cli.RuntimeError{Err: errors.New("cannot print findings: interrupted")}
			}
			if !verbose {
				r.Checks = nil
			}
			text := func(screen command.Screen) string { return doctorText(r, screen) }
			return call.PrintFindings("findings", r, text, r.Failed(strict))
		},
	}
	c.Flags().StringVar(&conf, "slurm-conf", "", "read this `FILE` as slurm.conf, and the other files in its folder")
	c.Flags().StringVar(&name, "node", "", "the node's `NAME` in slurm.conf")
	c.Flags().StringVar(&slurmd, "slurmd", "", "have this `FILE` print its list of GPUs; none asks no slurmd")
	c.Flags().BoolVar(&strict, "strict", false, "exit with 1 for warnings too")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "list what was checked")
	return c
}

// doctorText is the report for people: the parts that were read on one line, then the findings.
func doctorText(r doctor.Report, screen command.Screen) string {
	var b strings.Builder
	driver := "no driver"
	if r.Checked.Driver != "" {
		proven := map[bool]string{true: "(proven)", false: "(not proven: docs/measurements)"}[r.Checked.Proven]
		driver = fmt.Sprintf("driver %s %s", r.Checked.Driver, proven)
	}
	fmt.Fprintf(&b, "%s  %s  %s: %s, %s, %s, %s\n", screen.Bold(r.Node), r.Time.Format("2006-01-02 15:04:05"),
		words.Count(r.Checked.Checks, "check"), words.Count(r.Checked.Programs, "program"),
		cmp.Or(r.Checked.SlurmConf, "no slurm.conf"), driver, words.Count(r.Checked.GPUs, "GPU"))
	for _, c := range r.Checks {
		sign := screen.Faint("? ")
		switch c.Result {
		case "ok":
			sign = screen.Green("ok")
		case string(state.Fault), string(state.Warning):
			sign = mark(state.Level(c.Result), screen) + " "
		}
		fmt.Fprintf(&b, "  %s  %s\n", sign, c.What)
	}
	for _, f := range r.Findings {
		b.WriteString("\n" + findingText(f, screen))
	}
	b.WriteString(unseenText(r.Unseen, screen))
	var parts []string
	for _, level := range []state.Level{state.Fault, state.Warning, state.Note} {
		if n := r.Count(level); n > 0 {
			parts = append(parts, mark(level, screen)+" "+words.Count(n, string(level)))
		}
	}
	if len(parts) > 0 {
		fmt.Fprintf(&b, "\n%s\n", strings.Join(parts, ", "))
	}
	return b.String()
}
