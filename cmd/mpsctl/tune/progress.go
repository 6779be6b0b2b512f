// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// progress prints a line after each run: its result, and about how much time is left.
type progress struct {
	out   io.Writer
	runs  int           // in all
	ended int           // of them
	sum   time.Duration // of the runs that have ended
	until time.Time     // all runs end then
	unit  string        // of the rates
	// printed has the ranks of a launcher that have printed a rate, by the ranks of a run.
	printed map[int]int
}

func newProgress(out io.Writer, q question) *progress {
	return &progress{out: out, runs: q.runs(), until: time.Now().Add(q.within), unit: q.unit(), printed: map[int]int{}}
}

// did prints a run and returns it. The run has failed if fewer ranks than in an earlier one have printed a rate.
func (p *progress) did(s sample, took time.Duration) sample {
	if before := p.printed[s.ranks]; s.err == nil && s.printed < before {
		s.err = fmt.Errorf("only %s printed a rate, and %d did in an earlier run: give a longer --seconds",
			site.Count(s.printed, "rank"), before)
	}
	p.printed[s.ranks] = max(p.printed[s.ranks], s.printed)
	p.ended++
	p.sum += took
	result := "failed"
	if s.err == nil {
		result = strings.TrimSpace(fmt.Sprintf("%.5g %s", s.rate, p.unit))
	}
	if p.ended == 1 {
		result += " (to warm up: it does not count)"
	}
	left := p.sum / time.Duration(p.ended) * time.Duration(p.runs-p.ended)
	fmt.Fprintf(p.out, "run %d of %d, %s: %s; about %s left\n", p.ended, p.runs, s.cell, result,
		rounded(max(min(left, time.Until(p.until)), 0)))
	return s
}

// rounded writes a time without more digits than an estimate has.
func rounded(d time.Duration) string {
	if d >= 10*time.Minute {
		return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
	}
	return d.Round(time.Second).String()
}
