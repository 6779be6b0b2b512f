// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl report: one job's use of its GPUs on this node, while it runs and afterwards.

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/usage/judge"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/spf13/cobra"
)

const reportHelp = `report prints what a job used of its GPUs on this node: how its clients ended, how busy the GPUs
were, how much memory was in use, and fatal GPU errors. The first sentence is the result. If the figures justify one,
a sentence of advice follows: about the number of ranks, or how to start them.

JOB is the number of a job, or its name in a job array, as 4711_3. Without it, it is the job of $SLURM_JOB_ID: mpsctl
report may be the last thing that a batch script runs, as by trap 'mpsctl report' EXIT. Outside of a job, it is a list
of your jobs that have a report here; root gets those of all users. A report is there from the first second of a job until 30 days after its end, if the job
had MPS and a client or lasted a minute, or if the policy has record = "all". If a node has more than 1,000 reports,
the oldest of the user with the most are removed. It waits up to 2 s for the ends of clients that have just ended. The
GPUs are sampled every 10 s, so the last seconds of a running job may be missing. The job's user and root can read it,
and no other member of a group; without ACLs, only root can.

If this node has none, your own copies are read that the job's nodes have put into the site's shared folder, if site.hcl
has shared_reports; with --from, those in another folder. Each node has a line, the sums have one, and nodes without a
report are named. Of a requeued job, it is the last run. --share copies this node's reports of the last day into the
shared folder, with the rights of each job's user: slurm-mps-reports.path starts it, as root.

A client ended badly if it ended by a signal, with a status other than 0, or by a fatal GPU error. Each such end is
printed with the client's rank, step and program, and the worst comes first. Clients that ended alike share a line.
For a fatal error, the server's log names a client. It can be a neighbour of the
one that failed.

Of a part of a GPU (gres/shard, gres/mps), the report has a part of the GPU hours and of the energy, the memory of the
job's own clients, and no percentage, because the GPU's percentages have the work of other jobs.

The legend below the table explains the figures. They have the same names in mpsctl status, in mpsctl metrics and
in --json. GPUs before Hopper have no SM active and no DRAM, and MIG instances have no percentage
and no energy. A value that is not known is printed as -.

It exits with 0 if it could print, with 1 if there is no report that it can read, and with 2 for a wrong argument. If
the job of $SLURM_JOB_ID has no report, that is a line and exit code 0, because the exit code of a script's last
command is the job's.`

func reportCommand(call *command.Invocation) *cobra.Command {
	var from string
	var share, line bool
	c := &cobra.Command{
		Use: "report [JOB]", Short: "print what a job used of its GPUs", Long: reportHelp,
		Example: "  mpsctl report\n  mpsctl report 4711\n  mpsctl report 4711 --json | jq '.gpus[].samples'\n" +
			"  mpsctl report 4711_3 --line\n  mpsctl report 4711 --from reports",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("cannot take %q: %s takes one job: see %s --help", args[1], c.CommandPath(), c.CommandPath())
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			job, err := reportedJob(args, call.Variable("SLURM_JOB_ID"))
			switch {
			case err != nil:
				return err
			case line && call.JSON:
				return errors.New("cannot print in several forms: give one of --json and --line")
			case share:
				return command.WriteError("report", shareReports(call.Paths))
			case job == "" && (from != "" || line):
				return errors.New("cannot choose a job: SLURM_JOB_ID is not set: name it: mpsctl report JOB")
			case job == "":
				return printReports(call)
			}
			nodes, err := nodesOf(call.Paths, job, from)
			var without absence
			if errors.As(err, &without) && len(args) == 0 && from == "" && !call.JSON {
				_, err := fmt.Fprintf(call.Err, "mpsctl: job %s has nothing to report: %v\n", job, without)
				return command.WriteError("report", err)
			}
			if err != nil {
				return cli.RuntimeError{Err: fmt.Errorf("cannot report job %s: %w", job, err)}
			}
			of, now := judge.Job{Report: together(nodes)}, time.Now()
			if line {
				_, err := fmt.Fprintf(call.Out, "job %s: %s\n", nameOf(nodes[0]), of.Verdict())
				return command.WriteError("report", err)
			}
			a := answerOf(nodes, now)
			return call.Print("report", a, func(s command.Screen) string { return reportText(a, s, now) })
		},
	}
	c.Flags().StringVar(&from, "from", "", "read the reports of all nodes in this `FOLDER`")
	c.Flags().BoolVar(&line, "line", false, "print the result alone, as a line for a mail or a comment")
	c.Flags().BoolVar(&share, "share", false, "copy this node's reports into the site's shared folder")
	return c
}

