// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// crowd is what so many jobs of gres/shard cost a node while each has a client that computes nothing: the guards with
// all processes that they have started, and a run of mpsctl metrics. MPS daemons and clients are not in it.
type crowd struct {
	GPUs      int            `json:"gpus"`
	Jobs      int            `json:"jobs"`
	Processes map[string]int `json:"processes"` // by name
	// RSS counts a page for each process that has it, PSS once in all.
	RSS int `json:"rss_kib"`
	PSS int `json:"pss_kib"`
	// CPU and Switches are of all these processes, in crowdWindow.
	CPU      float64 `json:"cpu_ms_a_minute"`
	Switches float64 `json:"switches_a_second"`
	// Wall and MetricsCPU are of runs of mpsctl metrics, one value each. MetricsCPU is user and system time, with that
	// of the control program, which asks the daemons.
	Wall       []float64 `json:"metrics_wall_ms"`
	MetricsCPU []float64 `json:"metrics_cpu_ms"`
}

const (
	crowdGPUs   = 4
	crowdWindow = time.Minute
)

func crowds(built string, trials int, jobs ...int) (all []crowd, err error) {
	for _, n := range jobs {
		c := crowd{GPUs: crowdGPUs, Jobs: n, Processes: map[string]int{}}
		err := onNode(built, false, set{GPUs: crowdGPUs, Scope: "job"}, manyHooks,
			func(ctx context.Context, b bench) error {
				if err := b.share(n); err != nil {
					return err
				}
				return b.crowd(ctx, &c, trials)
			})
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// share makes the node count shards, as many as jobs.
func (b bench) share(jobs int) error {
	gres := fmt.Sprintf("Name=gpu File=/dev/nvidia[0-%d]\nName=shard Count=%d\n", crowdGPUs-1, max(jobs, crowdGPUs))
	conf := fmt.Sprintf("NodeName=n1 Gres=gpu:%d,shard:%d\n", crowdGPUs, max(jobs, crowdGPUs))
	return errors.Join(os.WriteFile(b.conf, []byte(conf), 0o644),
		os.WriteFile(filepath.Join(b.dir, "gres.conf"), []byte(gres), 0o644))
}

// crowd opens the jobs, measures and ends them.
func (b bench) crowd(ctx context.Context, c *crowd, trials int) (err error) {
	for i := range c.Jobs {
		j, err := b.openShard(ctx, uint32(100+i), i%crowdGPUs)
		if err != nil {
			return err
		}
		defer func() {
			j.kill()
			_, failed := b.timed(ctx, j.job, "epilog")
			err = errors.Join(err, failed)
		}()
	}
	wait.Sleep(ctx, idleAfter)
	if err := b.weigh(c); err != nil {
		return err
	}
	if err := b.spend(ctx, c); err != nil {
		return err
	}
	for range trials {
		if err := b.collect(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// spend measures one window.
func (b bench) spend(ctx context.Context, c *crowd) error {
	before, err := b.spent()
	if err != nil {
		return err
	}
	began := time.Now()
	wait.Sleep(ctx, crowdWindow)
	after, err := b.spent()
	took := time.Since(began)
	c.CPU = (after.cpu - before.cpu) * time.Minute.Seconds() / took.Seconds()
	c.Switches = float64(after.switches-before.switches) / took.Seconds()
	return err
}

// collect runs mpsctl metrics once. It prints, because --out refuses a file below /tmp.
func (b bench) collect(ctx context.Context, c *crowd) error {
	line := b.node.Command("mpsctl", "metrics")
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env, cmd.Dir = []string{}, "/"
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot collect metrics: %w: %s", err, out)
	}
	c.Wall = append(c.Wall, since(began))
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	c.MetricsCPU = append(c.MetricsCPU, float64(used.Microseconds())/1000)
	return nil
}

// openShard runs the prolog of a job with a shard of a GPU, and starts a client of it. The guard holds its files then.
func (b bench) openShard(ctx context.Context, id uint32, gpu int) (j opened, err error) {
	j.job = b.job(id, 1)
	j.job.GPUs = strconv.Itoa(gpu)
	if _, err := b.timed(ctx, j.job, "prolog"); err != nil {
		return j, err
	}
	if err := b.serverReady(ctx, id); err != nil {
		return j, err
	}
	client, err := b.startClient(ctx, id, 1, 0, 1, "SLURM_SHARDS_ON_NODE=1", "SLURM_STEP_GPUS="+j.job.GPUs)
	if err != nil {
		return j, err
	}
	j.clients = append(j.clients, client)
	return j, b.held(ctx, id, 1)
}

// weigh counts the processes and their memory.
func (b bench) weigh(c *crowd) error {
	guards, err := b.node.Guards()
	if err != nil {
		return err
	}
	if len(guards) != c.Jobs {
		return fmt.Errorf("%d jobs have %d guards", c.Jobs, len(guards))
	}
	for _, pid := range trees(guards) {
		name, err := proc.Name(pid)
		if err != nil {
			return err
		}
		rollup, err := os.ReadFile(filepath.Join(proc.Folder(pid), "smaps_rollup"))
		if err != nil {
			return err
		}
		c.Processes[name]++
		values := proc.Numbers(rollup)
		c.RSS += int(values["Rss"])
		c.PSS += int(values["Pss"])
	}
	return nil
}

// trees returns processes with all that they have started.
func trees(pids []int) []int {
	for i := 0; i < len(pids); i++ {
		pids = append(pids, proc.Children(pids[i])...)
	}
	return pids
}

// spent is what the guards and their processes have used so far: ms of processor time, and context switches.
type spent struct {
	cpu      float64
	switches int
}

func (b bench) spent() (spent, error) {
	guards, err := b.node.Guards()
	return spentBy(trees(guards)), err
}

func spentBy(pids []int) (s spent) {
	for _, pid := range pids {
		threads, _ := filepath.Glob(filepath.Join(proc.Folder(pid), "task/*/schedstat"))
		for _, thread := range threads {
			text, _ := os.ReadFile(thread) // none of a thread that has ended
			ran, _, _ := strings.Cut(string(text), " ")
			ns, _ := strconv.Atoi(ran)
			s.cpu += float64(ns) / 1e6
		}
		given, lost := watch.Switches(pid)
		s.switches += given + lost
	}
	return s
}

func printCrowds(all []crowd) {
	fmt.Println("\njobs  processes  resident  proportional   ms a minute  switches a second" +
		"   metrics: wall   processor")
	for _, c := range all {
		processes := 0
		for _, n := range c.Processes {
			processes += n
		}
		fmt.Printf("%4d %10d %6.0f MiB %9.0f MiB %13.1f %18.1f %12.1f ms %8.1f ms\n", c.Jobs, processes,
			float64(c.RSS)/1024, float64(c.PSS)/1024, c.CPU, c.Switches, median(c.Wall),
			median(c.MetricsCPU))
	}
}
