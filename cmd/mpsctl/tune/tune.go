// SPDX-License-Identifier: Apache-2.0

// Package tune is the program mps-tune. By trial, it finds how many ranks and which share make a program fastest.
//
// mps-tune runs inside a job as the job's user, under the same wrapper as any rank, for a bounded time. It leaves no
// process behind. It calls a share faster only if a test proves that (proof.go).
package tune

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/driver"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/tuned"
)

// report is the result of all runs.
type report struct {
	Unit    string   `json:"unit"`    // of the rates; a pattern of the user stands for its unit
	Sum     string   `json:"sum"`     // how the rates of several ranks were put together
	Program string   `json:"program"` // the command line
	GPU     string   `json:"gpu"`     // the product name
	GPUs    int      `json:"gpus"`    // the job's GPUs on this node
	Rules   []row    `json:"rules"`   // in the order of the question
	Site    string   `json:"site"`    // the rule that the job has if the user gives none
	Ranks   int      `json:"ranks"`   // to use; 0 if a launcher has its own number
	Use     string   `json:"use"`     // the rule to use; "" if none could be run
	Proved  bool     `json:"proved"`  // Use is proved to be faster than Site, with this number of ranks
	Why     string   `json:"why"`
	Command string   `json:"command"`         // runs the program with Ranks and Use
	Saved   []string `json:"saved,omitempty"` // the lines that were saved
	chosen  []choice // the row to use for each number of ranks
}

// row is the result of the runs of one cell.
type row struct {
	Ranks  int       `json:"ranks"`
	Rule   string    `json:"rule"`
	Rates  []float64 `json:"rates"`  // in the order of the runs
	Median float64   `json:"median"` // 0 if a run failed or none was made
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Failed string    `json:"failed,omitempty"`
	rule   policy.ShareRule
}

// readTicket reads the job's ticket. If there is no ticket, the error is the reason why nothing can be tuned. With
// SLURM_MPS_OWN, each run has a daemon of its own, and the ticket has the GPUs that a rank then finds.
func readTicket(call *command.Invocation) (lease.Ticket, error) {
	ticket, err := readJobTicket(call)
	if owned := call.Variable("SLURM_MPS_OWN"); err == nil || owned == "" || owned == "0" || ticket.RefusalReason != "" {
		return ticket, err
	}
	node := driver.Node{Root: call.Paths.Root}
	devices, err := node.GPUs()
	if list := call.Variable("CUDA_VISIBLE_DEVICES"); err == nil && list != "" {
		devices, err = driver.Visible(devices, list)
	}
	own := lease.Ticket{Grant: policy.DefaultGrant()}
	own.Grant.MaxClients = min(own.Grant.MaxClients, policy.ClientsOf(node.Version()))
	for _, device := range devices {
		own.Devices = append(own.Devices, lease.TicketDevice{Device: device, Position: -1})
	}
	return own, err
}

func readJobTicket(call *command.Invocation) (lease.Ticket, error) {
	job, err := strconv.ParseUint(call.Variable("SLURM_JOB_ID"), 10, 32)
	if err != nil {
		return lease.Ticket{}, errors.New("cannot tune outside a job: SLURM_JOB_ID is not set: call it in a batch script, or in the shell of salloc")
	}
	boot, err := site.BootID()
	if err != nil {
		return lease.Ticket{}, err
	}
	ticket, err := lease.OpenReadOnly(call.Paths.Run(), boot).ReadTicket(uint32(job))
	switch {
	case err != nil:
		return ticket, fmt.Errorf("cannot tune: %w", err)
	case ticket.RefusalReason != "":
		return ticket, fmt.Errorf("cannot tune: this job has no MPS: %s", ticket.RefusalReason)
	case len(ticket.Devices) == 0:
		return ticket, fmt.Errorf("cannot tune: the ticket of job %d names no device", job)
	}
	return ticket, nil
}

// runsPerHour is the unit without --rate.
const runsPerHour = "runs/h"

