// SPDX-License-Identifier: Apache-2.0

// Package doctor is mpsctl doctor: what stands between this node and a working job, each with its repair.
//
// The promise: it changes nothing, waits for nobody without a deadline, and says nothing is wrong that it has not seen.
// Gathering and judging are apart: Judge is pure.
package doctor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/ctl"
	"github.com/spf13/cobra"
)

const help = `doctor looks for what stands between this node and a job with MPS, and changes nothing: our programs and files, the control
program, the driver and its GPUs, slurm.conf, gres.conf and the files beside them, slurmd's own list of GPUs (slurmd -G,
which reads those files and ends), limits, and what is left of jobs that have ended. Each finding says what to do, and is a fault (a job fails, or gets less than it was granted) or a warning.

slurm.conf is the one of --slurm-conf, else of SLURM_CONF, else /etc/slurm/slurm.conf, else /run/slurm/conf/slurm.conf. This
node's name there is that of --node, else of SLURMD_NODENAME, else the host's, up to its first dot.

It exits with 0 when all was seen and there is no fault, with 1 otherwise, and with 2 for a wrong flag. Warnings alone
leave it at 0, so that Slurm's HealthCheckProgram can go by it; with --strict they make it 1. -v lists what was checked.
Who is not root cannot see all.`

// Command is mpsctl doctor.
func Command(call *ctl.Invocation) *cobra.Command {
	var conf, name, slurmd string
	var strict, verbose bool
	c := &cobra.Command{
		Use: "doctor", Short: "find what stands between this node and a working job", Long: help,
		Example:               "  mpsctl doctor\n  mpsctl doctor --slurm-conf /etc/slurm/slurm.conf --node gpu01\n  mpsctl doctor --json | jq -r '.findings[].do'",
		DisableFlagsInUseLine: true, Args: ctl.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if conf != "" && !filepath.IsAbs(conf) {
				return fmt.Errorf("cannot use --slurm-conf %q: give an absolute path", conf)
			}
			if slurmd != "" && slurmd != leaveSlurmd && !filepath.IsAbs(slurmd) {
				return fmt.Errorf("cannot use --slurmd %q: give an absolute path, or none", slurmd)
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			q, err := asked(call, conf, name, slurmd)
			if err != nil {
				return cli.RuntimeError{Err: err}
			}
			ctx, stop := ctl.SignalContext()
			defer stop()
			n := gather(ctx, q)
			if ctx.Err() != nil {
				return cli.RuntimeError{Err: errors.New("cannot print findings: interrupted")}
			}
			r := newReport(n)
			if verbose {
				r.Checks = listed(n)
			}
			return tell(call, r, strict)
		},
	}
	c.Flags().StringVar(&conf, "slurm-conf", "", "read this `FILE` as slurm.conf, and what lies beside it")
	c.Flags().StringVar(&name, "node", "", "the node's `NAME` in slurm.conf")
	c.Flags().StringVar(&slurmd, "slurmd", "", "have this `FILE` print its list of GPUs; none asks no slurmd")
	c.Flags().BoolVar(&strict, "strict", false, "exit with 1 for warnings too")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "list what was checked")
	return c
}

// asked fills in what was not given.
func asked(call *ctl.Invocation, conf, name, slurmd string) (question, error) {
	self, err := os.Executable()
	if err != nil {
		return question{}, fmt.Errorf("cannot find own program: %w", err)
	}
	if name == "" {
		name = variable(call.Env, "SLURMD_NODENAME")
	}
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return question{}, fmt.Errorf("cannot tell which node this is: %w: give --node", err)
		}
		name, _, _ = strings.Cut(host, ".")
	}
	if conf == "" {
		conf = found(variable(call.Env, "SLURM_CONF"))
	}
	return question{paths: call.Paths, conf: conf, node: name, self: self, slurmd: slurmd}, nil
}

