// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/closing"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// endClients is the number of clients of a job whose end is measured.
const endClients = 8

// ended is the end of a job whose clients were killed directly before its epilog, as Slurm kills the processes of a
// cancelled job, in turns with that of a daemon without a guard. Milliseconds.
//
// A client's end closes its files, for which the driver takes its time. With a guard, the client ends at once, and the
// guard closes them. So both sides have the time from the kill to the clients' ends, and from there to the end of all:
// by the epilog, or by the daemon's own `quit`.
type ended struct {
	GPUs     int       `json:"gpus"`
	Clients  int       `json:"clients"`
	BareKill []float64 `json:"bare_kill_ms"`
	Quit     []float64 `json:"quit_ms"`
	Kill     []float64 `json:"kill_ms"`
	Epilog   []float64 `json:"epilog_ms"`
}

// ends measures the end of jobs with these numbers of clients on one and on two GPUs.
func ends(built string, real bool, trials int, clients ...int) (all []ended, err error) {
	for _, gpus := range []int{1, 2} {
		if real && gpus > testnode.RealGPUs() {
			break
		}
		err := onNode(built, real, set{GPUs: gpus, Scope: "job"}, manyHooks, func(ctx context.Context, b bench) error {
			own := make([]ended, len(clients))
			err := b.closingSlowly(func(b bench) error {
				for trial := range trials * len(clients) {
					e := &own[trial%len(clients)]
					e.GPUs, e.Clients = gpus, clients[trial%len(clients)]
					if err := b.end(ctx, e, uint32(10_000+trial)); err != nil {
						return err
					}
				}
				return nil
			})
			all = append(all, own...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// closingSlowly calls use with a node on which a guard's closes take the time of a driver. On real GPUs they do.
func (b bench) closingSlowly(use func(bench) error) error {
	if b.node.Sim == nil {
		return use(b)
	}
	launcher := b.node.Sim.Program("slow-guard")
	slow, err := closing.Start(filepath.Join(b.dir, "slow"), b.node.Bin, launcher, closing.PerClient)
	if err != nil {
		return err
	}
	b.node.Bin = slow.Bin
	err = errors.Join(use(b), slow.Stop())
	if err == nil && slow.Slowed() == 0 {
		err = errors.New("no close was slow: the guard held no file of a dead client")
	}
	return err
}

// end measures one end without a guard and one epilog.
func (b bench) end(ctx context.Context, e *ended, id uint32) error {
	b.settle()
	var bare opened
	bareKill := 0.0
	_, quit, err := b.floor.measure(ctx, func() (err error) {
		if bare.clients, err = b.bareClients(ctx, e.GPUs, e.Clients); err == nil {
			bareKill = bare.kill()
		}
		return err
	})
	if err != nil {
		return err
	}
	b.settle()
	j, err := b.openJob(ctx, id, e.GPUs, e.Clients)
	if err != nil {
		return err
	}
	kill := j.kill()
	epilog, err := b.timed(ctx, j.job, "epilog")
	if err != nil {
		return err
	}
	e.BareKill, e.Quit = append(e.BareKill, bareKill), append(e.Quit, quit)
	e.Kill, e.Epilog = append(e.Kill, kill), append(e.Epilog, epilog)
	return nil
}

// bareClients starts clients of the floor's daemon.
func (b bench) bareClients(ctx context.Context, gpus, n int) ([]*exec.Cmd, error) {
	return startAll(n, func(i int) (*exec.Cmd, error) {
		client, libraries := b.client()
		cmd := rank(ctx, append([]string{client}, spin...), i, n)
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+libraries, fmt.Sprintf("CUDA_VISIBLE_DEVICES=%d", i%gpus),
			"CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(b.floor.daemonDir(0), "pipe"))
		return cmd, started(cmd)
	})
}

// opened is an open job with clients.
type opened struct {
	job     testnode.Job
	clients []*exec.Cmd
}

// openJob runs a job's prolog, and starts clients through the wrapper that have a context and compute nothing. It
// returns when the guard holds their files.
func (b bench) openJob(ctx context.Context, id uint32, gpus, clients int) (j opened, err error) {
	j.job = b.job(id, gpus)
	if _, err := b.timed(ctx, j.job, "prolog"); err != nil {
		return j, err
	}
	if err := b.serverReady(ctx, id); err != nil || clients == 0 {
		return j, err
	}
	if _, err := b.copied("mpirun-wrap"); err != nil { // before the clients, which start at once
		return j, err
	}
	j.clients, err = startAll(clients, func(i int) (*exec.Cmd, error) { return b.startClient(ctx, id, gpus, i, clients) })
	if err != nil {
		return j, err
	}
	if err := b.held(ctx, id, clients); err != nil {
		j.kill()
		return j, err
	}
	return j, nil
}

// startAll starts n clients at once, and kills them if one does not start.
func startAll(n int, start func(i int) (*exec.Cmd, error)) ([]*exec.Cmd, error) {
	clients := make([]*exec.Cmd, n)
	err := each(n, func(i int) error {
		client, err := start(i)
		if err == nil {
			clients[i] = client
		}
		return err
	})
	if err != nil {
		opened{clients: slices.DeleteFunc(clients, func(c *exec.Cmd) bool { return c == nil })}.kill()
		return nil, err
	}
	return clients, nil
}

// kill kills the clients, and returns when they have ended: after that many milliseconds.
func (j opened) kill() float64 {
	began := time.Now()
	for _, c := range j.clients {
		_ = c.Process.Kill()
	}
	for _, c := range j.clients {
		_ = c.Wait() // it ends by the signal
	}
	return since(began)
}

// spin are the arguments of a client that has a context and computes nothing.
var spin = []string{"spin", "-ms", "0", "-for", "3600"}

// client is the program of a client, and the folder of its libraries.
func (b bench) client() (program, libraries string) {
	if b.node.Sim != nil {
		return b.node.Sim.Program("cuda-client"), b.node.Sim.Libraries()
	}
	return filepath.Join(filepath.Dir(b.node.Bin), "sim", "bin", "cuda-client"), os.Getenv("LD_LIBRARY_PATH")
}

// startClient starts rank i of n. env replaces variables of the rank.
func (b bench) startClient(ctx context.Context, job uint32, gpus, i, n int, env ...string) (*exec.Cmd, error) {
	wrapper, err := b.copied("mpirun-wrap")
	if err != nil {
		return nil, err
	}
	client, libraries := b.client()
	cmd := rank(ctx, append([]string{wrapper, "--root", b.node.Root, client}, spin...), i, n)
	cmd.Env = append(cmd.Env, fmt.Sprintf("SLURM_JOB_ID=%d", job),
		"SLURM_STEP_GPUS="+positions(gpus), fmt.Sprintf("SLURM_GPUS_ON_NODE=%d", gpus), "LD_LIBRARY_PATH="+libraries)
	cmd.Env = append(cmd.Env, env...)
	return cmd, started(cmd)
}

// started starts a client, and returns when it has its context.
func started(cmd *exec.Cmd) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start client: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil && !strings.Contains(line, "ready") {
		err = fmt.Errorf("it prints %q", line)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		return errors.Join(fmt.Errorf("cannot start client: %w", err), cmd.Wait())
	}
	return nil
}

// copied copies a program to the node's folder, which the job's user can reach, once.
func (b bench) copied(name string) (string, error) {
	to := filepath.Join(b.dir, name)
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	content, err := os.ReadFile(filepath.Join(b.node.Bin, name))
	if err != nil {
		return "", err
	}
	return to, os.WriteFile(to, content, 0o755)
}

// held waits until the guard holds the files of so many clients or more. The guard writes its state once a second.
func (b bench) held(ctx context.Context, job uint32, clients int) error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	store := lease.OpenReadOnly(b.node.Paths().Run(), boot)
	for {
		state, err := store.ReadGuard(job)
		if err == nil && state.Clients >= clients && state.Files >= 2*clients && state.Unheld == 0 {
			return nil
		}
		if !wait.Sleep(ctx, 50*time.Millisecond) {
			err = errors.Join(err, ctx.Err())
			return fmt.Errorf("the guard does not hold the files of %d clients: %+v, %w", clients, state, err)
		}
	}
}

// printEnds compares both ends. A simulated client's own end is no comparison, because it closes regular files.
func printEnds(all []ended) {
	fmt.Println("\n              without a guard         with it")
	fmt.Println("gpus clients     kill    quit     kill  epilog   ratio of both sums   (medians in ms)")
	for _, e := range all {
		bareKill, quit, kill, epilog := median(e.BareKill), median(e.Quit), median(e.Kill), median(e.Epilog)
		fmt.Printf("%4d %7d  %7.1f %7.1f  %7.1f %7.1f   %.2f\n",
			e.GPUs, e.Clients, bareKill, quit, kill, epilog, (kill+epilog)/(bareKill+quit))
	}
}

// rank returns the command that srun runs for task i of n on a node, but without the shell that srun uses.
func rank(ctx context.Context, line []string, i, n int) *exec.Cmd {
	ids := "0"
	for id := 1; id < n; id++ {
		ids += "," + strconv.Itoa(id)
	}
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin", "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_LOCALID=" + strconv.Itoa(i), "SLURM_GTIDS=" + ids,
		"SLURM_STEP_GPUS=0", "SLURM_GPUS_ON_NODE=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: []uint32{gid}}}
	return cmd
}
