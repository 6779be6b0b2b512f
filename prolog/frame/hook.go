// SPDX-License-Identifier: Apache-2.0

// Package frame builds the prolog, the epilog and the other programs that run as root, from their parts.
package frame

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/epilog"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/prolog"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cgroup"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/driver"
	"github.com/slurm-mps/slurm-mps/site/etc"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/guard"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/logfile"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// node is this node with the parts that a program needs for one job.
type node struct {
	paths   site.Paths
	config  site.Config
	status  policyfile.FileStatus // of the site's file
	store   *lease.Store
	gpus    *gpu.NVML
	control mps.ControlProgram
	guards  guard.Control
	out     io.Writer // where log writes
	log     zerolog.Logger
}

// newNode builds a node. The caller opens and closes the log. If the site's file cannot be used, newNode logs the reason,
// and no job fails because of it.
func newNode(paths site.Paths, out io.Writer, program string, job uint32) (node, error) {
	log := logfile.Of(out, program, job)
	config, status := policyfile.ReadConfig(paths)
	if status.Err != nil {
		log.Error().Err(status.Err).Msg("the site's file cannot be used: " + status.Instead("the defaults hold"))
	}
	boot, err := proc.BootID()
	if err != nil {
		return node{}, err
	}
	store, err := lease.Open(paths.Run(), boot)
	if err != nil {
		return node{}, err
	}
	store.Clearer = []string{site.ProgramPath("guard"), "--root", paths.Root, "--clear"}
	// The timeout is half of a deadline. If NVML hangs, the other half is left for the work that does not need NVML.
	gpus := gpu.New(config.NVMLLibrary, min(config.PrologDeadline, config.EpilogDeadline)/2)
	return node{
		paths: paths, config: config, status: status, store: store, gpus: gpus,
		control: mps.ControlProgram{Path: config.Control, LibraryPath: config.LibraryPath},
		guards: guard.Control{
			Path: site.ProgramPath("guard"), Root: paths.Root, Store: store, NVML: config.NVMLLibrary, Interval: config.UsageInterval,
		},
		out: out, log: log,
	}, nil
}

// epilog returns the epilog of this node. The prolog and mpsctl reap undo a lease with it, too.
func (n node) epilog() epilog.Epilog {
	return epilog.Epilog{
		Store: n.store, Daemons: n.control, Guards: n.guards, Groups: cgroup.Tree{Run: n.paths.Run()}, GPUs: n.gpus, Log: n.log, RerunCommand: n.again,
		Logs: filepath.Join(filepath.Dir(n.paths.Log()), "jobs"), Reports: n.paths.Reports(),
	}
}

// again returns the command with which an admin runs the epilog of a job by hand.
func (n node) again(job lease.Job) string {
	const command = "SLURM_SCRIPT_CONTEXT=epilog_slurmd SLURM_JOB_ID=%d %s%s"
	return fmt.Sprintf(command, job.ID, site.ProgramPath("epilog"), n.paths.Flag())
}

// Gres reads the GRES of the job's node from gres.conf and slurm.conf.
func (n node) Gres(job slurm.Job) (slurm.Gres, error) {
	path := n.config.GresConf
	if path == "" {
		path = filepath.Join(filepath.Dir(job.Conf), "gres.conf")
	}
	gres, err := slurm.ReadGres(path, job.Node)
	if err != nil || job.Conf == "" {
		return gres, err
	}
	line, err := slurm.ReadNode(job.Conf, job.Node)
	if errors.Is(err, slurm.ErrNoNode) {
		return gres, nil
	}
	gres.Add(line)
	return gres, err
}

// Features returns the features that slurm.conf gives the job's node. A node that registered itself has no line in
// slurm.conf, so it has no features.
func (n node) Features(job slurm.Job) ([]string, error) {
	if job.Conf == "" {
		return nil, errors.New("cannot read features of the node: SLURM_CONF is not set")
	}
	line, err := slurm.ReadNode(job.Conf, job.Node)
	if errors.Is(err, slurm.ErrNoNode) {
		return nil, nil
	}
	return line.Features, err
}

// hookHelp is the end of the help texts of prolog and epilog.
const hookHelp = `

Usage:
  %[1]s [flags]

Flags:
  -h, --help       help for %[1]s
      --root DIR   move /etc/slurm-mps, /run/slurm-mps and
                   /var/log/slurm-mps below DIR
  -v, --version    version for %[1]s
`

