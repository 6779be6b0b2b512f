// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// What each part of Stop may take. While a slurmd does not answer, slurmctld of 26.05 ends after more than five
// seconds. Jobs have KillWait (5 s) between SIGTERM and SIGKILL, and then an epilog.
const (
	jobsLimit   = 15 * time.Second
	leftLimit   = 5 * time.Second
	groupsLimit = 5 * time.Second
	masterLimit = 30 * time.Second
)

// Stop cancels the jobs, waits for their epilogs, ends the daemons, and then asks the machine whether anything is left.
// What a job or a hook left running is named in the error: a step daemon and every process with the job's environment
// is ended, a process that has another one is not. A second call returns what the first one did.
func (c *Cluster) Stop() error {
	c.stopOnce.Do(func() {
		if err := c.stop(); err != nil {
			c.stopErr = fmt.Errorf("cannot stop the lab in %s: %w", c.opts.Dir, err)
		}
	})
	return c.stopErr
}

func (c *Cluster) stop() error {
	// On the way out everything is tried, and the errors are joined.
	errs := []error{c.cancelJobs(), c.stopNodes(), c.endJobProcesses()}
	errs = append(errs, stopDaemon(c.controller, masterLimit), stopDaemon(c.munged, endLimit), c.nothingLeft(), c.clearGroups())
	c.keeper.close()
	c.release()
	return errors.Join(errs...)
}

// cancelJobs cancels every job and waits until they are gone, epilogs included. Where a slurmd is missing its jobs
// cannot end in order, and nobody waits for them.
func (c *Cluster) cancelJobs() error {
	if !c.controller.running() || !c.munged.running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), jobsLimit)
	defer cancel()
	if !c.allNodesRun() {
		_, err := c.cancelListed(ctx)
		return err
	}
	err := until(ctx, 50*time.Millisecond, func() (bool, error) {
		left, err := c.cancelListed(ctx)
		return left == 0, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("cannot end the jobs: some are left after %s", jobsLimit)
	}
	return err
}

func (c *Cluster) allNodesRun() bool {
	return !slices.ContainsFunc(c.names, func(name string) bool { return !c.node(name).running() })
}

// cancelListed cancels the jobs that squeue lists and returns how many they are.
func (c *Cluster) cancelListed(ctx context.Context) (int, error) {
	out, err := c.ask(ctx, "squeue", "--noheader", "--format=%A %t")
	if err != nil {
		return 0, err
	}
	left, ids := 0, []string{}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if id, state, ok := strings.Cut(line, " "); ok {
			left++
			if state != "CG" { // completing: cancelled already
				ids = append(ids, id)
			}
		}
	}
	if len(ids) == 0 {
		return left, nil
	}
	// A job that has ended meanwhile makes scancel fail; the next list tells.
	_, err = c.Run(ctx, Root, "scancel", ids...)
	return left, err
}

// stopNodes ends the slurmds side by side. One that waits for a prolog or an epilog does not end by itself before that
// has ended, so the hooks go first where it takes too long.
func (c *Cluster) stopNodes() error {
	errs := make([]error, len(c.names))
	var all sync.WaitGroup
	for i, name := range c.names {
		all.Go(func() {
			d := c.node(name)
			if d == nil || d.end(syscall.SIGTERM, endLimit/2) {
				return
			}
			errs[i] = errors.Join(c.endJobProcesses(), stopDaemon(d, endLimit))
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func stopDaemon(d *daemon, limit time.Duration) error {
	if d == nil || d.end(syscall.SIGTERM, limit) {
		return nil
	}
	if d.end(syscall.SIGKILL, endLimit) {
		return fmt.Errorf("%s did not end within %s of SIGTERM and was killed", d.name, limit)
	}
	return fmt.Errorf("%s (pid %d) did not end within %s of SIGKILL", d.name, d.cmd.Process.Pid, endLimit)
}

// endJobProcesses kills the step daemons, the jobs' processes and the hooks that outlived their cluster's order, until
// there are none.
func (c *Cluster) endJobProcesses() error {
	ctx, cancel := context.WithTimeout(context.Background(), leftLimit)
	defer cancel()
	return until(ctx, 10*time.Millisecond, func() (bool, error) {
		found, err := members(c.opts.Dir, c.since)
		if err != nil {
			return false, err
		}
		jobs := slices.DeleteFunc(found, func(p process) bool { return !p.jobs })
		for _, p := range jobs {
			if err := kill(p.Process); err != nil {
				return false, err
			}
		}
		return len(jobs) == 0, nil
	})
}

// hangUp is how long a shell has to give its terminal back after SIGHUP.
const hangUp = time.Second

// EndClients ends the processes that have this cluster's configuration and are neither its own, nor a job's, nor above
// this process: shells of people who work with the cluster, and what they have started. Call it before Stop, which
// takes such processes for a fault.
func (c *Cluster) EndClients() error {
	ctx, cancel := context.WithTimeout(context.Background(), leftLimit)
	defer cancel()
	began := time.Now()
	return until(ctx, 10*time.Millisecond, func() (bool, error) {
		found, err := members(c.opts.Dir, c.since)
		if err != nil {
			return false, err
		}
		clients := slices.DeleteFunc(found, func(p process) bool { return p.jobs || c.own(p.PID) })
		sig := syscall.SIGHUP
		if time.Since(began) > hangUp {
			sig = syscall.SIGKILL
		}
		for _, p := range clients {
			if err := p.Kill(sig); err != nil {
				return false, err
			}
		}
		return len(clients) == 0, nil
	})
}

// own reports whether a process is a daemon of the cluster, or was started by one, as a hook is.
func (c *Cluster) own(pid int) bool {
	daemons := map[int]bool{}
	c.mu.Lock()
	for _, d := range c.nodes {
		daemons[d.cmd.Process.Pid] = true
	}
	c.mu.Unlock()
	for _, d := range []*daemon{c.munged, c.controller} {
		if d != nil {
			daemons[d.cmd.Process.Pid] = true
		}
	}
	for pid > 1 && !daemons[pid] {
		st, err := readStat(pid)
		if err != nil {
			return true // it has ended
		}
		pid = st.parent
	}
	return daemons[pid]
}

// nothingLeft waits until no process of the cluster is there; clients such as srun take a moment to see its end.
func (c *Cluster) nothingLeft() error {
	ctx, cancel := context.WithTimeout(context.Background(), leftLimit)
	defer cancel()
	var left []process
	err := until(ctx, 10*time.Millisecond, func() (done bool, err error) {
		left, err = members(c.opts.Dir, c.since)
		return len(left) == 0, err
	})
	if len(left) == 0 {
		return err
	}
	names := make([]string, len(left))
	for i, p := range left {
		names[i] = p.String()
	}
	return fmt.Errorf("left running: %s", strings.Join(names, ", "))
}

func (c *Cluster) clearGroups() error {
	if !c.opts.ConstrainDevices {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), groupsLimit)
	defer cancel()
	return removeGroups(ctx, c.names)
}
