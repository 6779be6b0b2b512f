// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// sharedCells are ends in one of two jobs that share a GPU by gres/mps, half of it each. The jobs of one user may share a
// daemon ("user"); otherwise each has its own ("turns").
func (k *kit) sharedCells() (all []cell) {
	for _, c := range []struct{ name, how string }{{"cancelled", "turns"}, {"cancelled", "user"}, {"fault", "turns"}} {
		all = append(all, repeated(c.name+"-"+c.how, 2, func(ctx context.Context, _ *lane) (trial, error) {
			return k.oneOfTwo(ctx, c.name, c.how)
		})...)
	}
	return append(all, repeated("stranger", 2, k.stranger)...)
}

// share makes a site whose GPU is shared, and opens two jobs.
func (k *kit) share(ctx context.Context, how string, others *user.User, attributes ...string) (job, other *lane, err error) {
	folder := filepath.Join(k.folder, "shared")
	gres := fmt.Sprintf("Name=gpu File=/dev/nvidia%d\nName=mps Count=100\n", k.gpu.Minor)
	policy := k.policy(append(attributes, fmt.Sprintf("share_gpu = %q", how))...)
	err = errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, "gres.conf"), []byte(gres), 0o644),
		os.WriteFile(filepath.Join(folder, "slurm.conf"), []byte("NodeName=n1 Gres=gpu:1,mps:100\n"), 0o644),
		os.WriteFile(k.node.Paths().Policy(), []byte(policy), 0o644))
	if err != nil {
		return nil, nil, err
	}
	if job, err = k.openFor(ctx, byProlog, tenant{k.who, 50}); err != nil {
		return nil, nil, errors.Join(err, job.shut())
	}
	if other, err = k.openFor(ctx, byProlog, tenant{others, 50}); err != nil {
		return nil, nil, errors.Join(err, job.shut(), other.shut())
	}
	if k.mib == 0 {
		err = k.measure(ctx, other)
	}
	return job, other, err
}

// unshare closes both jobs and restores the policy.
func (k *kit) unshare(jobs ...*lane) (err error) {
	for _, l := range jobs {
		if l != nil {
			err = errors.Join(err, l.shut())
		}
	}
	return errors.Join(err, os.WriteFile(k.node.Paths().Policy(), []byte(k.policy()), 0o644))
}

// oneOfTwo cancels a job with work in flight, or lets a rank of it write to a wrong address. The other job's ranks
// compute on.
func (k *kit) oneOfTwo(ctx context.Context, end, how string) (t trial, err error) {
	others := k.other
	if how == "user" {
		others = k.who
	}
	job, other, err := k.share(ctx, how, others)
	defer func() { err = errors.Join(err, k.unshare(job, other)) }()
	if err != nil {
		return t, err
	}
	if _, err := other.accompany(ctx); err != nil {
		return t, err
	}
	busy, err := job.start(nil, "spin", "-ms", "5", "-queue", "100", "-blocks", "16", "-for", "60", "-replay")
	if err == nil {
		err = busy.await(ctx, " ready ")
	}
	if err != nil {
		return t, err
	}
	wait.Sleep(ctx, 500*time.Millisecond)
	if end == "cancelled" {
		err = job.shut()
		job = nil
	} else {
		var fault *client
		if fault, err = job.start(nil, "fault"); err == nil && !watch.Until(ctx, 30*time.Second, fault.over) {
			err = errors.New("a client with a fault does not end")
		}
	}
	wait.Sleep(ctx, 2*time.Second)
	works := other.newClient(ctx)
	t = other.judge(ctx, 0)
	t.Good, t.Values = t.Good && works, map[string]any{"new_client": works}
	return t, err
}

// stranger kills a rank with 1 s of work in flight, whose successor needs the memory that it holds, while a job of
// another user computes all the time. The guard may pause the job's own neighbours.
func (k *kit) stranger(ctx context.Context, _ *lane) (t trial, err error) {
	job, other, err := k.share(ctx, "turns", k.other, `hold = "30s"`, `pause = "12s"`)
	defer func() { err = errors.Join(err, k.unshare(job, other)) }()
	if err != nil {
		return t, err
	}
	large := other.part(40)
	busy, err := other.start(nil, "spin", "-ms", "5", "-queue", "10", "-blocks", "16", "-for", "120", "-mib", large)
	if err == nil {
		err = busy.await(ctx, " ready ")
	}
	if err == nil {
		_, err = job.accompany(ctx, "-mib", "1000")
	}
	if err != nil {
		return t, err
	}
	victim, err := job.start(nil, "spin", "-ms", "5", "-queue", "200", "-replay", "-blocks", "16", "-for", "60", "-mib", large)
	if err == nil {
		err = victim.await(ctx, " ready ")
	}
	if err != nil {
		return t, err
	}
	wait.Sleep(ctx, time.Second)
	before := k.pauses()
	victim.kill(unix.SIGKILL)
	began := time.Now()
	next, err := job.start(nil, "spin", "-ms", "5", "-for", "1", "-mib", large)
	if err != nil {
		return t, err
	}
	watch.Until(ctx, 50*time.Second, next.over)
	_, done := next.heard(` done kernels=[1-9]`)
	t = job.judge(ctx, 0)
	t.Good = t.Good && done == 1 && !busy.over()
	t.Values = map[string]any{"next_works": done == 1, "took": time.Since(began).Seconds(), "pauses": k.pauses() - before,
		"stranger_lives": !busy.over(), "failure": firstWords(next)}
	return t, nil
}

// pauses counts the pauses that guards have logged.
func (k *kit) pauses() int {
	log, _ := os.ReadFile(k.node.Paths().Log())
	return strings.Count(string(log), `"paused_ms"`)
}