// newReport builds the report from the samples.
func newReport(q question, samples []sample, ticket lease.Ticket) report {
	r := report{
		Unit: q.unit(), Sum: q.sum(samples), Program: quoted(q.program),
		GPU: ticket.Devices[0].Name, GPUs: len(ticket.Devices), Site: ticket.Grant.Rule().String(),
	}
	if r.Unit == "" {
		r.Unit = q.rate.text
	}
	for _, c := range q.cells() {
		r.Rules = append(r.Rules, newRow(c, samples))
	}
	test := q.proof(r)
	for _, ranks := range q.counts {
		r.chosen = append(r.chosen, r.choose(ranks, test))
	}
	best := r.best(test)
	r.Ranks, r.Use, r.Proved, r.Why = best.Ranks, best.Rule, best.proved, best.why
	if r.Use != "" {
		r.Command = q.command(best.row, r.Site)
	}
	return r
}

// unit returns the unit of the rates. It is "" for a pattern of the user.
func (q question) unit() string {
	if q.rate == nil {
		return runsPerHour
	}
	return q.rate.unit
}

// sum describes how the rates of several ranks were put together.
func (q question) sum(samples []sample) string {
	labelled := slices.ContainsFunc(samples, func(s sample) bool { return s.printed > 0 })
	switch {
	case len(q.launcher) == 0:
		return "the rates of all copies are added up"
	case q.rate == nil:
		return "a run is a launch"
	case q.oneRate:
		return "the last rate of a launch counts (--one-rate)"
	case labelled:
		return "the rates of all ranks that print one are added up"
	}
	return "the last rate of a launch counts, because this launcher does not label the ranks"
}

func newRow(c cell, samples []sample) row {
	w := row{Ranks: c.ranks, Rule: c.rule.String(), rule: c.rule}
	for _, s := range samples {
		switch {
		case s.cell != c:
		case s.err != nil:
			w.Failed = s.err.Error()
		default:
			w.Rates = append(w.Rates, s.rate)
		}
	}
	if w.Failed == "" && len(w.Rates) > 0 {
		w.Median, w.Min, w.Max = median(w.Rates), slices.Min(w.Rates), slices.Max(w.Rates)
	}
	return w
}

func median(rates []float64) float64 {
	if len(rates) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(rates))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// choice is the row to use for a number of ranks, or for all.
type choice struct {
	row
	proved bool // faster than the row with the site's share
	saves  bool // another share than the site's has to be remembered
	why    string
}

// best returns the choice with the highest rate, and tells which numbers of ranks are proved to be slower. It is zero if
// no row has a rate.
func (r report) best(test proof) choice {
	best := choice{why: "no share could be run: the reasons are above"}
	for _, c := range r.chosen {
		if c.Median > best.Median {
			best = c
		}
	}
	var slower, alike []string
	for _, c := range r.chosen {
		switch {
		case c.Ranks == best.Ranks || c.Median == 0:
		case test.faster(best.row, c.row):
			slower = append(slower, strconv.Itoa(c.Ranks))
		default:
			alike = append(alike, strconv.Itoa(c.Ranks))
		}
	}
	if len(slower) > 0 {
		best.why += fmt.Sprintf("; %d ranks are faster than %s", best.Ranks, strings.Join(slower, ", "))
	}
	if len(alike) > 0 {
		best.why += fmt.Sprintf("; not proved to be faster than with %s ranks", strings.Join(alike, ", "))
	}
	return best
}

