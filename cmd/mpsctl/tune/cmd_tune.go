// SPDX-License-Identifier: Apache-2.0

// Package tune is the program mps-tune. By trial, it finds the share with which a command line of the user is fastest.
//
// mps-tune runs inside a job, as the job's user, for a bounded time. It leaves no process behind. It calls a share
// faster only if a test proves that (proof, in report.go).
package tune

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/spf13/cobra"
)

const help = `mps-tune finds the share with which a command is fastest. The command is your own line with its launcher:
"srun mpirun-wrap ./app", or "mpirun -np 8 mpirun-wrap ./app". Call mps-tune inside the job: in the batch script, or in
the shell of salloc. It runs the command with SLURM_MPS_SHARE set to each share.

Without --rate, a run lasts until the command ends, and its rate is the number of runs in an hour. With --rate, the rate
comes from the numbers that the pattern finds in stdout and stderr. It is the mean of the second half of them, so the
first ones, of a slow start, do not count. If each rank prints one number, let one rank print their sum instead: half
of the ranks would not count. A line may end with a carriage return, as that of a progress bar does. With
--seconds, mps-tune ends a run after that time.

mps-tune makes one run to warm up, and stops if it fails. Then it tries each share once, in an order by chance, and
again, --repeats times in all. The site's own share is always among them. Another share is called faster if a t-test
for pairs proves a gain of 1 % or more. docs/reference.md has the test and its limits. If nothing is proved, the
site's own share stays. More --repeats prove smaller gains.

The exit code is 0 if mps-tune has compared the shares. It is 1 if no share could be run or something failed, and 2 if
the command line has a mistake. --json prints JSON in place of text; text has no colour on a pipe or if NO_COLOR is set.`

// Command is the program mps-tune.
func Command(call *command.Invocation) *cobra.Command {
	var q question
	var pattern string
	var shares []string
	c := &cobra.Command{
		Use: "mps-tune [flags] -- COMMAND [ARG...]", Short: "find the share that is best for a command", Long: help,
		Example: "  mps-tune -- srun mpirun-wrap ./app input.dat\n" +
			"  mps-tune --rate 'Performance: +([0-9.]+)' -- srun mpirun-wrap gmx_mpi mdrun -nsteps 20000\n" +
			"  mps-tune --rate '([0-9.]+) it/s' --seconds 30 -- mpirun -np 4 mpirun-wrap python train.py",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("cannot tune: no command is given: mps-tune -- srun mpirun-wrap ./app")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) (err error) {
			q.line, q.env = args, call.Env
			if q.rules, err = readRules(shares); err != nil {
				return err
			}
			if q.rate, err = readRate(pattern); err != nil {
				return err
			}
			if err := q.check(); err != nil {
				return err
			}
			if err = q.answer(call); err != nil && !errors.Is(err, cli.ErrFindings) {
				return cli.RuntimeError{Err: err}
			}
			return err
		},
	}
	flags := c.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&shares, "share", []string{"none", "even", "overlap:1.5", "overlap:2", "overlap:3"},
		"try these `SHARES`, with commas")
	flags.StringVar(&pattern, "rate", "", "a `PATTERN` with one group: the rate in the output")
	flags.Var(seconds{&q.lasts}, "seconds", "end a run after this `TIME`, with --rate; 0 waits for the command's end")
	flags.IntVar(&q.repeats, "repeats", 5, "run each `N` times")
	flags.DurationVar(&q.within, "within", 30*time.Minute, "end all after this `DURATION`, or a minute before the job ends")
	return c
}

func readRules(texts []string) (rules []policy.ShareRule, err error) {
	for _, text := range texts {
		rule, err := policy.ParseShare(text)
		if err != nil {
			return nil, command.SuggestShare(err, text)
		}
		if !slices.Contains(rules, rule) {
			rules = append(rules, rule)
		}
	}
	return rules, nil
}

// readRate reads --rate. It is nil without a pattern.
func readRate(text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil
	}
	pattern, err := regexp.Compile(text)
	if err == nil && pattern.NumSubexp() != 1 {
		err = errors.New("it needs one group, around the number")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read --rate %q: %w", text, err)
	}
	return pattern, nil
}

// seconds is a flag that takes a number of seconds, or a time with a unit.
type seconds struct{ d *time.Duration }

func (s seconds) String() string { return s.d.String() }
func (s seconds) Type() string   { return "duration" }

func (s seconds) Set(text string) error {
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		text += "s"
	}
	d, err := time.ParseDuration(text)
	*s.d = d
	return err
}

