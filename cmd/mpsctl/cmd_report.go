// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl report: one job's use of its GPUs on this node, while it runs and afterwards.

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/usage/judge"
	"github.com/slurm-mps/slurm-mps/site/usage/page"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/spf13/cobra"
)

const reportHelp = `report prints what a job used of its GPUs on this node: how its clients ended, how busy the GPUs
were, how much memory was in use, and fatal GPU errors. The first sentence is the result. If the figures justify one,
a sentence of advice follows: about the number of ranks, or how to start them.

JOB is the number of a job. Without it, it is the job of $SLURM_JOB_ID: mpsctl report may be the last line of a batch
script. Outside of a job, it is a list of your jobs that have a report here; root gets those of all users. A report is
there from the first second of a job until 30 days after its end, if the job had a client of MPS. If a node has more
than 1,000 reports, the oldest of the user with the most are removed. It waits up to 2 s for the ends of clients that
have just ended. The GPUs are sampled every 10 s, so the last seconds of a running job may be missing. The job's user
and root can read it, and no other member of a group. If the file system has no ACLs, only root can.

A client ended badly if it ended by a signal, with a status other than 0, or by a fatal GPU error. Each such end is
printed with the client's rank, step and program, and the worst comes first. Clients that ended alike share a line.
The client with which a fatal error began is the one that the server's log names.

Of a part of a GPU (gres/shard, gres/mps), the report has a part of the GPU hours and of the energy, the memory of the
job's own clients, and no percentage, because the GPU's percentages have the work of other jobs.

The legend below the table explains the figures. They have the same names in mpsctl status, in mpsctl metrics, in the
page of --html and in --json. GPUs before Hopper have no SM active and no DRAM, and MIG instances have no percentage
and no energy. A value that is not known is printed as -.

It exits with 0 if it could print, with 1 if there is no report that it can read, and with 2 for a wrong argument.`

func reportCommand(call *command.Invocation) *cobra.Command {
	var html string
	c := &cobra.Command{
		Use: "report [JOB]", Short: "print what a job used of its GPUs", Long: reportHelp,
		Example: "  mpsctl report\n  mpsctl report 4711\n  mpsctl report 4711 --json | jq '.gpus[].samples'\n" +
			"  mpsctl report 4711 --html report.html",
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
			case job == 0 && html != "":
				return errors.New("cannot write a page: no job is given, and SLURM_JOB_ID is not set: mpsctl report JOB --html FILE")
			case job == 0:
				return printReports(call)
			}
			r, err := latestReport(call.Paths, job)
			if err != nil {
				return cli.RuntimeError{Err: err}
			}
			if html != "" {
				return writePage(html, r)
			}
			now := time.Now()
			j := judge.Job{Report: r}
			return call.Print("report", j.Judge(now), func(s command.Screen) string { return reportText(j, s, now) })
		},
	}
	c.Flags().StringVar(&html, "html", "", "write a page with a lane for each client into this `FILE`")
	return c
}

// writePage writes the page of a report into a file. The file is whole or absent.
func writePage(path string, r usage.Report) error {
	var html bytes.Buffer
	if err := page.Write(&html, judge.Job{Report: r}, time.Now()); err != nil {
		return cli.RuntimeError{Err: fmt.Errorf("cannot draw report of job %d: %w", r.Job, err)}
	}
	if err := replaceFile(path, html.Bytes(), os.Open); err != nil {
		return cli.RuntimeError{Err: err}
	}
	return nil
}

// reportedJob returns the job of the argument, or else the job of the environment, or 0 if there is neither.
func reportedJob(args []string, current string) (uint32, error) {
	text := current
	if len(args) == 1 {
		text = args[0]
	} else if current == "" {
		return 0, nil
	}
	job, err := strconv.ParseUint(text, 10, 32)
	if err != nil || job == 0 {
		return 0, fmt.Errorf("cannot report job %.40q: it is not a job's number: squeue -O JobID prints it, of a job array too", text)
	}
	return uint32(job), nil
}

// endsWait is how long a report may lack the end of a client. The recorder writes it 1.3 s after the end, or earlier.
const endsWait = 2 * time.Second