// reportedJob returns the job of the argument, or else the job of the environment, or "" if there is neither.
func reportedJob(args []string, current string) (string, error) {
	text := append(args, current)[0]
	if len(args) == 0 && text == "" {
		return "", nil
	}
	number, task, array := strings.Cut(text, "_")
	job, err := strconv.ParseUint(number, 10, 32)
	if _, wrong := slurm.Digits(task); err != nil || job == 0 || array && wrong != nil {
		return "", fmt.Errorf("cannot report job %.40q: it is neither a number nor, in an array, a name as 4711_3: "+
			"squeue -O JobID prints the number of any job", text)
	}
	return text, nil
}

// maxNamed limits the ended jobs that are named if several have the same name.
const maxNamed = 10

// endsWait is how long a report may lack the end of a client. The recorder writes it 1.3 s after the end, or earlier.
const endsWait = 2 * time.Second

// latestReport reads this node's report of a job. If processes of it have just ended, as before the last line of a
// batch script, it waits until the report has their ends.
func latestReport(paths site.Paths, job string) (usage.Report, error) {
	number, err := strconv.ParseUint(job, 10, 32)
	if err != nil {
		named := readableReports(paths, maxNamed, func(r usage.Report) bool { return r.Array == job })
		if len(named) == 0 {
			return usage.Report{}, errNoReport
		}
		if err := oneJob(named); err != nil {
			return usage.Report{}, err
		}
		number = uint64(named[0].Job)
	}
	hasGone := func(c usage.Client) bool { return c.End.IsZero() && !proc.Exists(c.PID) } // and lives in its report
	for until := time.Now().Add(endsWait); ; time.Sleep(endsWait / 20) {
		r, err := findReport(paths, uint32(number))
		if err != nil || time.Now().After(until) || !slices.ContainsFunc(r.Clients, hasGone) {
			return r, err
		}
	}
}

// findReport reads the report of a running job, or else of an ended job.
func findReport(paths site.Paths, job uint32) (usage.Report, error) {
	boot, _ := proc.BootID() // without it no ticket is read
	store := lease.OpenReadOnly(paths.Run(), boot)
	folder, joined := store.JobDir(job), uint32(0)
	if ticket, err := store.ReadTicket(job); err == nil && ticket.Joined != 0 {
		folder, joined = store.JobDir(ticket.Joined), ticket.Joined
	}
	r, err := usage.Read(filepath.Join(folder, usage.RunningOf(job, joined)))
	if errors.Is(err, fs.ErrNotExist) {
		r, err = usage.Read(filepath.Join(paths.Reports(), strconv.FormatUint(uint64(job), 10)+".json"))
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return r, errors.New("it is another user's: that user and root can read its report, " +
			"and root alone if the file system has no ACLs")
	case !errors.Is(err, fs.ErrNotExist):
		return r, err
	}
	if _, running := os.Stat(folder); running == nil {
		return r, errNoReportYet
	}
	return r, errNoReport
}

// absence is why a job has no report, which is no failure of the job.
type absence string

func (a absence) Error() string { return string(a) }

const (
	errNoReport = absence("this node has no report of it: see whether it ran here in the last 30 days, with MPS or " +
		"record = \"all\", and had a client or lasted a minute")
	errNoReportYet = absence("it has no report yet: " +
		"the first sample comes after a second, if the policy's hold and usage_interval in site.hcl are not 0")
)

