// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// These limits bound the parts of Stop. While a slurmd does not answer, slurmctld of 26.05 needs more than five
// seconds to end. Jobs have KillWait (5 s) between SIGTERM and SIGKILL, and then an epilog.
const (
	jobsLimit   = 15 * time.Second
	leftLimit   = 5 * time.Second
	groupsLimit = 5 * time.Second
	masterLimit = 30 * time.Second
)

// Stop cancels the jobs, waits for their epilogs, ends the daemons, and then checks that no process is left. If a job
// or a hook left a process running, the error names it. Stop kills step daemons and every process with the job's
// environment. It does not kill a process with another environment. A second call returns the result of the first
// call.
func (c *Cluster) Stop() error {
	c.stopOnce.Do(func() {
		if err := c.stop(); err != nil {
			c.stopErr = fmt.Errorf("cannot stop the lab in %s: %w", c.opts.Dir, err)
		}
	})
	return c.stopErr
}

func (c *Cluster) stop() error {
	// Each step runs even if an earlier step failed. The errors are joined.
	errs := []error{c.cancelJobs(), c.stopNodes(), c.endJobProcesses()}
	errs = append(errs, stopDaemon(c.controller, masterLimit), stopDaemon(c.munged, endLimit), c.nothingLeft(), c.clearGroups())
	c.keeper.close()
	c.release()
	return errors.Join(errs...)
}

// cancelJobs cancels every job and waits until all jobs and their epilogs have ended. If a slurmd is missing, its
// jobs cannot end in order, so cancelJobs does not wait.
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

// cancelListed cancels the jobs that squeue lists, and returns their number.
func (c *Cluster) cancelListed(ctx context.Context) (int, error) {
	out, err := c.ask(ctx, "squeue", "--noheader", "--format=%A %t")
	if err != nil {
		return 0, err
	}
	left, ids := 0, []string{}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if id, state, ok := strings.Cut(line, " "); ok {
			left++
			if state != "CG" { // completing, so already cancelled
				ids = append(ids, id)
			}
		}
	}
	if len(ids) == 0 {
		return left, nil
	}
	// scancel fails if a job has just ended. The next list shows this.
	_, err = c.Run(ctx, Root, "scancel", ids...)
	return left, err
}

// stopNodes ends the slurmds in parallel. A slurmd that waits for a prolog or an epilog does not end before the hook
// has ended. So stopNodes kills the hooks first if a slurmd takes too long.
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

// endJobProcesses kills the step daemons, the jobs' processes and the hooks that still run, until there are none.
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

// hangUp is the time that a shell has after SIGHUP to restore its terminal.
const hangUp = time.Second

// EndClients ends the processes that use this cluster's configuration, except the cluster's own, a job's, and this
// process with its ancestors. Such processes are shells of people who work with the cluster, and the processes that
// these shells started. Call EndClients before Stop, because Stop reports such processes as an error.
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

// own reports whether a process is a daemon of the cluster, or a process that such a daemon started, for example a
// hook.
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
		st, err := proc.StatNow(pid)
		if err != nil {
			return true // it has ended
		}
		pid = st.Parent
	}
	return daemons[pid]
}

// nothingLeft waits until no process of the cluster is left. A client such as srun needs a moment to notice the
// cluster's end.
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

// process is a process that belongs to a cluster.
type process struct {
	proc.Process
	name string // comm
	jobs bool   // a step daemon, a job's process or a hook; stopping the cluster must end it
}

func (p process) String() string { return fmt.Sprintf("%s (pid %d)", p.name, p.PID) }

// members finds the processes of the cluster below dir. A member has the cluster's SLURM_CONF, or it has its program,
// its working directory or an open file below dir. Processes older than the cluster, zombies, and this process with
// its ancestors are not members. A process without any of these properties cannot be recognised.
func members(dir string, since uint64) ([]process, error) {
	pids, err := proc.PIDs()
	if err != nil {
		return nil, err
	}
	mine := ancestors()
	var found []process
	for _, pid := range pids {
		if mine[pid] {
			continue
		}
		// A process that ends during the check gives an error or looks empty. It is then no member.
		if p, ok := member(pid, dir, since); ok {
			found = append(found, p)
		}
	}
	return found, nil
}

func member(pid int, dir string, since uint64) (process, bool) {
	stat, err := proc.StatNow(pid)
	if err != nil || stat.State == 'Z' || stat.State == 'X' || stat.Start < since {
		return process{}, false
	}
	name, err := proc.Name(pid)
	if err != nil {
		return process{}, false
	}
	p := process{Process: stat.Process, name: name}
	env := proc.Variables(context.Background(), p.Process, "SLURM_CONF", "SLURM_JOB_ID").Values
	holds := holdsBelow(pid, dir)
	configured := env["SLURM_CONF"] == confPath(dir)
	_, inJob := env["SLURM_JOB_ID"]
	p.jobs = holds && strings.HasPrefix(name, "slurmstepd") || configured && inJob
	return p, holds || configured
}

// holdsBelow reports whether a process has its program, its working directory or an open file below dir.
func holdsBelow(pid int, dir string) bool {
	root := fmt.Sprintf("/proc/%d", pid)
	links := []string{root + "/exe", root + "/cwd"}
	fds, _ := os.ReadDir(root + "/fd")
	for _, fd := range fds {
		links = append(links, filepath.Join(root, "fd", fd.Name()))
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && (target == dir || strings.HasPrefix(target, dir+"/")) {
			return true
		}
	}
	return false
}

// ancestors returns this process, its parent, and so on.
func ancestors() map[int]bool {
	found := map[int]bool{}
	for pid := os.Getpid(); pid > 0 && !found[pid]; {
		found[pid] = true
		stat, err := proc.StatNow(pid)
		if err != nil {
			break
		}
		pid = stat.Parent
	}
	return found
}

// kill ends a process with SIGKILL if the pid still belongs to that process.
func kill(p proc.Process) error { return Heard(func() error { return p.Kill(unix.SIGKILL) }) }

// bootTicks returns the current time in the unit of a process's start time: a hundredth of a second since the boot.
// The unit is USER_HZ, which is 100 on every architecture that has NVIDIA GPUs.
func bootTicks() (uint64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, fmt.Errorf("cannot read the clock: %w", err)
	}
	return uint64(now.Nano() / 1e7), nil
}
