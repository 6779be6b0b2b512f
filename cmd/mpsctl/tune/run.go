// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"golang.org/x/sys/unix"
)

// question is what mps-tune is asked: which of these shares is the best for this command.
type question struct {
	line    []string // the command of the user
	env     []string
	rules   []policy.ShareRule
	site    policy.ShareRule // the share without a flag; one of rules
	rate    *regexp.Regexp   // its group is the rate; nil: the time of a whole run counts
	lasts   time.Duration    // of a run; 0: until the command ends
	repeats int
	within  time.Duration // of all runs
}

// sample is one run.
type sample struct {
	rule    policy.ShareRule
	rate    float64 // of the pattern, or runs per hour
	numbers int     // that the pattern found
	err     error   // why there is no rate
}

// measure runs the command with each share once in each round. Each round has an order of its own, by chance, so that a
// drift of the machine favours no share. The first run of all warms the machine up and does not count. If it fails,
// measure stops, because all runs would fail. A share that has failed is not run again. When the time is over, the
// samples that exist count. It prints a line before the first run and after each run.
func (q question) measure(ctx context.Context, out io.Writer) (samples []sample, err error) {
	runs := 1 + len(q.rules)*q.repeats
	fmt.Fprintf(out, "%d runs: %d shares, %d times each, and one to warm up; %v at most (--within)\n", runs, len(q.rules), q.repeats, q.within)
	timed, cancel := context.WithTimeout(ctx, q.within)
	defer cancel()
	order, failed := []int{0}, map[policy.ShareRule]bool{}
	for round := range q.repeats + 1 {
		for _, i := range order {
			if failed[q.rules[i]] {
				continue
			}
			s := q.run(timed, q.rules[i])
			warmsUp := round == 0
			switch {
			case ctx.Err() != nil:
				return nil, errors.New("cannot tune: interrupted")
			case timed.Err() != nil && warmsUp:
				return nil, fmt.Errorf("cannot tune: the first run did not end within %v: "+
					"give a shorter input, --rate with --seconds, or a longer --within", q.within)
			case timed.Err() != nil:
				fmt.Fprintf(out, "the %v of --within are over: what has been measured counts\n", q.within)
				return samples, nil
			case s.err != nil && warmsUp:
				return nil, fmt.Errorf("cannot tune: the first run failed (%s): %w", s.rule, s.err)
			}
			fmt.Fprintln(out, s.line(warmsUp))
			if failed[s.rule] = s.err != nil; !warmsUp {
				samples = append(samples, s)
			}
		}
		order = rand.Perm(len(q.rules))
	}
	return samples, nil
}

func (s sample) line(warmsUp bool) string {
	switch {
	case s.err != nil:
		return s.rule.String() + ": failed"
	case warmsUp && s.numbers > 1:
		return fmt.Sprintf("%s: %.5g, the mean of the last %d of %d numbers, to warm up: it does not count", s.rule, s.rate,
			s.numbers-s.numbers/2, s.numbers)
	case warmsUp:
		return fmt.Sprintf("%s: %.5g, to warm up: it does not count", s.rule, s.rate)
	}
	return fmt.Sprintf("%s: %.5g", s.rule, s.rate)
}

// run runs the command once.
func (q question) run(ctx context.Context, rule policy.ShareRule) sample {
	began := time.Now()
	p, err := q.start(rule)
	if err != nil {
		return sample{rule: rule, err: err}
	}
	var over <-chan time.Time // never, without --seconds
	if q.lasts > 0 {
		over = time.After(q.lasts)
	}
	asked := false
	select {
	case <-p.ended:
	case <-over:
		asked = true
	case <-ctx.Done():
	}
	took := time.Since(began)
	p.end()
	rate, err := p.heard.result()
	switch {
	case !asked && p.err != nil:
		return sample{rule: rule, err: p.failure()}
	case q.rate == nil:
		rate, err = time.Hour.Seconds()/took.Seconds(), nil
	}
	return sample{rule, rate, len(p.heard.rates), err}
}

// process is the command while it runs.
type process struct {
	cmd   *exec.Cmd
	heard *listener
	ended chan struct{}
	reap  sync.Mutex // held for the end of the group's leader, and for a signal to the group
	err   error      // of cmd.Wait
}