func reportText(a jobAnswer, screen command.Screen, now time.Time) string {
	var b strings.Builder
	r, node := judge.Job{Report: a.Report}, a.Node
	if len(a.nodes) > 1 {
		node = words.Count(len(a.nodes), "node")
	}
	ended, until := "runs", now
	if !r.End.IsZero() {
		ended, until = "ended "+r.End.Local().Format(time.DateTime), r.End
	}
	name := ""
	if r.Name != "" {
		name = fmt.Sprintf(" %q", r.Name)
	}
	b.WriteString(screen.Wrap("", fmt.Sprintf("job %s%s of %s on %s: %s, %s", nameOf(a.Report), name, r.User, node,
		ended, age(until.Sub(r.Begin)))))
	b.WriteString(screen.Wrap("", screen.Bold(r.Verdict())) + "\n")
	shares := ""
	if share := r.Shares(); share != "" {
		shares = "; the clients had " + share
	}
	if len(r.SharedWith) > 0 {
		others := strings.ReplaceAll(strings.Trim(fmt.Sprint(r.SharedWith), "[]"), " ", ", ")
		b.WriteString(screen.Wrap("", "The job shared its daemon with other jobs of its user ("+others+")."))
	}
	if r.NoMPS {
		b.WriteString(screen.Wrap("", fmt.Sprintf("The samples have %s of the job, at most %d at the same time. "+
			"How a process ended is not known.", words.Count(r.ClientsSeen, "process"), r.ClientsPeak)))
	} else {
		b.WriteString(screen.Wrap("", fmt.Sprintf("%s, at most %d at the same time. Rule %q grants share %s%s.",
			words.Count(r.ClientsSeen, "client"), r.ClientsPeak, r.Rule, r.Share, shares)))
	}
	energy := ""
	if r.EnergyJ > 0 {
		energy = ", " + usage.Energy(r.EnergyJ)
	}
	fmt.Fprintf(&b, "%.2f GPU hours%s.\n", a.GPUHours, energy)
	if text := r.PartText(); text != "" {
		b.WriteString(screen.Wrap("", text))
	}
	b.WriteString("\n")
	b.WriteString(figuresTable(a, screen))
	if len(a.Missing) > 0 {
		b.WriteString(screen.Wrap("", "No report here of "+strings.Join(a.Missing, ", ")+"."))
	}
	for n, incident := range a.Incidents {
		if n == 0 {
			b.WriteString("\n")
		}
		if n == maxIncidents {
			fmt.Fprintf(&b, "%s more: see --json.\n", words.Count(len(a.Incidents)-n, "incident"))
			break
		}
		b.WriteString(screen.Wrap("", clockOf(incident.At, r.Begin)+"  "+incident.Text))
	}
	for _, text := range []string{judge.PauseText(r.Totals), a.Advice} {
		if text != "" {
			b.WriteString("\n" + screen.Wrap("", text))
		}
	}
	return b.String() + "\n" + legend(r.Report, screen)
}

// figuresTable has a row for each GPU of the only node, or for each of several nodes, and then for all.
func figuresTable(a jobAnswer, screen command.Screen) string {
	t := table{gap: 2, columns: []column{{name: "GPU"}}}
	add := func(r usage.Report, g usage.GPU, mean usage.Sample, joules int, row ...any) {
		for _, f := range usage.All {
			row = append(row, r.Text(f, g, mean))
		}
		t.rows = append(t.rows, append(row, usage.Energy(joules)))
	}
	ofAll := func(name string, r usage.Report) {
		add(r, append(r.GPUs, usage.GPU{})[0], r.Mean(), r.EnergyJ, name, r.ClientsSeen, r.BadEnds)
	}
	switch len(a.nodes) {
	case 1:
		for _, g := range a.GPUs {
			add(a.Report, g, g.Mean(a.Begin), g.EnergyJ, g.Index)
		}
	default:
		t.columns = []column{{name: "node"}, {name: "clients"}, {name: "bad ends"}}
		for _, r := range a.nodes {
			ofAll(r.Node, r)
		}
		ofAll("all", a.Report)
	}
	for _, f := range usage.All {
		t.columns = append(t.columns, column{name: f.Name})
	}
	t.columns = append(t.columns, column{name: "energy"})
	return t.text(screen)
}

func legend(r usage.Report, screen command.Screen) string {
	const column = 13
	text := ""
	for _, f := range r.Figures() {
		text += fmt.Sprintf("%-*s%s", column, f.Name, screen.Wrap(strings.Repeat(" ", column), f.Means)[column:])
	}
	return screen.Faint(strings.TrimSuffix(text, "\n")) + "\n"
}

// clockOf returns a time of a job, with the day if that is not the day of its begin.
func clockOf(t, begin time.Time) string {
	t, begin = t.Local(), begin.Local()
	if t.YearDay() != begin.YearDay() || t.Year() != begin.Year() {
		return t.Format(time.DateTime)
	}
	return t.Format(time.TimeOnly)
}

// maxIncidents is the number of incidents that are printed one by one. The others are only counted.
const maxIncidents = 5
