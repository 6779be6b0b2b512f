// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// question is the subject of mps-tune: which numbers of ranks, under which rules, for which program.
type question struct {
	counts   []int    // of ranks, each once, ascending; unknown if the launcher has its own number
	launcher []string // starts the ranks itself; their number replaces ranksMark
	rules    []policy.ShareRule
	rate     *rate         // if nil, the time of a whole run counts
	oneRate  bool          // the ranks of a launch print the same rate
	lasts    time.Duration // of a run, with a rate that is not printed at the end
	repeats  int
	limit    time.Duration // of any run
	within   time.Duration // of all runs
	nodes    int           // of the job
	program  []string
	save     bool
	name     string   // the shares are saved under this name
	wrapper  []string // the command line of mpirun-wrap
	env      []string
}

// ranksMark is the place for the number of ranks in a launcher's command line.
const ranksMark = "{ranks}"

// unknown is the number of ranks of a launcher without ranksMark.
const unknown = 0

// ends reports whether a run is ended after its time.
func (q question) ends() bool { return q.rate != nil && !q.rate.atEnd }

// fixed reports whether the launcher has a number of ranks of its own.
func (q question) fixed() bool {
	return len(q.launcher) > 0 && !strings.Contains(strings.Join(q.launcher, " "), ranksMark)
}

// onNodes returns how many nodes the ranks of a run use.
func (q question) onNodes() int {
	if len(q.launcher) > 0 {
		return q.nodes
	}
	return 1
}

// cell is one thing to measure: a number of ranks under a rule.
type cell struct {
	ranks int
	rule  policy.ShareRule
}

func (c cell) String() string { return name(c.ranks, c.rule.String()) }

func name(ranks int, rule string) string {
	if ranks == unknown {
		return rule
	}
	return site.Count(ranks, "rank") + ", " + rule
}

// cells returns all that is tried. The smallest number of ranks comes first, because it fails for the fewest reasons.
func (q question) cells() (all []cell) {
	for _, ranks := range q.counts {
		for _, rule := range q.rules {
			all = append(all, cell{ranks, rule})
		}
	}
	return all
}

// runs returns how many runs there are. The first one warms up.
func (q question) runs() int { return 1 + len(q.cells())*q.repeats }

// plan describes how many runs there are and how long they take.
func (q question) plan() string {
	runs, length, total := q.runs(), "each until the program ends", ""
	if q.ends() {
		length, total = fmt.Sprintf("%v each", q.lasts), fmt.Sprintf("about %v, ", time.Duration(runs)*q.lasts)
	}
	ranks := ""
	if q.counts[0] != unknown {
		ranks = strings.Trim(strings.ReplaceAll(fmt.Sprint(q.counts), " ", ", "), "[]") + " ranks × "
	}
	return fmt.Sprintf("%s: %s%s × %s and one to warm up, %s: %sat most %v (--within)", site.Count(runs, "run"), ranks,
		site.Count(len(q.rules), "share"), site.Count(q.repeats, "time"), length, total, q.within)
}

// sample is one run.
type sample struct {
	cell
	rate    float64 // of all copies; runs per hour without a pattern
	printed int     // ranks of a launcher that have printed a rate; 0 if they are not known
	err     error   // why there is no rate
}

// measure runs each cell once in each round. Each round has an order of its own, by chance, so that a drift of the
// machine favours no cell. The first run of all warms the machine up and does not count. If it fails, measure stops,
// because all runs would fail. A cell that has failed is not run again. When the time is over, the samples that exist
// count. It prints the plan and each run.
func (q question) measure(ctx context.Context, out io.Writer) (samples []sample, err error) {
	fmt.Fprintln(out, q.plan())
	p := newProgress(out, q)
	timed, cancel := context.WithTimeout(ctx, q.within)
	defer cancel()
	cells, failed := q.cells(), map[cell]bool{}
	if err := q.warmUp(ctx, timed, cells[0], p); err != nil {
		return nil, err
	}
	for range q.repeats {
		for _, i := range rand.Perm(len(cells)) {
			c := cells[i]
			if failed[c] {
				p.runs--
				continue
			}
			began := time.Now()
			s := q.run(timed, c)
			switch {
			case ctx.Err() != nil:
				return nil, errInterrupted
			case timed.Err() != nil:
				fmt.Fprintf(out, "the %v of --within are over: what has been measured counts\n", q.within)
				return samples, nil
			}
			s = p.did(s, time.Since(began))
			samples = append(samples, s)
			failed[c] = s.err != nil
		}
	}
	return samples, nil
}

