// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/words"
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
		r.Use, r.Why = r.Site, "the site's own share: one run of each share proves nothing, so no share has won: --repeats 5 measures again"
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
	return words.Shell(line...)
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
	unit := "those of --rate '" + r.Unit + "'"
	if r.Unit == "runs/h" {
		unit = "runs in an hour"
	}
	fmt.Fprintf(&b, "\nThe numbers are %s; n is the number of runs.\n", unit)
	if r.Use == "" {
		return b.String() + r.Why + "\n"
	}
	fmt.Fprintf(&b, "%s %s: %s\nuse: %s\n", screen.Green("best:"), r.Use, r.Why, r.Command)
	return b.String()
}

// errorRate is the greatest chance that a whole trial calls any share faster that is not. It is divided by the number of
// comparisons (Bonferroni).
const errorRate = 0.005

// minGain is the smallest gain that counts. A smaller one is not worth a flag.
const minGain = 0.01

// proof is the test of a trial.
//
// It is Student's t-test for pairs, one-sided. A pair is the two rates of one round. The test takes the logarithm of
// their quotient, so that a gain in percent counts. It assumes that the pairs are independent and that their noise is
// normal. A drift of the machine does no harm, because each round has an order of its own.
//
// The noise of a pair of shares is not that of all: on H200s, n-body had 2.4 % without a cap and 0.01 % with one. So
// each pair is judged by its own noise. But few rounds may look quiet by chance, above all if a rate has few digits.
// So the noise counts as not less than the middle one of all pairs.
type proof struct {
	comparisons int
	noise       float64 // the median of the standard deviations of all shares' gains over the site's
}

// proof returns the test of a trial, which compares each share with the site's.
func (r report) proof() proof {
	p, site := proof{comparisons: max(len(r.Rules)-1, 1)}, r.siteRow()
	var all []float64
	for _, w := range r.Rules {
		if w.Rule != r.Site && w.Median > 0 && site.Median > 0 {
			_, deviation := spread(w.gains(site))
			all = append(all, deviation)
		}
	}
	p.noise = median(all)
	return p
}

// faster reports whether a row is proved to be faster than another row.
func (p proof) faster(w, other row) bool {
	gains := w.gains(other)
	if len(gains) < 2 {
		return false
	}
	mean, deviation := spread(gains)
	if mean < math.Log1p(minGain) {
		return false
	}
	t := mean / max(deviation, p.noise) * math.Sqrt(float64(len(gains))) // +Inf without noise
	return tail(t, len(gains)-1) <= errorRate/float64(p.comparisons)
}

// spread returns the mean and the standard deviation. The latter is 0 for less than two values.
func spread(values []float64) (mean, deviation float64) {
	n := float64(len(values))
	for _, v := range values {
		mean += v / n
	}
	for _, v := range values {
		deviation += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(deviation / max(n-1, 1))
}

// gains returns the logarithms of the quotients of the rates, by round. A round without both rates is left out.
func (w row) gains(other row) (all []float64) {
	for i := range min(len(w.Rates), len(other.Rates)) {
		if w.Rates[i] > 0 && other.Rates[i] > 0 {
			all = append(all, math.Log(w.Rates[i]/other.Rates[i]))
		}
	}
	return all
}

// tail returns the chance that Student's t with this number of degrees of freedom is above t. The sums are exact for
// whole degrees (Abramowitz and Stegun, 26.7.3 and 26.7.4).
func tail(t float64, degrees int) float64 {
	angle := math.Atan(t / math.Sqrt(float64(degrees)))
	sin, cos := math.Sincos(angle)
	odd := degrees % 2
	sum, term := 0.0, 1.0
	if odd == 1 {
		term = cos
	}
	for k := odd; k <= degrees-2; k += 2 {
		if k >= 2 {
			term *= cos * cos * float64(k-1) / float64(k)
		}
		sum += term
	}
	inner := sin * sum
	if odd == 1 {
		inner = (angle + sin*sum) * 2 / math.Pi
	}
	return (1 - inner) / 2
}
