// SPDX-License-Identifier: Apache-2.0

package frame

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/prolog"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/etc"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/logfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Prolog is the program prolog.
func Prolog(p cli.Process) int {
	return execute(p, runProlog, "prolog", "make this node ready for a job's MPS",
		"prolog runs as slurmd's Prolog= and opens the job's lease: compute modes,\ncontrol daemon, ticket.")
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

// runJob opens the lease of a job that asks for MPS. For a job that does not ask, runJob reads no file but the
// policy. Such a job does not fail if the node's files are wrong.
func runJob(paths site.Paths, out io.Writer, log zerolog.Logger, job slurm.Job) (prolog.Outcome, error) {
	rules, err := readPolicy(paths, log)
	if !prolog.Requested(job, rules) {
		return prolog.NotRequested, nil
	}
	if err != nil {
		return prolog.Failed, err
	}
	n, err := newNode(paths, out, "prolog", job.ID)
	if err != nil {
		return prolog.Failed, err
	}
	if n.status.Err == nil {
		warn(log, policyfile.KeepConfig(paths), "the site's file is not kept for the day when it cannot be read")
	}
	p := prolog.Prolog{
		Store: n.store, Daemons: daemons{n.control}, Guards: n.guards, Groups: n.groups(), GPUs: n.gpus, Slurm: n, Undo: n.epilog().Undo, Log: n.log, Clock: time.Now,
		Site: lease.Settings{
			Control: lease.Program{Path: n.config.Control, LibraryPath: n.config.LibraryPath},
			NVML:    n.config.NVMLLibrary, Interval: lease.Duration(n.config.UsageInterval),
		},
		GroupNames: groupNames, JobFiles: n.config.JobMappingDir,
	}
	outcome, err := within(n.config.PrologDeadline, site.PrologMargin, func(ctx context.Context) (prolog.Outcome, error) {
		return p.Open(ctx, job, rules)
	})
	if outcome = cmp.Or(outcome, prolog.Failed); outcome == prolog.Failed {
		err = errors.Join(err, n.status.Err)
	}
	return outcome, err
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
	return execute(p, runEpilog, "epilog", "bring this node back to what it was before a job",
		"epilog runs as slurmd's Epilog= and closes the job's lease. It follows the\nlease and never the policy.")
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