// warmUp is the first run, which does not count.
func (q question) warmUp(ctx, timed context.Context, c cell, p *progress) error {
	began := time.Now()
	s := q.run(timed, c)
	switch {
	case ctx.Err() != nil:
		return errInterrupted
	case timed.Err() != nil:
		return fmt.Errorf("cannot tune: the first run did not end within %v: "+
			"give a shorter input, a --rate, or a longer --within", q.within)
	case s.err != nil:
		return fmt.Errorf("cannot tune: the first run failed (%s): %w", c, s.err)
	}
	p.did(s, time.Since(began))
	return nil
}

var errInterrupted = errors.New("cannot tune: interrupted")

// run runs the program once.
func (q question) run(ctx context.Context, c cell) sample {
	ctx, cancel := context.WithTimeout(ctx, q.limit)
	defer cancel()
	began := time.Now()
	copies, err := q.start(c)
	if err == nil && q.ends() {
		err = q.mayRun(ctx, copies)
	}
	if failed := q.end(ctx, copies, err != nil || q.ends()); err == nil {
		err = failed
	}
	if err != nil {
		return sample{cell: c, err: err}
	}
	if q.rate == nil {
		return sample{cell: c, rate: float64(len(copies)) * time.Hour.Seconds() / time.Since(began).Seconds()}
	}
	return q.rated(c, copies, time.Since(began))
}

// start starts the copies of a run, or its launcher.
func (q question) start(c cell) (copies []*ranks, err error) {
	if len(q.launcher) > 0 {
		one, err := q.begin(slices.Concat(launch(q.launcher, c.ranks), q.timed(), q.wrapper, []string{"--"}, q.program), c.rule)
		if err != nil {
			return nil, err
		}
		return []*ranks{one}, nil
	}
	for rank := range c.ranks {
		flags := []string{"--local-rank", strconv.Itoa(rank), "--local-size", strconv.Itoa(c.ranks), "--"}
		one, err := q.begin(slices.Concat(q.wrapper, flags, q.program), c.rule)
		if err != nil {
			return copies, err
		}
		copies = append(copies, one)
	}
	return copies, nil
}

// launch returns a launcher's command line for a number of ranks.
func launch(line []string, ranks int) []string {
	filled := make([]string, len(line))
	for i, word := range line {
		filled[i] = strings.ReplaceAll(word, ranksMark, strconv.Itoa(ranks))
	}
	return filled
}

// timed returns a command that ends each rank of a launcher after the time of a run. It sends SIGTERM to the rank
// only. A signal to the launcher has another effect: srun kills all ranks at once, while kernels run.
func (q question) timed() []string {
	if !q.ends() {
		return nil
	}
	return []string{"timeout", "--foreground", "--signal=TERM", fmt.Sprintf("%.3f", q.lasts.Seconds())}
}

// ranks is one copy of the program under the wrapper, or a launcher with all copies.
type ranks struct {
	cmd   *exec.Cmd
	heard *listener
	ended chan struct{}
	reap  sync.Mutex // held for the end of the group's leader, and for a signal to the group
	err   error      // of cmd.Wait
}

// begin starts a command line in its own process group, so that all of its processes can be ended.
func (q question) begin(line []string, rule policy.ShareRule) (*ranks, error) {
	output := &listener{rate: q.rate, keep: 1}
	r := &ranks{cmd: exec.Command(line[0], line[1:]...), heard: output, ended: make(chan struct{})}
	r.cmd.Env = append(q.env[:len(q.env):len(q.env)], "SLURM_MPS_SHARE="+rule.String())
	if len(q.launcher) > 0 {
		r.heard.keep = maxLines
	}
	if q.rate != nil {
		if r.heard.labels = labelsOf(q.launcher); r.heard.labels.variable != "" {
			r.cmd.Env = append(r.cmd.Env, r.heard.labels.variable)
		}
	}
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.cmd.WaitDelay = time.Second // a descendant of the program may keep the pipes open
	var heard sync.WaitGroup
	stream := func(stderr bool) *io.PipeWriter {
		reader, writer := io.Pipe()
		heard.Go(func() { r.heard.listen(reader, stderr) })
		return writer
	}
	stdout, stderr := stream(false), stream(true)
	r.cmd.Stdout, r.cmd.Stderr = stdout, stderr
	finish := func() {
		stdout.Close()
		stderr.Close()
		heard.Wait()
	}
	if err := r.cmd.Start(); err != nil {
		finish()
		return nil, fmt.Errorf("cannot run %s: %w", line[0], err)
	}
	go func() {
		r.awaitEnd()
		_ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGTERM) // what it has left in its group
		r.reap.Lock()
		defer r.reap.Unlock()
		if r.err = r.cmd.Wait(); errors.Is(r.err, exec.ErrWaitDelay) {
			r.err = nil
		}
		finish()
		close(r.ended)
	}()
	return r, nil
}

