// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
)

// question is what is asked: which of the rules, for which program.
type question struct {
	ranks    int      // copies of the program, or 0 with a launcher
	launcher []string // starts the ranks itself
	rules    []policy.ShareRule
	rate     *regexp.Regexp // nil: the time of a whole run counts
	lasts    time.Duration  // of a run, with a rate
	repeats  int
	limit    time.Duration // of any run
	program  []string
	wrapper  []string // the command line of mpirun-wrap
	env      []string
}

// sample is one run under one rule.
type sample struct {
	rule policy.ShareRule
	rate float64 // of all copies; runs per hour without a pattern
	err  error   // why there is none
}

// measure runs each rule in turn, and repeats that as often as the question says, another rule first each time: what
// drifts hits all alike. If the first two rules fail, the reason is not the rule.
func (q question) measure(ctx context.Context, tell func(string)) ([]sample, error) {
	var samples []sample
	for turn := range q.repeats {
		for i := range q.rules {
			rule := q.rules[(i+turn)%len(q.rules)]
			s := q.run(ctx, rule)
			if ctx.Err() != nil {
				return nil, errors.New("cannot tune: interrupted")
			}
			samples = append(samples, s)
			said := fmt.Sprintf("%.4g", s.rate)
			if s.err != nil {
				said = s.err.Error()
			}
			tell(fmt.Sprintf("run %d of %d, %s: %s", len(samples), q.repeats*len(q.rules), rule, said))
			if len(samples) == 2 && samples[0].err != nil && samples[1].err != nil {
				return nil, errors.New("cannot tune: the runs of the first two rules failed: run the program by hand, and compare --rate with what it prints")
			}
		}
	}
	return samples, nil
}

// run runs the program once under a rule.
func (q question) run(ctx context.Context, rule policy.ShareRule) sample {
	ctx, cancel := context.WithTimeout(ctx, q.limit)
	defer cancel()
	began := time.Now()
	copies, err := q.start(rule)
	if err == nil && q.rate != nil {
		err = q.mayRun(ctx, copies)
	}
	if failed := q.end(ctx, copies, err != nil || q.rate != nil); err == nil {
		err = failed
	}
	if err != nil {
		return sample{rule: rule, err: err}
	}
	if q.rate == nil {
		return sample{rule: rule, rate: time.Hour.Seconds() / time.Since(began).Seconds()}
	}
	return q.rated(rule, copies)
}

// start starts the copies of a run, or the one launcher.
func (q question) start(rule policy.ShareRule) (copies []*ranks, err error) {
	if len(q.launcher) > 0 {
		one, err := q.begin(slices.Concat(q.launcher, q.timed(), q.wrapper, []string{"--"}, q.program), rule)
		if err != nil {
			return nil, err
		}
		return []*ranks{one}, nil
	}
	for rank := range q.ranks {
		flags := []string{"--local-rank", strconv.Itoa(rank), "--local-size", strconv.Itoa(q.ranks), "--"}
		one, err := q.begin(slices.Concat(q.wrapper, flags, q.program), rule)
		if err != nil {
			return copies, err
		}
		copies = append(copies, one)
	}
	return copies, nil
}

// timed ends each rank of a launcher after the time of a run, by a SIGTERM to the wrapper alone. What a launcher does on a
// signal is another thing: srun kills wrappers and programs at once, in mid-kernel.
func (q question) timed() []string {
	if q.rate == nil {
		return nil
	}
	return []string{"timeout", "--foreground", "--signal=TERM", fmt.Sprintf("%.3f", q.lasts.Seconds())}
}

// ranks is a copy of the program below the wrapper, or a launcher with all of them.
type ranks struct {
	cmd   *exec.Cmd
	heard *listener
	ended chan struct{}
	err   error // of the end
}

// begin starts a command line in a process group of its own, so that nothing of it is left.
func (q question) begin(line []string, rule policy.ShareRule) (*ranks, error) {
	r := &ranks{cmd: exec.Command(line[0], line[1:]...), heard: &listener{pattern: q.rate}, ended: make(chan struct{})}
	r.cmd.Env = append(q.env[:len(q.env):len(q.env)], "SLURM_MPS_SHARE="+rule.String())
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	r.cmd.Stdout, r.cmd.Stderr = in, in
	err = r.cmd.Start()
	in.Close()
	if err != nil {
		out.Close()
		return nil, fmt.Errorf("cannot run %s: %w", line[0], err)
	}
	var heard sync.WaitGroup
	heard.Go(func() { r.heard.listen(out) })
	go func() {
		r.err = r.cmd.Wait()
		_ = out.SetReadDeadline(time.Now().Add(time.Second)) // a descendant of the program may keep it open
		heard.Wait()
		out.Close()
		close(r.ended)
	}()
	return r, nil
}