// execute runs a program without arguments that slurmd runs as root, and returns its exit code.
func execute(p cli.Process, run func(cli.Process, site.Paths) error, name, does string) int {
	var paths site.Paths
	os.Clearenv() // NVML and glibc read variables, which p.Env keeps for this program alone
	done, err := p.ParseAlone(name, does+fmt.Sprintf(hookHelp, name), cli.Flag{Name: "root", To: &paths.Root})
	if err == nil && !done {
		if err = checkCaller(paths); err == nil {
			err = run(p, paths)
		}
	}
	if err != nil {
		p.PrintError(name, err)
		return cli.ExitDrain
	}
	return cli.ExitOK
}

func checkCaller(paths site.Paths) error {
	if err := paths.Check(); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("cannot act on this node: not root: slurmd runs this program, see docs/operator.md")
	}
	return nil
}

// within runs a function with a deadline. SIGTERM and SIGINT end its context earlier. If it hangs in the driver past the
// deadline and a margin, within returns an error. The lease stays, so the next epilog finds it.
func within[T any](deadline, margin time.Duration, run func(context.Context) (T, error)) (T, error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	hangs := fmt.Errorf("cannot finish within %v: a call of the driver or the file system hangs", deadline+margin)
	bound, cancel := context.WithTimeoutCause(context.Background(), deadline+margin, hangs)
	defer cancel()
	return wait.Within(bound, func() (T, error) { return run(ctx) })
}

// Prolog is the program prolog.
func Prolog(p cli.Process) int {
	return execute(p, runProlog, "prolog", "prolog runs as slurmd's Prolog= and opens the job's lease: compute modes,\ncontrol daemon, ticket.")
}

func runProlog(p cli.Process, paths site.Paths) error {
	began := time.Now()
	out, closeLog := logfile.Open(paths.Log())
	defer closeLog()
	job, err := slurm.ReadJob(slurm.NewEnv(p.Env), slurm.Prolog)
	log := logfile.Of(out, "prolog", job.ID)
	outcome := prolog.NotRequested
	if err == nil {
		outcome, err = runJob(paths, out, log, job)
	}
	logSilence(log)
	if err != nil && outcome != prolog.RanWithoutMPS {
		log.Error().Str("outcome", string(prolog.Failed)).Err(err).Dur("ms", time.Since(began)).Send()
		return err
	}
	log.Info().Str("outcome", string(outcome)).AnErr("error", err).Dur("ms", time.Since(began)).Send()
	return nil
}

// runJob opens the lease of a job that asks for MPS, or starts the recorder of one without MPS. For a job that does not
// ask and is not recorded, runJob reads no file but the policy. A job that does not ask does not fail if the node's
// files are wrong.
func runJob(paths site.Paths, out io.Writer, log zerolog.Logger, job slurm.Job) (outcome prolog.Outcome, err error) {
	rules, unusable := readPolicy(paths, log)
	switch {
	case !prolog.Requested(job, rules):
		outcome = prolog.NotRequested
	case unusable != nil:
		return prolog.Failed, unusable
	default:
		outcome, err = openLease(paths, out, log, job, rules)
	}
	if rules.RecordAll && outcome.WithoutMPS() && len(job.GPUs)+len(job.Visible) > 0 {
		warn(log, record(paths, out, job), "the job is not recorded")
	}
	return outcome, err
}

// A job without MPS waits for its recorder to start: some 20 ms, and these times together at most.
const recordTime, recordMargin = 8 * time.Second, 2 * time.Second

// record starts the recorder of a job without MPS.
func record(paths site.Paths, out io.Writer, job slurm.Job) error {
	n, err := newNode(paths, out, "prolog", job.ID)
	if err != nil || n.config.UsageInterval == 0 {
		return err
	}
	_, err = within(recordTime, recordMargin, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, n.prolog(job.Node).Record(ctx, job)
	})
	return err
}