// found is slurm.conf where a slurmd would find it.
func found(named string) string {
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

func variable(env []string, name string) string {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// report is the JSON.
type report struct {
	Node     string    `json:"node"`
	Time     time.Time `json:"time"`
	Complete bool      `json:"complete"` // all was seen
	Looked   looked    `json:"looked"`
	Checks   []Check   `json:"checks,omitempty"` // with -v
	Findings []Finding `json:"findings"`
	Unseen   []string  `json:"unseen"`
}

// looked is what was looked at.
type looked struct {
	SlurmConf string `json:"slurm_conf"` // "" where there is none to read
	Driver    string `json:"driver"`     // its version, "" where it does not answer
	GPUs      int    `json:"gpus"`
	Programs  int    `json:"programs"`
	Checks    int    `json:"checks"`
}

func newReport(n Node) report {
	r := report{Node: n.Name, Time: n.Time, Complete: len(n.Unseen) == 0, Findings: Judge(n), Unseen: n.Unseen}
	r.Looked.Programs, r.Looked.Checks = len(n.Programs), len(checks)
	if n.Slurm != nil {
		r.Looked.SlurmConf = n.Slurm.Path
	}
	if n.Driver != nil {
		r.Looked.Driver, r.Looked.GPUs = n.Driver.Version, len(n.Driver.GPUs)
	}
	return r
}

func tell(call *ctl.Invocation, r report, strict bool) error {
	var err error
	if call.JSON {
		err = cli.WriteJSON(call.Out, r)
	} else {
		_, err = io.WriteString(call.Out, r.text(call.Screen()))
	}
	if err != nil {
		return ctl.WriteError("findings", err)
	}
	if r.failed(strict) {
		return cli.ErrFindings
	}
	return nil
}

// failed says that the node is not ready for jobs, or that not all of it was seen.
func (r report) failed(strict bool) bool {
	return !r.Complete || slices.ContainsFunc(r.Findings, func(f Finding) bool { return strict || f.Level == Fault })
}

// text is the report for people: what was looked at on one line, then what was found.
func (r report) text(screen ctl.Screen) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %s: %s, %s, %s, %s\n", screen.Bold(r.Node), r.Time.Format("2006-01-02 15:04:05"), ctl.Count(r.Looked.Checks, "check"),
		ctl.Count(r.Looked.Programs, "program"), orNo("slurm.conf", r.Looked.SlurmConf), orNo("driver", r.Looked.Driver), ctl.Count(r.Looked.GPUs, "GPU"))
	for _, c := range r.Checks {
		mark := map[string]string{"ok": screen.Green("ok"), string(Fault): screen.Red("! "), string(Warning): screen.Yellow("~ ")}[c.Result]
		if mark == "" {
			mark = screen.Faint("? ")
		}
		fmt.Fprintf(&b, "  %s  %s\n", mark, c.What)
	}
	for _, f := range r.Findings {
		mark := screen.Red("!")
		if f.Level == Warning {
			mark = screen.Yellow("~")
		}
		fmt.Fprintf(&b, "\n%s %s  %s\n", mark, screen.Bold(string(f.Kind)), f.Where)
		b.WriteString(screen.Wrap("    ", f.What))
		fmt.Fprintf(&b, "    do: %s\n", f.Do)
	}
	for i, what := range r.Unseen {
		if i == 0 {
			fmt.Fprintf(&b, "\n%s\n", screen.Yellow("not seen"))
		}
		b.WriteString(screen.Wrap("  ", what))
	}
	if faults, warnings := r.count(Fault), r.count(Warning); faults+warnings > 0 {
		var parts []string
		if faults > 0 {
			parts = append(parts, screen.Red("! "+ctl.Count(faults, "fault")))
		}
		if warnings > 0 {
			parts = append(parts, screen.Yellow("~ "+ctl.Count(warnings, "warning")))
		}
		fmt.Fprintf(&b, "\n%s\n", strings.Join(parts, ", "))
	}
	return b.String()
}

func (r report) count(level Level) (n int) {
	for _, f := range r.Findings {
		if f.Level == level {
			n++
		}
	}
	return n
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