// choose returns the row to use for a number of ranks: the fastest of those that are proved to be faster than the
// site's share, or else the row of the site's share.
func (r report) choose(ranks int, test proof) choice {
	var site, best, fastest row
	for _, w := range r.Rules {
		if w.Ranks == ranks && w.Rule == r.Site {
			site = w
		}
	}
	for _, w := range r.Rules {
		if w.Ranks != ranks {
			continue
		}
		if w.Median > fastest.Median {
			fastest = w
		}
		if w.Rule != r.Site && w.Median > best.Median && test.faster(w, site) {
			best = w
		}
	}
	switch {
	case best.Median > 0:
		why := "it is proved to be faster than the site's own share, %s, by %.0f %%"
		return choice{best, true, true, fmt.Sprintf(why, r.Site, 100*(best.Median/site.Median-1))}
	case site.Failed != "" && fastest.Median > 0:
		return choice{fastest, false, true, "the site's own share failed, and this one was the fastest of the others"}
	case site.Median == 0:
		return choice{row: fastest, why: "the site's own share was not run: give a longer --within"}
	case len(site.Rates) == 1:
		return choice{row: site, why: "the site's own share, because one run of each proves nothing: --repeats 5 measures again"}
	}
	return choice{row: site, why: "the site's own share, because no other is proved to be faster"}
}

// command returns the command line that runs the program as in a row. The site's own share needs no flag.
func (q question) command(w row, site string) string {
	line := launch(q.launcher, w.Ranks)
	if len(line) == 0 {
		line = []string{"srun", "-n" + strconv.Itoa(w.Ranks*q.nodes)}
	}
	line = append(line, "mpirun-wrap")
	if w.Rule != site {
		line = append(line, "--share="+w.Rule)
	}
	return quoted(append(line, q.program...))
}

// quoted returns a command line with quotes for a shell.
func quoted(words []string) string {
	var line []string
	for _, word := range words {
		if word == "" || strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-") != "" {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		line = append(line, word)
	}
	return strings.Join(line, " ")
}

// entries returns the lines to save: for each number of ranks, the share that is proved to be faster than the site's.
func (q question) entries(r report) (all []tuned.Entry) {
	for _, c := range r.chosen {
		if c.saves {
			all = append(all, tuned.Entry{Key: tuned.NewKey(q.name, c.Ranks, r.GPUs*q.onNodes(), r.GPU), Rule: c.rule})
		}
	}
	return all
}

const barCells = 12

// text returns the report as a table.
func (r report) text(screen command.Screen) string {
	best := 0.0
	for _, w := range r.Rules {
		best = max(best, w.Median)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%5s %-12s %10s %10s %10s %3s %8s\n", "ranks", "share", "median", "min", "max", "n", "of best")
	for _, w := range r.Rules {
		name := fmt.Sprintf("%5s %-12s", w.ranks(), w.Rule)
		switch {
		case w.Failed != "":
			fmt.Fprintf(&b, "%s %s %s\n", name, screen.Red("failed:"), w.Failed)
			continue
		case w.Median == 0:
			fmt.Fprintf(&b, "%s %s\n", name, "not run: the time was up")
			continue
		case w.Rule == r.Use && w.Ranks == r.Ranks:
			name = screen.Bold(name)
		}
		part := w.Median / best
		fmt.Fprintf(&b, "%s %10.5g %10.5g %10.5g %3d %6.1f %%  %s\n", name, w.Median, w.Min, w.Max, len(w.Rates), 100*part,
			command.Bar(int(part*1000), 1000, barCells))
	}
	fmt.Fprintf(&b, "\nIn %s; %s; n is the number of runs.\n", r.unit(), r.Sum)
	if r.Use == "" {
		b.WriteString(r.Why + "\n")
		return b.String()
	}
	fmt.Fprintf(&b, "%s %s: %s\nuse: %s\n", screen.Green("best:"), name(r.Ranks, r.Use), r.Why, r.Command)
	for _, line := range r.Saved {
		fmt.Fprintf(&b, "saved: %s\n", line)
	}
	return b.String()
}

// ranks returns the number of ranks of a row, for a table.
func (w row) ranks() string {
	if w.Ranks == unknown {
		return "-"
	}
	return strconv.Itoa(w.Ranks)
}

// unit describes the unit of the rates, for a sentence.
func (r report) unit() string {
	if r.Unit == runsPerHour {
		return "runs an hour"
	}
	if slices.ContainsFunc(named, func(n rate) bool { return n.unit == r.Unit }) {
		return r.Unit
	}
	return "numbers of --rate '" + r.Unit + "'"
}
