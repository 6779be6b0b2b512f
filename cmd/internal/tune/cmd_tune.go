// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/mpsctl"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/spf13/cobra"
)

const help = `mps-tune runs a program for a few seconds under each rule of shares, as the ranks of the job it is
called in would run, and says which rule is the fastest. Call it in the batch script, or in the shell of salloc.

Each run is so many copies of the program side by side, each below mpirun-wrap, or what --launcher starts ("srun -n8",
"mpirun -np 8"). With --rate a run lasts --seconds and is then ended; the rate is the number that the pattern's group has
found last in what a copy printed, and copies add up. Of a launcher's ranks the last number of all counts. Without --rate
a run lasts until the program ends, and its rate is runs per hour.

The rules take turns, --repeats times. A rule counts as faster than another only where all of its runs were, or where its
median is by more than 3 %; where none is faster than the site's own rule, that one is named. A rule of which a run fails
is not named.

It exits with 0 where a rule is named, 1 where none could be run or something failed, and 2 where it was not understood.
--json prints JSON in place of text; text has no colour on a pipe or where NO_COLOR is set.`

// Command is the program mps-tune.
func Command(call *mpsctl.Invocation) *cobra.Command {
	q := question{}
	var pattern, launcher string
	var rules []string
	c := &cobra.Command{
		Use: "mps-tune [flags] -- PROGRAM [ARG...]", Short: "find the rule of shares that is best for a program", Long: help,
		Example: "  mps-tune --ranks 8 -- ./app input.dat\n" +
			"  mps-tune --ranks 16 --rate 'speed: ([0-9.]+)' --seconds 15s -- ./app\n" +
			"  mps-tune --launcher 'srun -n8' --rate 'ns/day: ([0-9.]+)' -- ./app",
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("cannot tune: no program is given: mps-tune -- PROGRAM")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) (err error) {
			q.program, q.launcher = args, strings.Fields(launcher)
			if q.rules, err = readRules(rules); err != nil {
				return err
			}
			if q.rate, err = readPattern(pattern); err != nil {
				return err
			}
			if err := q.check(); err != nil {
				return err
			}
			return q.answer(call)
		},
	}
	flags := c.Flags()
	flags.SortFlags = false
	flags.IntVar(&q.ranks, "ranks", 0, "run `N` copies of the program on this node")
	flags.StringVar(&launcher, "launcher", "", "start the ranks by this `COMMAND` instead")
	flags.StringSliceVar(&rules, "share", []string{"none", "even", "overlap:1.5", "overlap:2", "overlap:3"}, "try these `SHARES`, with commas")
	flags.StringVar(&pattern, "rate", "", "a regular expression `PATTERN` with one group, which is a number: more is better")
	flags.DurationVar(&q.lasts, "seconds", 10*time.Second, "end a run after this `DURATION`, with --rate")
	flags.IntVar(&q.repeats, "repeats", 3, "run each rule `N` times")
	flags.DurationVar(&q.limit, "limit", 10*time.Minute, "end a run that takes this `DURATION`")
	return c
}

func readRules(texts []string) (rules []policy.ShareRule, err error) {
	for _, text := range texts {
		rule, err := policy.ParseShare(text)
		if err != nil {
			return nil, err
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

func readPattern(text string) (*regexp.Regexp, error) {
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

// check refuses what cannot be run, or would run for days.
func (q question) check() error {
	switch {
	case (q.ranks == 0) == (len(q.launcher) == 0):
		return errors.New("cannot tune: give either --ranks, or a --launcher that says how many there are")
	case q.ranks < 0 || q.ranks > 1024:
		return fmt.Errorf("cannot tune %d ranks: give --ranks 1 to 1024", q.ranks)
	case len(q.rules) < 2:
		return errors.New("cannot tune: give two rules or more with --share")
	case q.repeats < 1 || q.repeats > 100:
		return fmt.Errorf("cannot repeat %d times: give --repeats 1 to 100", q.repeats)
	case q.lasts < time.Second || q.lasts > q.limit:
		return fmt.Errorf("cannot run for %v: give --seconds 1s up to --limit", q.lasts)
	}
	return nil
}

func (q question) answer(call *mpsctl.Invocation) error {
	site, err := siteRule(call)
	if err != nil {
		return cli.RuntimeError{Err: err}
	}
	if q.wrapper, err = wrapper(call.Paths.Root); err != nil {
		return cli.RuntimeError{Err: err}
	}
	q.env = call.Env
	ctx, stop := mpsctl.SignalContext()
	defer stop()
	samples, err := q.measure(ctx, func(line string) { fmt.Fprintln(call.Err, line) })
	if err != nil {
		return cli.RuntimeError{Err: err}
	}
	r := newReport(q, samples, site)
	if call.JSON {
		err = cli.WriteJSON(call.Out, r)
	} else {
		_, err = io.WriteString(call.Out, r.text(call.Screen()))
	}
	if err == nil && r.Use == "" {
		return cli.ErrFindings
	}
	return mpsctl.WriteError("table", err)
}