// awaitEnd waits for the end of the first process and leaves its number in use, so that no other group can get it.
func (r *ranks) awaitEnd() {
	for unix.Waitid(unix.P_PID, r.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// mayRun waits for the time of a run. A copy that ends earlier has printed all that it will print. A copy that fails
// ends the run.
func (q question) mayRun(ctx context.Context, copies []*ranks) error {
	timeout := time.After(q.lasts)
	if len(q.launcher) > 0 { // the ranks of a launcher end by themselves
		timeout = time.After(q.limit)
	}
	ended := make(chan *ranks, len(copies))
	for _, r := range copies {
		go func() {
			<-r.ended
			ended <- r
		}()
	}
	for range copies {
		select {
		case <-timeout:
			return nil
		case <-ctx.Done():
			return nil
		case r := <-ended:
			if r.err != nil && len(q.launcher) == 0 {
				return r.failure()
			}
		}
	}
	return nil
}

// goneAfter is the time that ranks have to end after SIGTERM. Ranks that are left get SIGKILL. It is the default of
// Slurm's KillWait, so a program that can be cancelled in Slurm ends in this time.
const goneAfter = 30 * time.Second

// end waits for the end of all copies. It ends the copies if ask is set, or if the time is over.
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

// signal signals all processes of the copy. After the end of the copy, the number of its group may belong to others.
func (r *ranks) signal(s syscall.Signal) {
	r.reap.Lock()
	defer r.reap.Unlock()
	select {
	case <-r.ended:
	default:
		_ = syscall.Kill(-r.cmd.Process.Pid, s)
	}
}

// failure returns how a copy ended, and its last output.
func (r *ranks) failure() error {
	if last := r.heard.why(); last != "" {
		return fmt.Errorf("%w: %s", r.err, strconv.QuoteToGraphic(last))
	}
	return fmt.Errorf("%w, and it printed nothing", r.err)
}

// rated adds up the rates of the copies.
func (q question) rated(c cell, copies []*ranks, took time.Duration) sample {
	s := sample{cell: c}
	for _, r := range copies {
		if r.heard.count == 0 && len(q.launcher) > 0 && r.err != nil && r.cmd.ProcessState.ExitCode() != timedOut {
			return sample{cell: c, err: r.failure()}
		}
		if r.heard.count == 0 {
			return sample{cell: c, err: q.noRate(r, took)}
		}
		s.rate += r.heard.total(q.oneRate)
		s.printed += r.heard.ranks()
	}
	return s
}

// noRate is the error of a copy that has printed no rate.
func (q question) noRate(r *ranks, took time.Duration) error {
	advice := "correct the pattern"
	when := fmt.Sprintf("before the program ended after %v", took.Round(100*time.Millisecond))
	if q.ends() && took >= q.lasts {
		when, advice = fmt.Sprintf("within %v", q.lasts), "correct the pattern, or give a longer --seconds"
	}
	return fmt.Errorf("--rate %q found no number %s; the last line of stdout is %s: %s", q.rate.text, when,
		strconv.QuoteToGraphic(r.heard.last), advice)
}

// timedOut is the exit code of timeout(1) if it has ended the rank.
const timedOut = 124

// wrapper returns the command line of mpirun-wrap.
func wrapper(root string) ([]string, error) {
	self, err := os.Executable()
	candidates := wrappers(self, err)
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

// wrappers returns where mpirun-wrap can be, the best place first: in the folder of this program, in the bin folder
// beside that, because an installed mps-tune is a link to sbin/mpsctl, or where the packages install it.
func wrappers(self string, err error) []string {
	const installed = "/usr/bin/mpirun-wrap"
	if err != nil {
		return []string{installed}
	}
	folder := filepath.Dir(self)
	return []string{filepath.Join(folder, "mpirun-wrap"), filepath.Join(folder, "../bin/mpirun-wrap"), installed}
}
