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
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// bareClients starts clients of the floor's daemon.
func (b bench) bareClients(ctx context.Context, gpus, n int) (clients, error) {
	return b.start(ctx, n, nil, func(i int) []string {
		return []string{fmt.Sprintf("CUDA_VISIBLE_DEVICES=%d", i%gpus), "CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(b.floor.daemonDir(0), "pipe")}
	})
}

// heldClients starts clients of a job through the wrapper. It returns when the guard holds their files.
func (b bench) heldClients(ctx context.Context, job uint32, gpus, n int) (clients, error) {
	if n == 0 {
		return nil, nil
	}
	wrapper := filepath.Join(b.dir, "mpirun-wrap") // which the job's user can reach
	content, err := os.ReadFile(filepath.Join(b.node.Bin, "mpirun-wrap"))
	if err == nil {
		err = os.WriteFile(wrapper, content, 0o755)
	}
	if err != nil {
		return nil, err
	}
	all, err := b.start(ctx, n, []string{wrapper, "--root", b.node.Root}, func(i int) []string {
		return []string{fmt.Sprintf("SLURM_JOB_ID=%d", job), "SLURM_STEP_GPUS=" + positions(gpus), fmt.Sprintf("SLURM_GPUS_ON_NODE=%d", gpus)}
	})
	if err == nil {
		err = b.held(ctx, job, n)
	}
	if err != nil {
		all.kill()
	}
	return all, err
}

// clients have a context and compute nothing.
type clients []*exec.Cmd

// start starts n clients, with a program before each and with more environment. It returns when they have their
// contexts.
func (b bench) start(ctx context.Context, n int, before []string, environment func(i int) []string) (all clients, err error) {
	client, libraries := filepath.Join(filepath.Dir(b.node.Bin), "sim", "bin", "cuda-client"), os.Getenv("LD_LIBRARY_PATH")
	if b.node.Sim != nil {
		client, libraries = b.node.Sim.Program("cuda-client"), b.node.Sim.Libraries()
	}
	for i := range n {
		cmd := rank(ctx, slices.Concat(before, []string{client, "spin", "-ms", "0", "-for", "3600"}), i, n)
		cmd.Env = slices.Concat(cmd.Env, environment(i), []string{"LD_LIBRARY_PATH=" + libraries})
		if err := started(cmd); err != nil {
			all.kill()
			return nil, err
		}
		all = append(all, cmd)
	}
	return all, nil
}

// kill kills the clients, and returns when they have ended: after that many milliseconds.
func (all clients) kill() float64 {
	began := time.Now()
	for _, c := range all {
		_ = c.Process.Kill()
	}
	for _, c := range all {
		_ = c.Wait() // it ends by the signal
	}
	return since(began)
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
