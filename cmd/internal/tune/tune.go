// SPDX-License-Identifier: Apache-2.0

// Package tune is the program mps-tune: which rule of shares is the fastest for a program, by trying.
//
// The promise: it runs inside a job as the job's user, below the same wrapper as any rank, for a bounded time; it leaves no
// process behind; and it names no winner where the runs do not show one.
package tune

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/cmd/internal/mpsctl"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// report is the answer.
type report struct {
	Unit  string `json:"unit"`  // of the rates
	Ranks int    `json:"ranks"` // 0 where a launcher knows
	Rules []row  `json:"rules"` // in the order of the question
	Site  string `json:"site"`  // the rule that the job has without a word
	Use   string `json:"use"`   // the rule to use; "" where none could be run
	Why   string `json:"why"`
}

// row is what the runs of one rule came to.
type row struct {
	Rule   string    `json:"rule"`
	Rates  []float64 `json:"rates"`  // in the order of the runs
	Median float64   `json:"median"` // 0 where no run went well
	Failed string    `json:"failed,omitempty"`
}

// siteRule is the rule that the job's ticket grants. That there is none is the reason why nothing can be tuned.
func siteRule(call *mpsctl.Invocation) (string, error) {
	text := ""
	for _, entry := range call.Env {
		if value, ok := strings.CutPrefix(entry, "SLURM_JOB_ID="); ok {
			text = value
		}
	}
	job, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return "", errors.New("cannot tune outside a job: SLURM_JOB_ID is not set: call it in a batch script, or in the shell of salloc")
	}
	boot, err := site.BootID()
	if err != nil {
		return "", err
	}
	ticket, err := lease.OpenReadOnly(call.Paths.Run(), boot).ReadTicket(uint32(job))
	if err != nil {
		return "", fmt.Errorf("cannot tune: %w", err)
	}
	if ticket.RefusalReason != "" {
		return "", fmt.Errorf("cannot tune: this job has no MPS: %s", ticket.RefusalReason)
	}
	return ticket.Grant.Rule().String(), nil
}

// runsPerHour is the unit without --rate.
const runsPerHour = "runs/h"

// newReport judges the samples.
func newReport(q question, samples []sample, site string) report {
	r := report{Unit: runsPerHour, Ranks: q.ranks, Site: site}
	if q.rate != nil {
		r.Unit = q.rate.String()
	}
	for _, rule := range q.rules {
		r.Rules = append(r.Rules, newRow(rule.String(), samples))
	}
	r.choose()
	return r
}

func newRow(rule string, samples []sample) row {
	w := row{Rule: rule}
	for _, s := range samples {
		switch {
		case s.rule.String() != rule:
		case s.err != nil:
			w.Failed = s.err.Error()
		default:
			w.Rates = append(w.Rates, s.rate)
		}
	}
	if w.Failed == "" {
		w.Median = median(w.Rates)
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

// near is how far below the best a rule may be and still be called as good: what is nearer is not worth a flag.
const near = 0.97

// choose names the rule to use: the site's where none is proved to be faster, else the fastest.
func (r *report) choose() {
	best := row{}
	for _, w := range r.Rules {
		if w.Median > best.Median {
			best = w
		}
	}
	if best.Median == 0 {
		r.Why = "no rule could be run: the reasons are above"
		return
	}
	var alike []string
	for _, w := range r.Rules {
		if w.Median > 0 && !best.beats(w) {
			alike = append(alike, w.Rule)
		}
	}
	switch {
	case len(alike) == 1:
		r.Use, r.Why = best.Rule, "it is faster than every other rule"
	case slices.Contains(alike, r.Site):
		r.Use, r.Why = r.Site, "the site's own rule; no difference was seen among "+strings.Join(alike, ", ")
	default:
		r.Use, r.Why = best.Rule, "no difference was seen among "+strings.Join(alike, ", ")
	}
}

// beats reports whether a row is faster than another: in all of its runs, or by more than what near allows.
func (w row) beats(other row) bool {
	return other.Median < near*w.Median || slices.Min(w.Rates) > slices.Max(other.Rates) && len(w.Rates) > 1
}

const barCells = 24

// text is the table.
func (r report) text(screen mpsctl.Screen) string {
	best := 0.0
	for _, w := range r.Rules {
		best = max(best, w.Median)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-12s %12s %10s %9s\n", "rule", "median", "spread", "of best")
	for _, w := range r.Rules {
		if w.Median == 0 {
			fmt.Fprintf(&b, "%-12s %s %s\n", w.Rule, screen.Red("failed:"), w.Failed)
			continue
		}
		name := fmt.Sprintf("%-12s", w.Rule)
		if w.Rule == r.Use {
			name = screen.Bold(name)
		}
		part := w.Median / best
		fmt.Fprintf(&b, "%s %12.5g %8.1f %% %7.1f %%  %s\n", name, w.Median, 100*w.spread(), 100*part, mpsctl.Bar(int(part*1000), 1000, barCells))
	}
	unit := r.Unit
	if unit != runsPerHour {
		unit = "what --rate '" + unit + "' finds"
	}
	fmt.Fprintf(&b, "\nThe median of each rule's runs, in %s; the spread is from the least to the most.\n", unit)
	if r.Use == "" {
		b.WriteString(r.Why + "\n")
		return b.String()
	}
	use := "SLURM_MPS_SHARE=" + r.Use
	if r.Use == r.Site {
		use = "no flag: it is what the job has"
	}
	fmt.Fprintf(&b, "%s %s (%s)\nuse: %s\n", screen.Green("best:"), r.Use, r.Why, use)
	return b.String()
}

// spread is how far the runs lie apart, of their median.
func (w row) spread() float64 {
	return (slices.Max(w.Rates) - slices.Min(w.Rates)) / w.Median
}
