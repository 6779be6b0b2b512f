package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/prolog"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Prolog is the door of the prolog.
func Prolog(p cli.Process) int {
	return execute(p, command("prolog", "make this node ready for a job's MPS",
		"prolog runs as slurmd's Prolog= and opens the job's lease: compute modes, control daemon, ticket.",
		func(paths site.Paths) error { return runProlog(p, paths) }))
}

// prologMargin is what a prolog may take beyond its deadline: the undo, the trial as nobody and a little.
const prologMargin = 45 * time.Second

func runProlog(p cli.Process, paths site.Paths) error {
	began := time.Now()
	job, err := slurm.ReadJob(slurm.NewEnviron(p.Env), slurm.Prolog)
	if err != nil {
		return err
	}
	law, err := readPolicy(paths.Policy())
	if err != nil {
		return err
	}
	n, factsErr, err := open(paths, "prolog", job.ID)
	if err := errors.Join(factsErr, err); err != nil {
		return err
	}
	defer n.close()
	opener := prolog.Opener{
		Journal: n.journal, Daemons: n.control, GPUs: n.gpus, Slurm: n, Undo: n.closer().Undo, Log: n.log, Clock: time.Now,
		Control: lease.Program{Path: n.facts.Control, LibraryPath: n.facts.LibraryPath},
		Names:   groupNames,
	}
	return within(n.facts.PrologDeadline, prologMargin, func(ctx context.Context) error {
		outcome, err := opener.Open(ctx, job, law)
		n.log.Info().Str("outcome", string(outcome)).AnErr("error", err).Dur("ms", time.Since(began)).Send()
		if outcome == prolog.Failed {
			return err
		}
		return nil
	})
}

func readPolicy(path string) (policy.Policy, error) {
	law, err := policyfile.Load(path)
	if err != nil {
		return policy.Policy{}, fmt.Errorf("cannot read policy: %w", err)
	}
	return law.Policy(), nil
}

// Epilog is the door of the epilog.
func Epilog(p cli.Process) int {
	return execute(p, command("epilog", "bring this node back to what it was before a job",
		"epilog runs as slurmd's Epilog= and closes the job's lease. It obeys the lease alone and never the policy.",
		func(paths site.Paths) error { return runEpilog(p, paths) }))
}

const epilogMargin = 5 * time.Second

func runEpilog(p cli.Process, paths site.Paths) error {
	began := time.Now()
	job, err := slurm.ReadJob(slurm.NewEnviron(p.Env), slurm.Epilog)
	if err != nil {
		return err
	}
	n, factsErr, err := open(paths, "epilog", job.ID)
	if err != nil {
		return err
	}
	defer n.close()
	if factsErr != nil {
		n.log.Error().Err(factsErr).Msg("going on with the default facts")
	}
	return within(n.facts.EpilogDeadline, epilogMargin, func(ctx context.Context) error {
		err := n.closer().Close(ctx, job.ID)
		n.log.Info().Bool("closed", err == nil).AnErr("error", err).Dur("ms", time.Since(began)).Send()
		return err
	})
}
