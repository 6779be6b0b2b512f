// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/tuned"
	"github.com/spf13/cobra"
)

const help = `mps-tune finds the number of ranks and the share with which a program is fastest. It runs the program for a few
seconds with each number and each share, under the mpirun-wrap of the job. Call it inside the job: in the batch
script, or in the shell of salloc. Before the first run, it prints the number of runs and their time.

A run starts several copies of the program, each under mpirun-wrap, or it starts --launcher. {ranks} in the launcher
is the number of ranks: "srun -n {ranks}", "mpirun -np {ranks}". A launcher with its own number, like srun -n8, is
run with that number only. Quotes in the launcher are as in a shell: 'srun --export="A B" -n {ranks}'. Without --ranks,
the numbers are the job's tasks on the node, a half and a quarter of them.

The rate of a rank is the last number that --rate finds in its stdout or stderr. A line may end with a carriage return,
as that of a progress bar does. gromacs, lammps, namd and amber run until the program ends, because they print the
rate at their end: give a short input. With tqdm, lightning and a pattern of your own, mps-tune ends a run after
--seconds. Without --rate, a run lasts until the program ends, and its rate is the number of copies in an hour, or of
launches.

The rates of all ranks that print one are added up, so independent copies count as what they are. If one rank prints
the rate of all, that rate counts. If each rank prints the rate of the whole program, give --one-rate. srun and Open
MPI label the ranks. With other launchers, the last rate in the output of all ranks counts.

mps-tune makes one run to warm up, and stops if it fails. Then it tries each number of ranks with each share once, in
an order by chance, and again, --repeats times in all. The site's own share is always among them. Another share is
called faster if a t-test for pairs proves a gain of 1 % or more. docs/reference.md has the test and its limits. If
nothing is proved, the site's own share stays. More --repeats prove smaller gains.

--save stores the share that is proved to be faster, for each number of ranks, in $XDG_CONFIG_HOME/slurm-mps/tuned or
~/.config/slurm-mps/tuned. mpirun-wrap --share=tuned then finds the share by the program's file name, the ranks on a
GPU and the GPU's model. A site's shares are in /etc/slurm-mps/tuned, with the same lines.

The exit code is 0 if mps-tune finds a best share. It is 1 if no share could be run or something failed, and 2 if the
command line has a mistake. --json prints JSON in place of text; text has no colour on a pipe or if NO_COLOR is set.`