// latestReport reads the report of a job. If processes of it have just ended, as before the last line of a batch
// script, it waits until the report has their ends.
func latestReport(paths site.Paths, job uint32) (usage.Report, error) {
	for until := time.Now().Add(endsWait); ; time.Sleep(endsWait / 20) {
		r, err := findReport(paths, job)
		if err != nil || time.Now().After(until) || !slices.ContainsFunc(r.Clients, hasGone) {
			return r, err
		}
	}
}

// hasGone reports whether a client that lives in its report has ended.
func hasGone(c usage.Client) bool { return c.End.IsZero() && !proc.Exists(c.PID) }

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
	case err == nil:
		return r, nil
	case errors.Is(err, fs.ErrPermission):
		return r, fmt.Errorf("cannot report job %d: it is another user's: that user and root can read its report, "+
			"and root alone if the file system has no ACLs", job)
	case !errors.Is(err, fs.ErrNotExist):
		return r, fmt.Errorf("cannot report job %d: %w", job, err)
	}
	if _, running := os.Stat(folder); running == nil {
		return r, fmt.Errorf("cannot report job %d: it has no report yet: "+
			"the first sample comes after a second, if the policy's hold and usage_interval in site.hcl are not 0", job)
	}
	return r, fmt.Errorf("cannot report job %d: this node has no report of it: "+
		"see whether it ran here with a client of MPS, for a second at least and in the last 30 days", job)
}

func reportText(r judge.Job, screen command.Screen, now time.Time) string {
	var b strings.Builder
	ended, until := "runs", now
	if !r.End.IsZero() {
		ended, until = "ended "+r.End.Local().Format(time.DateTime), r.End
	}
	name := ""
	if r.Name != "" {
		name = fmt.Sprintf(" %q", r.Name)
	}
	b.WriteString(screen.Wrap("", fmt.Sprintf("job %d%s of %s on %s: %s, %s", r.Job, name, r.User, r.Node, ended,
		age(until.Sub(r.Begin)))))
	b.WriteString(screen.Wrap("", screen.Bold(r.Verdict())) + "\n")
	shares := ""
	if share := r.Shares(); share != "" {
		shares = "; the clients had " + share
	}
	if len(r.SharedWith) > 0 {
		others := strings.ReplaceAll(strings.Trim(fmt.Sprint(r.SharedWith), "[]"), " ", ", ")
		b.WriteString(screen.Wrap("", "The job shared its daemon with other jobs of its user ("+others+")."))
	}
	b.WriteString(screen.Wrap("", fmt.Sprintf("%s, at most %d at the same time. Rule %q grants share %s%s.",
		words.Count(r.ClientsSeen, "client"), r.ClientsPeak, r.Rule, r.Share, shares)))
	energy := ""
	if r.EnergyJ > 0 {
		energy = ", " + usage.Energy(r.EnergyJ)
	}
	fmt.Fprintf(&b, "%.2f GPU hours%s.\n", r.GPUHours(now), energy)
	if text := r.PartText(); text != "" {
		b.WriteString(screen.Wrap("", text))
	}
	b.WriteString("\n")
	b.WriteString(figuresTable(r.Report, screen))
	for n, incident := range r.Incidents() {
		if n == 0 {
			b.WriteString("\n")
		}
		if n == maxIncidents {
			fmt.Fprintf(&b, "%s more: see --json.\n", words.Count(len(r.Incidents())-n, "incident"))
			break
		}
		b.WriteString(screen.Wrap("", clockOf(incident.At, r.Begin)+"  "+incident.Text))
	}
	for _, text := range []string{judge.PauseText(r.Totals), r.Advice()} {
		if text != "" {
			b.WriteString("\n" + screen.Wrap("", text))
		}
	}
	return b.String() + "\n" + legend(r.Report, screen)
}

func figuresTable(r usage.Report, screen command.Screen) string {
	lines := [][]string{{"GPU"}}
	for _, f := range usage.All {
		lines[0] = append(lines[0], f.Name)
	}
	lines[0] = append(lines[0], "energy")
	for _, g := range r.GPUs {
		mean, line := g.Mean(r.Begin), []string{strconv.Itoa(g.Index)}
		for _, f := range usage.All {
			line = append(line, r.Text(f, g, mean))
		}
		lines = append(lines, append(line, usage.Energy(g.EnergyJ)))
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, line := range lines {
		fmt.Fprintln(w, strings.Join(line, "\t")+"\t")
	}
	w.Flush()
	head, rest, _ := strings.Cut(b.String(), "\n")
	return screen.Faint(head) + "\n" + rest
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
