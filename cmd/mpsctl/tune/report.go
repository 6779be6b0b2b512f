// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/command"
)

type report struct {
	Unit    string `json:"unit"`   // of the rates: runs/h, or the pattern of the user
	Rules   []row  `json:"rules"`  // in the order of the question
	Site    string `json:"site"`   // the share without a flag
	Use     string `json:"use"`    // the share to use; "" if none could be run
	Proved  bool   `json:"proved"` // Use is proved to be faster than Site
	Why     string `json:"why"`
	Command string `json:"command"` // runs the user's command with Use
}

// row is the result of the runs with one share.
type row struct {
	Rule   string    `json:"rule"`
	Rates  []float64 `json:"rates"`  // in the order of the rounds
	Median float64   `json:"median"` // 0 if a run failed or none was made
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Failed string    `json:"failed,omitempty"`
}

func newReport(q question, samples []sample) report {
	r := report{Unit: "runs/h", Site: q.site.String()}
	if q.rate != nil {
		r.Unit = q.rate.String()
	}
	for _, rule := range q.rules {
		r.Rules = append(r.Rules, newRow(rule.String(), samples))
	}
	r.choose()
	if r.Use != "" {
		r.Command = q.command(r.Use, r.Site)
	}
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

func (r report) siteRow() row {
	return r.Rules[slices.IndexFunc(r.Rules, func(w row) bool { return w.Rule == r.Site })]
}

// choose finds the share to use: the fastest of those that are proved to be faster than the site's, or else the
// site's.
func (r *report) choose() {
	site, test := r.siteRow(), r.proof()
	var best, fastest row
	for _, w := range r.Rules {
		if w.Median > fastest.Median {
			fastest = w
		}
		if w.Rule != r.Site && w.Median > best.Median && test.faster(w, site) {
			best = w
		}
	}
	switch {
	case fastest.Median == 0:
		r.Why = "no share could be run: the reasons are above"
	case best.Median > 0:
		r.Use, r.Proved = best.Rule, true
		r.Why = fmt.Sprintf("it is proved to be faster than the site's own share, %s, by %.0f %%", r.Site, 100*(best.Median/site.Median-1))
	case site.Failed != "":
		r.Use, r.Why = fastest.Rule, "the site's own share failed, and this one was the fastest of the others"
	case site.Median == 0:
		r.Use, r.Why = fastest.Rule, "the site's own share was not run: give a longer --within"
	case len(site.Rates) == 1:
		r.Use, r.Why = r.Site, "the site's own share, because one run of each proves nothing: --repeats 5 measures again"
	default:
		r.Use, r.Why = r.Site, "the site's own share, because no other is proved to be faster"
	}
}

// command returns the user's command with a share. The site's own share needs no flag.
func (q question) command(share, site string) string {
	line := slices.Clone(q.line)
	switch i := q.wrapper(); {
	case share == site:
	case i >= 0:
		line = slices.Insert(line, i+1, "--share="+share)
	default: // TaskProlog places the ranks
		line = slices.Insert(line, 0, "env", "SLURM_MPS_SHARE="+share)
	}
	return quoted(line)
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

func (r report) text(screen command.Screen) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-12s %10s %10s %10s %3s\n", "share", "median", "min", "max", "n")
	for _, w := range r.Rules {
		name := fmt.Sprintf("%-12s", w.Rule)
		if w.Rule == r.Use {
			name = screen.Bold(name)
		}
		switch {
		case w.Failed != "":
			fmt.Fprintf(&b, "%s %s %s\n", name, screen.Red("failed:"), w.Failed)
		case w.Median == 0:
			fmt.Fprintf(&b, "%s not run: the time was up\n", name)
		default:
			fmt.Fprintf(&b, "%s %10.5g %10.5g %10.5g %3d\n", name, w.Median, w.Min, w.Max, len(w.Rates))
		}
	}
	fmt.Fprintf(&b, "\nThe numbers are %s; n is the number of runs.\n", r.unit())
	if r.Use == "" {
		return b.String() + r.Why + "\n"
	}
	fmt.Fprintf(&b, "%s %s: %s\nuse: %s\n", screen.Green("best:"), r.Use, r.Why, r.Command)
	return b.String()
}

// unit describes the unit of the rates, for a sentence.
func (r report) unit() string {
	if r.Unit == "runs/h" {
		return "runs in an hour"
	}
	return "those of --rate '" + r.Unit + "'"
}