func openLease(
	paths site.Paths, out io.Writer, log zerolog.Logger, job slurm.Job, rules policy.Policy,
) (prolog.Outcome, error) {
	n, err := newNode(paths, out, "prolog", job.ID)
	if err != nil {
		return prolog.Failed, err
	}
	if n.status.Err == nil {
		warn(log, policyfile.KeepConfig(paths), "the site's file is not kept for the day when it cannot be read")
	}
	outcome, err := within(n.config.PrologDeadline, site.PrologMargin, func(ctx context.Context) (prolog.Outcome, error) {
		return n.prolog(job.Node).Open(ctx, job, rules)
	})
	if outcome = cmp.Or(outcome, prolog.Failed); outcome == prolog.Failed {
		err = errors.Join(err, n.status.Err)
	}
	return outcome, err
}

func (n node) prolog(slurmsName string) prolog.Prolog {
	return prolog.Prolog{
		Store: n.store, Daemons: daemons{n.control}, Guards: n.guards, GPUs: n.gpus, Slurm: n, Undo: n.epilog().Undo, Log: n.log, Clock: time.Now,
		Groups: cgroup.Tree{Run: n.paths.Run(), Node: slurmsName},
		Listed: driver.Node{Root: n.paths.Root}.GPUs,
		Site: lease.Settings{
			Control: lease.Program{Path: n.config.Control, LibraryPath: n.config.LibraryPath},
			NVML:    n.config.NVMLLibrary, Interval: lease.Duration(n.config.UsageInterval),
		},
		GroupNames: groupNames,
	}
}

// readPolicy reads the policy of the node, or the last policy that could be used. If there is neither, it returns the
// trigger of the shipped policy and an error with the reason.
func readPolicy(paths site.Paths, log zerolog.Logger) (policy.Policy, error) {
	compiled, status := policyfile.ReadPolicy(paths)
	if status.Err == nil {
		warn(log, policyfile.KeepPolicy(paths, compiled), "the policy is not kept for the day when it cannot be read")
		return compiled.Policy(), nil
	}
	log.Error().Err(status.Err).Msg("the policy cannot be used: " + status.Instead("jobs that ask for MPS fail"))
	if compiled != nil {
		return compiled.Policy(), nil
	}
	return policy.Policy{Trigger: shippedTrigger()}, fmt.Errorf("cannot read policy: %w: no earlier one was kept: see mpsctl policy check", status.Err)
}

// shippedTrigger returns how jobs ask for MPS at a site whose own policy could never be read.
func shippedTrigger() *policy.Trigger {
	compiled, err := policyfile.Parse(etc.Policy, "policy.hcl")
	if err != nil {
		panic(err) // the file is embedded in this program
	}
	return compiled.Policy().Trigger
}

// logSilence logs the processes that this program has passed over because they do not answer.
func logSilence(log zerolog.Logger) {
	if silence := proc.Silence(); silence != "" {
		log.Warn().Msg(silence)
	}
}

func warn(log zerolog.Logger, err error, what string) {
	if err != nil {
		log.Warn().Err(err).Msg(what)
	}
}

// Epilog is the program epilog.
func Epilog(p cli.Process) int {
	return execute(p, runEpilog, "epilog", "epilog runs as slurmd's Epilog= and closes the job's lease. It follows the\nlease and never the policy.")
}

func runEpilog(p cli.Process, paths site.Paths) error {
	began := time.Now()
	out, closeLog := logfile.Open(paths.Log())
	defer closeLog()
	job, err := slurm.ReadJob(slurm.NewEnv(p.Env), slurm.Epilog)
	log := logfile.Of(out, "epilog", job.ID)
	if err == nil {
		err = closeJob(paths, out, log, job.ID)
	}
	logSilence(log)
	log.Info().Bool("closed", err == nil).AnErr("error", err).Dur("ms", time.Since(began)).Send()
	return err
}

// closeJob closes the lease of a job. If nothing of the job is on this node, a /run that is full or read-only does
// not fail the epilog. A job that did not ask for MPS has nothing here.
func closeJob(paths site.Paths, out io.Writer, log zerolog.Logger, job uint32) error {
	untouched := lease.HasNothingOf(paths.Run(), job)
	n, err := newNode(paths, out, "epilog", job)
	if err == nil {
		_, err = within(n.config.EpilogDeadline, site.EpilogMargin, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, n.epilog().Close(ctx, job)
		})
	}
	if err != nil && untouched && lease.HasNothingOf(paths.Run(), job) {
		log.Warn().Err(err).Msg("no records of this job: nothing to close")
		return nil
	}
	return err
}
