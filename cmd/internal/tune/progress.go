// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// progress prints which run it is, and the time that is left. On a terminal it rewrites one line each second.
// Otherwise it prints a line after each run.
type progress struct {
	out      io.Writer
	terminal bool
	unit     string
	runs     int           // in all
	lasts    time.Duration // of a run, if it is known before; else 0
	within   time.Duration // of all runs
	now      func() time.Time

	mutex sync.Mutex
	run   int // the present one, from 1
	name  string
	began time.Time     // of all runs
	since time.Time     // of the present run; zero between two runs
	sum   time.Duration // of the runs that have ended
	ended int
	stop  chan struct{}
}

// rewrites reports whether a line can be rewritten on this stream.
func rewrites(out io.Writer, term string) bool {
	return term != "" && term != "dumb" && site.IsTerminal(out)
}

// newProgress begins to print. The caller ends it.
func newProgress(out io.Writer, terminal bool, q question) *progress {
	p := &progress{
		out: out, terminal: terminal, unit: q.unit(), runs: q.runs(), within: q.within,
		now: time.Now, stop: make(chan struct{}),
	}
	if q.ends() {
		p.lasts = q.lasts
	}
	p.began = p.now()
	if terminal {
		go p.tick()
	}
	return p
}

// tick rewrites the line each second.
func (p *progress) tick() {
	each := time.NewTicker(time.Second)
	defer each.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-each.C:
			p.mutex.Lock()
			p.rewrite()
			p.mutex.Unlock()
		}
	}
}

// clear empties the present line of a terminal.
const clear = "\r\x1b[K"

// rewrite writes the present run over the last line. The mutex is held.
func (p *progress) rewrite() {
	if p.terminal && !p.since.IsZero() {
		fmt.Fprintf(p.out, "%srun %d of %d, %s; %s", clear, p.run, p.runs, p.name, p.left())
	}
}

// line prints a line that stays.
func (p *progress) line(text string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.terminal {
		text = clear + text
	}
	fmt.Fprintln(p.out, text)
	p.rewrite()
}

// begin is the begin of a run.
func (p *progress) begin(c cell) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.run++
	p.name, p.since = c.String(), p.now()
	p.rewrite()
}

// skip leaves out a run.
func (p *progress) skip() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.runs--
}

// did is the end of a run.
func (p *progress) did(s sample) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	took := p.now().Sub(p.since)
	p.sum += took
	p.ended++
	p.since = time.Time{}
	if p.terminal {
		return
	}
	what := "failed"
	if s.err == nil {
		what = strings.TrimSpace(fmt.Sprintf("%.5g %s", s.rate, p.unit))
	}
	if p.run == 1 {
		what += " (to warm up: it does not count)"
	}
	fmt.Fprintf(p.out, "run %d of %d, %s: %s; %s\n", p.run, p.runs, p.name, what, p.left())
}

// left describes the time that is left: the mean of the runs so far for each run to come, and not more than --within.
// The mutex is held.
func (p *progress) left() string {
	mean := p.lasts
	if p.ended > 0 {
		mean = p.sum / time.Duration(p.ended)
	}
	bound := max(p.within-p.now().Sub(p.began), 0)
	if mean == 0 {
		return "at most " + rounded(bound) + " left"
	}
	left := mean * time.Duration(p.runs-p.run)
	if !p.since.IsZero() {
		left += max(mean-p.now().Sub(p.since), 0)
	}
	return "about " + rounded(min(left, bound)) + " left"
}

// rounded writes a time without more digits than an estimate has.
func rounded(d time.Duration) string {
	if d >= 10*time.Minute {
		return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
	}
	return d.Round(time.Second).String()
}

// end ends the printing. A line of a terminal is cleared.
func (p *progress) end() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	close(p.stop)
	p.since = time.Time{}
	if p.terminal {
		fmt.Fprint(p.out, clear)
	}
}