// Command is the program mps-tune.
func Command(call *command.Invocation) *cobra.Command {
	var q question
	var pattern, launcher string
	var rules []string
	c := &cobra.Command{
		Use: "mps-tune [flags] -- PROGRAM [ARG...]", Short: "find the number of ranks and the share that are best for a program",
		Long: help,
		Example: "  mps-tune --rate 'speed: ([0-9.]+)' -- ./app\n" +
			"  mps-tune --ranks 4,8,16 --save -- ./app input.dat\n" +
			"  mps-tune --launcher 'srun -n {ranks}' --rate gromacs -- gmx_mpi mdrun -nsteps 20000",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("cannot tune: no program is given: mps-tune -- PROGRAM")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) (err error) {
			q.program = args
			if q.launcher, err = splitWords(launcher); err != nil {
				return err
			}
			if q.rules, err = readRules(rules); err != nil {
				return err
			}
			if q.rate, err = readRate(pattern); err != nil {
				return err
			}
			if c.Flags().Changed("seconds") && !q.ends() {
				return q.cannotEnd()
			}
			q.save = q.save || q.name != ""
			q.name = cmp.Or(q.name, args[0])
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
	flags.IntSliceVar(&q.counts, "ranks", nil, "try these `NUMBERS` of ranks on this node, with commas")
	flags.StringVar(&launcher, "launcher", "", "start the ranks by this `COMMAND`, with {ranks} for their number")
	flags.StringSliceVar(&rules, "share", []string{"none", "even", "overlap:1.5", "overlap:2", "overlap:3"},
		"try these `SHARES`, with commas")
	flags.StringVar(&pattern, "rate", "",
		"gromacs, lammps, namd, amber, tqdm, lightning, or a `PATTERN` with one group: the rate")
	flags.BoolVar(&q.oneRate, "one-rate", false, "the ranks of a launch print the same rate: do not add them up")
	q.lasts = 10 * time.Second
	flags.Var(seconds{&q.lasts}, "seconds", "end a run after this `TIME`, with --rate")
	flags.IntVar(&q.repeats, "repeats", 5, "run each `N` times")
	flags.DurationVar(&q.limit, "limit", 10*time.Minute, "end a run that takes this `DURATION`")
	flags.DurationVar(&q.within, "within", 30*time.Minute, "end all after this `DURATION`, or a minute before the job ends")
	flags.BoolVar(&q.save, "save", false,
		"remember the shares that are proved to be faster, by the name of the program's file")
	flags.StringVar(&q.name, "save-as", "", "remember them by this `NAME`, for mpirun-wrap --share=tuned:NAME")
	return c
}

// cannotEnd is the error of --seconds if a run lasts until the program ends.
func (q question) cannotEnd() error {
	if q.rate == nil {
		return fmt.Errorf("cannot end runs after %v: without --rate, a run lasts until the program ends: "+
			"give --rate, or leave out --seconds", q.lasts)
	}
	return fmt.Errorf("cannot end %s after %v: it prints its rate at its end only: "+
		"leave out --seconds, and give a short input", q.rate.text, q.lasts)
}

func readRules(texts []string) (rules []policy.ShareRule, err error) {
	for _, text := range texts {
		rule, err := policy.ParseShare(text)
		if err != nil {
			return nil, command.SuggestShare(err, text)
		}
		rules = append(rules, rule)
	}
	return rules, nil
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

// maxRuns bounds the number of runs, because each run may take --limit.
const maxRuns = 1000

// check refuses a request that cannot be run, or that would run for days.
func (q question) check() error {
	fixed := q.fixed()
	for _, ranks := range q.counts {
		if ranks < 1 || ranks > 1024 {
			return fmt.Errorf("cannot tune %d ranks: give --ranks 1 to 1024", ranks)
		}
	}
	switch {
	case fixed && len(q.counts) > 0:
		return errors.New("cannot tune: --launcher has a number of ranks of its own: write {ranks} in its place, or leave out --ranks")
	case q.oneRate && (q.rate == nil || len(q.launcher) == 0):
		return errors.New("cannot tune with --one-rate: it needs --rate and --launcher")
	case fixed && q.save:
		return errors.New("cannot save: --launcher has a number of ranks of its own: write {ranks} in its place, and give --ranks")
	case len(q.rules) == 0 || len(q.rules)*max(len(q.counts), 1) < 2:
		return errors.New("cannot tune: there is nothing to compare: give two shares or more with --share, or two numbers with --ranks")
	case q.repeats < 1 || q.repeats > 100:
		return fmt.Errorf("cannot repeat %d times: give --repeats 1 to 100", q.repeats)
	case len(q.rules)*max(len(q.counts), 1)*q.repeats > maxRuns:
		return fmt.Errorf("cannot tune with more than %d runs: give fewer --ranks, --share or --repeats", maxRuns)
	case q.lasts < time.Second || q.lasts > q.limit:
		return fmt.Errorf("cannot run for %v: give --seconds 1s up to --limit", q.lasts)
	case q.within < time.Second:
		return fmt.Errorf("cannot tune within %v: give --within 1s or longer", q.within)
	}
	if q.save {
		return tuned.Key{Program: filepath.Base(q.name)}.Check()
	}
	return nil
}

// answer measures and prints. It proves that it can save before the runs, because the runs take minutes.
func (q question) answer(call *command.Invocation) error {
	ticket, err := q.prepare(call)
	if err != nil {
		return err
	}
	file := tuned.UserFile(call.Variable("XDG_CONFIG_HOME"), call.Variable("HOME"))
	if q.save {
		if err := tuned.Save(file, nil); err != nil {
			return err
		}
	}
	ctx, stop := command.SignalContext()
	defer stop()
	samples, err := q.measure(ctx, call.Err)
	if err != nil {
		return err
	}
	r := newReport(q, samples, ticket)
	if q.save {
		entries := q.entries(r)
		if err = tuned.Save(file, entries); err == nil {
			for _, e := range entries {
				r.Saved = append(r.Saved, e.String())
			}
		}
	}
	if printed := call.Print("table", r, r.text); err == nil {
		err = printed
	}
	if err == nil && r.Use == "" {
		return cli.ErrFindings
	}
	return err
}

// prepare adds the job's own values to the question.
func (q *question) prepare(call *command.Invocation) (lease.Ticket, error) {
	ticket, err := readTicket(call)
	if err != nil {
		return ticket, err
	}
	if site := ticket.Grant.Rule(); !slices.Contains(q.rules, site) { // the others are compared with it
		q.rules = append([]policy.ShareRule{site}, q.rules...)
	}
	env := slurm.NewEnv(call.Env)
	q.env, q.nodes = call.Env, 1
	if nodes, err := strconv.Atoi(call.Variable("SLURM_JOB_NUM_NODES")); err == nil && nodes > 1 {
		q.nodes = nodes
	}
	if q.within, err = untilJobEnds(q.within, call.Variable("SLURM_JOB_END_TIME"), time.Now()); err != nil {
		return ticket, err
	}
	if q.wrapper, err = wrapper(call.Paths.Root); err != nil {
		return ticket, err
	}
	q.counts, err = q.numbers(env, len(ticket.Devices)*ticket.Grant.MaxClients*q.onNodes())
	return ticket, err
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

// numbers returns the numbers of ranks to try: each once, ascending, and none that the GPUs cannot have.
func (q question) numbers(env slurm.Env, limit int) ([]int, error) {
	counts := slices.Compact(slices.Sorted(slices.Values(q.counts)))
	switch {
	case len(counts) > 0:
	case q.fixed():
		return []int{unknown}, nil
	default:
		tasks, err := slurm.TasksOnNode(env)
		tasks *= q.onNodes()
		if err != nil || tasks == 1 {
			return nil, errors.New("cannot tune: no number of ranks is given, and the job has not several tasks on this node: give --ranks, like --ranks=2,4,8")
		}
		tasks = min(tasks, limit)
		counts = slices.Compact([]int{max(tasks/4, 1), max(tasks/2, 1), tasks})
	}
	if largest := counts[len(counts)-1]; largest > limit {
		return nil, fmt.Errorf("cannot tune %d ranks: the GPUs of this job take %d: give --ranks %d or less, or submit with more GPUs", largest, limit, limit)
	}
	return counts, nil
}
