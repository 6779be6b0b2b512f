// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/command"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/doctor"
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

// doctorCommand is mpsctl doctor.
func doctorCommand(call *command.Invocation) *cobra.Command {
	var conf, name, slurmd string
	var strict, verbose bool
	c := &cobra.Command{
		Use: "doctor", Short: "find what would make a job fail on this node", Long: doctorHelp,
		Example:               "  mpsctl doctor\n  mpsctl doctor --slurm-conf /etc/slurm/slurm.conf --node gpu01\n  mpsctl doctor --json | jq -r '.findings[].fix'",
		DisableFlagsInUseLine: true, Args: command.NoArgs,
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
			q, err := doctorQuestion(call, conf, name, slurmd)
			if err != nil {
				return cli.RuntimeError{Err: err}
			}
			ctx, stop := command.SignalContext()
			defer stop()
			n := doctor.Gather(ctx, q)
			if ctx.Err() != nil {
				return cli.RuntimeError{Err: errors.New("cannot print findings: interrupted")}
			}
			r := doctor.NewReport(n)
			if verbose {
				r.Checks = doctor.Checks(n)
			}
			return printDoctor(call, r, strict)
		},
	}
	c.Flags().StringVar(&conf, "slurm-conf", "", "read this `FILE` as slurm.conf, and the other files in its folder")
	c.Flags().StringVar(&name, "node", "", "the node's `NAME` in slurm.conf")
	c.Flags().StringVar(&slurmd, "slurmd", "", "have this `FILE` print its list of GPUs; none asks no slurmd")
	c.Flags().BoolVar(&strict, "strict", false, "exit with 1 for warnings too")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "list what was checked")
	return c
}

// doctorQuestion adds the defaults for flags that were not given.
func doctorQuestion(call *command.Invocation, conf, name, slurmd string) (doctor.Question, error) {
	self, err := os.Executable()
	if err != nil {
		return doctor.Question{}, fmt.Errorf("cannot find own program: %w", err)
	}
	if name == "" {
		name = call.Variable("SLURMD_NODENAME")
	}
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return doctor.Question{}, fmt.Errorf("cannot find out which node this is: %w: give --node", err)
		}
		name, _, _ = strings.Cut(host, ".")
	}
	if conf == "" {
		conf = findSlurmConf(call.Variable("SLURM_CONF"))
	}
	return doctor.Question{Paths: call.Paths, Conf: conf, Node: name, Self: self, Slurmd: slurmd}, nil
}

// findSlurmConf returns the slurm.conf that a slurmd would read.
func findSlurmConf(named string) string {
	if named != "" {
		return named
	}
	const usual, configless = "/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"
	if _, err := os.Stat(usual); err != nil {
		if _, err := os.Stat(configless); err == nil {
			return configless
		}
	}
	return usual
}

func printDoctor(call *command.Invocation, r doctor.Report, strict bool) error {
	if err := call.Print("findings", r, func(s command.Screen) string { return doctorText(r, s) }); err != nil {
		return err
	}
	if r.Failed(strict) {
		return cli.ErrFindings
	}
	return nil
}

// doctorText is the report for people: what was read on one line, then the findings.
func doctorText(r doctor.Report, screen command.Screen) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %s: %s, %s, %s, %s\n", screen.Bold(r.Node), r.Time.Format("2006-01-02 15:04:05"), site.Count(r.Looked.Checks, "check"),
		site.Count(r.Looked.Programs, "program"), orNo("slurm.conf", r.Looked.SlurmConf), orNo("driver", r.Looked.Driver), site.Count(r.Looked.GPUs, "GPU"))
	for _, c := range r.Checks {
		mark := map[string]string{"ok": screen.Green("ok"), string(doctor.Fault): screen.Red("! "), string(doctor.Warning): screen.Yellow("~ ")}[c.Result]
		if mark == "" {
			mark = screen.Faint("? ")
		}
		fmt.Fprintf(&b, "  %s  %s\n", mark, c.What)
	}
	for _, f := range r.Findings {
		mark := screen.Red("!")
		if f.Level == doctor.Warning {
			mark = screen.Yellow("~")
		}
		fmt.Fprintf(&b, "\n%s %s  %s\n", mark, screen.Bold(string(f.Kind)), f.Where)
		b.WriteString(screen.Wrap("    ", f.What))
		b.WriteString(printFix(f.Do))
	}
	b.WriteString(printUnseen(r.Unseen, screen))
	if faults, warnings := r.Count(doctor.Fault), r.Count(doctor.Warning); faults+warnings > 0 {
		var parts []string
		if faults > 0 {
			parts = append(parts, screen.Red("! "+site.Count(faults, "fault")))
		}
		if warnings > 0 {
			parts = append(parts, screen.Yellow("~ "+site.Count(warnings, "warning")))
		}
		fmt.Fprintf(&b, "\n%s\n", strings.Join(parts, ", "))
	}
	return b.String()
}

func orNo(what, value string) string {
	if value == "" {
		return "no " + what
	}
	if what == "slurm.conf" {
		return value
	}
	return what + " " + value
}