func (q question) check() error {
	own := q.ownShare()
	switch {
	case own != "":
		return fmt.Errorf("cannot tune: the command has a share of its own, %s: leave it out", own)
	case len(q.rules) == 0:
		return errors.New("cannot tune: there is nothing to compare: give two shares or more with --share")
	case q.repeats < 1 || q.repeats > 100:
		return fmt.Errorf("cannot repeat %d times: give --repeats 1 to 100", q.repeats)
	case q.lasts != 0 && q.rate == nil:
		return fmt.Errorf("cannot end runs after %v: without --rate, a run lasts until the command ends: "+
			"give --rate, or leave out --seconds", q.lasts)
	case q.lasts < 0 || q.lasts > 0 && q.lasts < time.Second:
		return fmt.Errorf("cannot run for %v: give --seconds 1 or more", q.lasts)
	case q.within < time.Second:
		return fmt.Errorf("cannot tune within %v: give --within 1s or longer", q.within)
	}
	return nil
}

// ownShare returns the flag of mpirun-wrap in the command that sets a share, "" for none.
func (q question) ownShare() string {
	for i := q.wrapper() + 1; i > 0 && i < len(q.line) && q.line[i] != "--" && strings.HasPrefix(q.line[i], "-"); i++ {
		name, _, given := strings.Cut(strings.TrimLeft(q.line[i], "-"), "=")
		if name == "share" {
			return q.line[i]
		}
		takesNext := func(s mpirunwrap.Setting) bool { return s.Flag == name && s.Value != "" && !given }
		if slices.ContainsFunc(mpirunwrap.Settings, takesNext) {
			i++
		}
	}
	return ""
}

// wrapper returns the place of mpirun-wrap in the command, or -1.
func (q question) wrapper() int {
	return slices.IndexFunc(q.line, func(word string) bool { return filepath.Base(word) == "mpirun-wrap" })
}

// answer measures and prints.
func (q question) answer(call *command.Invocation) (err error) {
	if q.site, err = q.siteRule(call); err != nil {
		return err
	}
	if !slices.Contains(q.rules, q.site) { // the others are compared with it
		q.rules = slices.Insert(q.rules, 0, q.site)
	}
	if len(q.rules) < 2 {
		return errors.New("cannot tune: there is nothing to compare: give another share than the site's with --share")
	}
	if q.within, err = untilJobEnds(q.within, call.Variable("SLURM_JOB_END_TIME"), time.Now()); err != nil {
		return err
	}
	ctx, stop := command.SignalContext()
	defer stop()
	samples, err := q.measure(ctx, call.Err)
	if err != nil {
		return err
	}
	r := newReport(q, samples)
	if err := call.Print("table", r, r.text); err != nil {
		return err
	}
	if r.Use == "" {
		return cli.ErrFindings
	}
	return nil
}

// siteRule returns the share that a rank has if the user gives none: that of the job's ticket, or without one that of
// --own.
func (q question) siteRule(call *command.Invocation) (policy.ShareRule, error) {
	options, err := mpirunwrap.ReadOptions(slurm.NewEnv(call.Env))
	if err != nil {
		return policy.ShareRule{}, err
	}
	own := options.OwnDaemon || slices.Contains(q.line, "--own")
	job, err := strconv.ParseUint(call.Variable("SLURM_JOB_ID"), 10, 32)
	if err != nil && !own {
		return policy.ShareRule{}, errors.New("cannot tune outside a job: SLURM_JOB_ID is not set: call it in a batch script, " +
			"or in the shell of salloc, or give mpirun-wrap --own")
	}
	boot, err := proc.BootID()
	if err != nil {
		return policy.ShareRule{}, err
	}
	ticket, err := lease.OpenReadOnly(call.Paths.Run(), boot).ReadTicket(uint32(job))
	switch {
	case err != nil && own:
		return policy.DefaultGrant().Share, nil
	case err == nil && ticket.RefusalReason != "":
		err = fmt.Errorf("this job has no MPS: %s", ticket.RefusalReason)
	}
	if err != nil {
		return policy.ShareRule{}, fmt.Errorf("cannot tune: %w", err)
	}
	return ticket.Grant.Share, nil
}

// untilJobEnds shortens a time, so that at least a minute of the job is left. Slurm gives the end in seconds since
// 1970.
func untilJobEnds(within time.Duration, end string, now time.Time) (time.Duration, error) {
	seconds, err := strconv.ParseInt(end, 10, 64)
	if err != nil {
		return within, nil
	}
	left := time.Unix(seconds, 0).Sub(now) - time.Minute
	if left < time.Second {
		return 0, errors.New("cannot tune: the job ends within a minute: submit it with a longer --time")
	}
	return min(within, left.Truncate(time.Second)), nil
}