// start starts the command in its own process group, so that all of its processes can be ended.
func (q question) start(rule policy.ShareRule) (*process, error) {
	p := &process{cmd: exec.Command(q.line[0], q.line[1:]...), heard: &listener{rate: q.rate}, ended: make(chan struct{})}
	p.cmd.Env = append(q.env[:len(q.env):len(q.env)], "SLURM_MPS_SHARE="+rule.String())
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = time.Second // a descendant of the command may keep the pipes open
	stdout, stderr := p.heard.stream(&p.heard.out), p.heard.stream(&p.heard.errors)
	p.cmd.Stdout, p.cmd.Stderr = stdout, stderr
	finish := func() {
		stdout.Close()
		stderr.Close()
		p.heard.readers.Wait()
	}
	if err := p.cmd.Start(); err != nil {
		finish()
		return nil, fmt.Errorf("cannot run %s: %w", q.line[0], err)
	}
	go func() {
		// The first process has ended and keeps its number, so that no other group can get it.
		for unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM) // what it has left in its group
		p.reap.Lock()
		defer p.reap.Unlock()
		if p.err = p.cmd.Wait(); errors.Is(p.err, exec.ErrWaitDelay) {
			p.err = nil
		}
		finish()
		close(p.ended)
	}()
	return p, nil
}

// goneAfter is the time that a command has to end after SIGTERM. Then it gets SIGKILL. It is the default of Slurm's
// KillWait, so a program that can be cancelled in Slurm ends in this time.
const goneAfter = 30 * time.Second

// end ends the command, and waits for its end.
func (p *process) end() {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(goneAfter):
		p.signal(syscall.SIGKILL)
		<-p.ended
	}
}

// signal signals all processes of the command. After its end, the number of its group may belong to others.
func (p *process) signal(s syscall.Signal) {
	p.reap.Lock()
	defer p.reap.Unlock()
	select {
	case <-p.ended:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, s)
	}
}

// failure returns how a command ended, and its last output.
func (p *process) failure() error {
	last := cmp.Or(p.heard.errors, p.heard.out)
	if last == "" {
		return fmt.Errorf("%w, and it printed nothing", p.err)
	}
	return fmt.Errorf("%w: %s", p.err, strconv.QuoteToGraphic(last))
}

const (
	maxLine  = 64 << 10 // bytes of a line that are searched at once
	maxRates = 1 << 16  // numbers that are kept, because a program may print without end
)

// listener reads the output of a command. It keeps the rates and the last lines. Its fields may be read when the
// command has ended.
type listener struct {
	rate    *regexp.Regexp // nil: none is looked for
	readers sync.WaitGroup
	mutex   sync.Mutex
	rates   []float64 // in the order of the output
	out     string    // the last line of stdout
	errors  string    // the last line of stderr
}

// stream returns a writer for one stream of the command. The last line of the stream comes into last.
func (l *listener) stream(last *string) *io.PipeWriter {
	reader, writer := io.Pipe()
	l.readers.Go(func() {
		lines := bufio.NewScanner(reader)
		lines.Buffer(make([]byte, 0, 4096), maxLine)
		lines.Split(splitLine)
		for lines.Scan() {
			l.keep(bytes.TrimSpace(lines.Bytes()), last)
		}
	})
	return writer
}

// splitLine is a bufio.SplitFunc. A line ends with a newline or, as in a progress bar, with a carriage return. A line
// that is too long is split.
func splitLine(data []byte, atEOF bool) (advance int, token []byte, err error) {
	end := bytes.IndexAny(data, "\r\n") + 1
	if end == 0 && (atEOF || len(data) >= maxLine) {
		end = len(data)
	}
	if end == 0 { // an empty token that is not nil would come again and again
		return 0, nil, nil
	}
	return end, data[:end], nil
}

func (l *listener) keep(line []byte, last *string) {
	if len(line) == 0 {
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	*last = string(line[:min(len(line), 200)])
	if l.rate == nil {
		return
	}
	for _, match := range l.rate.FindAllSubmatch(line, -1) {
		value, err := strconv.ParseFloat(string(match[1]), 64)
		if err == nil && value > 0 && value < 1e300 && len(l.rates) < maxRates {
			l.rates = append(l.rates, value)
		}
	}
}

// result returns the mean of the second half of the rates. All ranks print at the same pace, so the mean over their
// numbers goes with their sum, whichever rank has printed which.
func (l *listener) result() (float64, error) {
	if len(l.rates) == 0 {
		return 0, fmt.Errorf("--rate found no number; the last line of stdout is %s: correct the pattern, or give a longer --seconds",
			strconv.QuoteToGraphic(l.out))
	}
	mean, _ := spread(l.rates[len(l.rates)/2:])
	return mean, nil
}
