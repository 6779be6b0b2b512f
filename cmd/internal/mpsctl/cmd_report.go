// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl report: what one job used of its GPUs on this node, while it runs and afterwards.

package mpsctl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/usage/page"
	"github.com/spf13/cobra"
)

const reportHelp = `report prints what a job used of its GPUs on this node: how much of the SMs and of the memory's bandwidth was busy,
how much memory was in use, which clients ended beside others, and fatal GPU errors. If the figures justify one, a
sentence of advice about the number of ranks follows.

JOB is the number of a job. Without it, it is the job of $SLURM_JOB_ID: mpsctl report may be the last line of a batch
script. A report is there from the first second of a job until 30 days after its end, if the job had a client of MPS.
If a node has more than 1,000 reports, the oldest of the user with the most are removed. It is sampled every 10 s, so
the last seconds of a running job may be missing. The job's user and root can read it, and no other member of a group.
If the file system has no ACLs, only root can.

"SMs active" is the part of the SMs that had work, averaged over the job's time. "kernel" is the part of the time in
which a kernel was on the GPU. GPUs before Hopper have the second value only, and MIG instances have neither. A value
that is not known is printed as -. The client with which a fatal error began is the one that the server's log names.

It exits with 0 if it could print, with 1 if there is no report that it can read, and with 2 for a wrong argument.`

// reportCommand is mpsctl report.
func reportCommand(call *Invocation) *cobra.Command {
	var html string
	c := &cobra.Command{
		Use: "report [JOB]", Short: "print what a job used of its GPUs", Long: reportHelp,
		Example:               "  mpsctl report\n  mpsctl report 4711\n  mpsctl report 4711 --json | jq '.gpus[].samples'\n  mpsctl report 4711 --html report.html",
		DisableFlagsInUseLine: true,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("cannot take %q: %s takes one job: see %s --help", args[1], c.CommandPath(), c.CommandPath())
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			job, err := reportedJob(args, call.Variable("SLURM_JOB_ID"))
			if err != nil {
				return err
			}
			r, err := findReport(call.Paths, job)
			if err != nil {
				return cli.RuntimeError{Err: err}
			}
			if html != "" {
				return writePage(html, r)
			}
			if call.JSON {
				return WriteError("report", cli.WriteJSON(call.Out, advisedReport{r, r.Advice()}))
			}
			_, err = io.WriteString(call.Out, reportText(r, call.Screen(), time.Now()))
			return WriteError("report", err)
		},
	}
	c.Flags().StringVar(&html, "html", "", "write a page with a lane for each client into this `FILE`")
	return c
}

// writePage writes the page of a report into a file. The file is whole or absent.
func writePage(path string, r usage.Report) error {
	var html bytes.Buffer
	if err := page.Write(&html, r); err != nil {
		return cli.RuntimeError{Err: fmt.Errorf("cannot draw report of job %d: %w", r.Job, err)}
	}
	if err := writeFile(path, html.Bytes()); err != nil {
		return cli.RuntimeError{Err: err}
	}
	return nil
}

// advisedReport is the JSON of the command.
type advisedReport struct {
	usage.Report
	Advice string `json:"advice"` // "" if the figures justify none
}

// reportedJob returns the job of the argument, or else the job of the environment.
func reportedJob(args []string, own string) (uint32, error) {
	text := own
	if len(args) == 1 {
		text = args[0]
	}
	if text == "" {
		return 0, errors.New("cannot report: no job is given, and SLURM_JOB_ID is not set: mpsctl report JOB")
	}
	job, err := strconv.ParseUint(text, 10, 32)
	if err != nil || job == 0 {
		return 0, fmt.Errorf("cannot report job %.40q: it is not a job's number: squeue -O JobID prints it, of a job array too", text)
	}
	return uint32(job), nil
}

// findReport reads the report of a running job, or else of an ended job.
func findReport(paths site.Paths, job uint32) (usage.Report, error) {
	folder := lease.OpenReadOnly(paths.Run(), "").JobDir(job)
	r, err := usage.Read(filepath.Join(folder, usage.Running))
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
	lost := filepath.Join(paths.LostReports(), strconv.FormatUint(uint64(job), 10))
	if why, err := site.ReadRootOwnedInContainer(lost); err == nil {
		return r, fmt.Errorf("cannot report job %d: its report was lost at its end: %s", job, strings.TrimSpace(string(why)))
	}
	return r, fmt.Errorf("cannot report job %d: this node has no report of it: "+
		"see whether it ran here with a client of MPS, for a second at least and in the last 30 days", job)
}

// reportText returns a report as text for people.
func reportText(r usage.Report, screen Screen, now time.Time) string {
	var b strings.Builder
	ended, until := "runs", now
	if !r.End.IsZero() {
		ended, until = "ended "+r.End.Local().Format("2006-01-02 15:04:05"), r.End
	}
	b.WriteString(screen.Wrap("", fmt.Sprintf("job %d  %s  rule %q (%s)  on %s  %s, %s", r.Job, r.User, r.Rule, r.Share, r.Node, ended, age(until.Sub(r.Begin)))))
	fmt.Fprintf(&b, "%s in all, at most %d at the same time\n\n", site.Count(r.ClientsSeen, "client"), r.ClientsPeak)
	fmt.Fprintf(&b, "%s\n", screen.Faint("GPU   SMs active  kernel  memory bandwidth  memory in use"))
	for _, g := range r.GPUs {
		s := g.Mean(r.Begin)
		fmt.Fprintf(&b, "%-4d  %10s  %6s  %16s  %d of %d GiB\n", g.Index, share(s.SMActive), share(s.SMUtil), share(s.DRAM), (s.UsedMiB+512)>>10, g.MemoryMiB>>10)
	}
	for n, line := range incidents(r) {
		if n == 0 {
			b.WriteString("\n")
		}
		b.WriteString(screen.Wrap("", line))
	}
	if advice := r.Advice(); advice != "" {
		b.WriteString("\n" + screen.Wrap("", advice))
	}
	return b.String()
}

func share(percent float64) string {
	if percent < 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", percent)
}

// maxIncidents is the number of incidents that are printed one by one. The others are only counted.
const maxIncidents = 5

// incidents returns a sentence for each fatal error, and for each client that ended beside others.
func incidents(r usage.Report) (lines []string) {
	more := 0
	add := func(line string) {
		if len(lines) < maxIncidents {
			lines = append(lines, line)
			return
		}
		more++
	}
	for _, f := range r.Faults {
		add(fmt.Sprintf("%s  GPU %d had a fatal error, which ends all of its clients. It began with %s.",
			f.At.Local().Format("15:04:05"), r.GPUs[f.GPU].Index, who(r, f.PID)))
	}
	for _, c := range r.Clients {
		if c.Ending == usage.InFlight && c.Unharmed > 0 {
			add(fmt.Sprintf("%s  %s ended while GPU %d had work. Its files were held, and %s lived on.",
				c.End.Local().Format("15:04:05"), who(r, c.PID), r.GPUs[c.GPU].Index, site.Count(c.Unharmed, "neighbour")))
		}
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("%s more: see --json.", site.Count(more, "event")))
	}
	if text := r.PauseText(); text != "" {
		lines = append(lines, text)
	}
	return lines
}

// who names a client by its rank, or by its pid if the rank is not known.
func who(r usage.Report, pid int) string {
	if pid == 0 {
		return "a client that the server did not name"
	}
	for _, c := range r.Clients {
		if c.PID == pid && c.Rank >= 0 {
			return fmt.Sprintf("rank %d (pid %d)", c.Rank, pid)
		}
	}
	return fmt.Sprintf("pid %d", pid)
}