// mayRun leaves the copies alone for the time of a run; one that ends sooner has said all that it will.
func (q question) mayRun(ctx context.Context, copies []*ranks) error {
	over := time.After(q.lasts)
	if len(q.launcher) > 0 { // its ranks end by themselves
		over = time.After(q.limit)
	}
	for _, r := range copies {
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return nil
		case <-r.ended:
			if r.err != nil && len(q.launcher) == 0 {
				return r.failure()
			}
		}
	}
	return nil
}

// goneAfter is how long ranks have from SIGTERM on: the wrapper gives a program 20 s, and then up to 10 s to be drained.
const goneAfter = 35 * time.Second

// end waits for the end of all copies, which it asks for where they are not to end by themselves.
func (q question) end(ctx context.Context, copies []*ranks, ask bool) (failed error) {
	if !ask {
		for _, r := range copies {
			select {
			case <-r.ended:
				if r.err != nil && failed == nil {
					failed = r.failure()
				}
			case <-ctx.Done():
				failed = fmt.Errorf("it did not end within %v: give a shorter input, a --rate, or a longer --limit", q.limit)
			}
		}
	}
	for _, r := range copies {
		r.signal(syscall.SIGTERM)
	}
	tooLate := time.After(goneAfter)
	for _, r := range copies {
		select {
		case <-r.ended:
		case <-tooLate:
			r.signal(syscall.SIGKILL)
			<-r.ended
		}
	}
	return failed
}

// signal signals all processes of the copy. Its leader is not waited for before ended, so the group is its own until then.
func (r *ranks) signal(s syscall.Signal) {
	select {
	case <-r.ended:
	default:
		_ = syscall.Kill(-r.cmd.Process.Pid, s)
	}
}

// failure says how a copy ended, and its last words.
func (r *ranks) failure() error {
	if r.heard.last() == `""` {
		return fmt.Errorf("%w, and it printed nothing", r.err)
	}
	return fmt.Errorf("%w: %s", r.err, r.heard.last())
}

// rated adds the copies' rates up.
func (q question) rated(rule policy.ShareRule, copies []*ranks) sample {
	s := sample{rule: rule}
	for _, r := range copies {
		rate, ok := r.heard.rate()
		if !ok {
			return sample{rule: rule, err: fmt.Errorf("the pattern of --rate found no number within %v; the last words are %s", q.lasts, r.heard.last())}
		}
		s.rate += rate
	}
	return s
}

// maxLine bounds a line that is looked at.
const maxLine = 64 << 10

// maxLines are kept of what a copy prints: a launcher says why it failed before it says that it did.
const maxLines = 16

// listener hears what a copy prints, and keeps the last rate and the last lines.
type listener struct {
	pattern *regexp.Regexp
	mutex   sync.Mutex
	lines   []string // the last few
	found   float64
	any     bool
}

func (l *listener) listen(from io.Reader) {
	lines := bufio.NewReaderSize(from, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		l.hear(bytes.TrimSpace(line))
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (l *listener) hear(line []byte) {
	if len(line) == 0 {
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.lines = append(l.lines, string(line[:min(len(line), 200)]))
	l.lines = l.lines[max(0, len(l.lines)-maxLines):]
	if l.pattern == nil {
		return
	}
	for _, match := range l.pattern.FindAllSubmatch(line, -1) {
		if rate, err := strconv.ParseFloat(string(match[1]), 64); err == nil && rate >= 0 && rate < 1e300 {
			l.found, l.any = rate, true
		}
	}
}

func (l *listener) rate() (float64, bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.found, l.any
}

func (l *listener) last() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return strconv.QuoteToGraphic(strings.Join(l.lines, "\n"))
}

// wrapper is the command line of mpirun-wrap: beside this program, else where it is installed.
func wrapper(root string) ([]string, error) {
	candidates := []string{"/usr/bin/mpirun-wrap"}
	if self, err := os.Executable(); err == nil {
		candidates = append([]string{filepath.Join(filepath.Dir(self), "mpirun-wrap")}, candidates...)
	}
	for _, path := range candidates {
		if _, err := os.Stat(path); err == nil {
			if root != "" {
				return []string{path, "--root", root}, nil
			}
			return []string{path}, nil
		}
	}
	return nil, fmt.Errorf("cannot find mpirun-wrap: it is none of %s", strings.Join(candidates, ", "))
}
