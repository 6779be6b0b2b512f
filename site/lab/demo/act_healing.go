// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

var healing = act{
	title: "The clean-up is killed, and the node heals",
	before: "You see what is left if the epilog of slurm-mps is killed. Slurm runs it after a job. It ends MPS, and it puts the " +
		"GPUs back from EXCLUSIVE_PROCESS, in which only MPS can use them, to DEFAULT.",
	after: "It means: slurm-mps writes down what it will change before it changes it. So mpsctl reap or a second epilog does " +
		"the rest, wherever the first one stopped. Until then Slurm starts no job on the node (it is drained).",
	run: showHealing,
}

func showHealing(ctx context.Context, s showing) error {
	id, err := s.submit(ctx, "--ntasks=2 job.sh")
	if err != nil {
		return err
	}
	epilog, err := s.killEpilog(ctx, id)
	if err != nil {
		return err
	}
	s.command("root", fmt.Sprintf("kill -9 %d    # the epilog, just before it puts the modes back", epilog.PID))
	node := s.cluster.Nodes()[0]
	drained := func(state string) bool { return strings.Contains(state, "DRAIN") }
	if _, _, err := s.cluster.WaitNode(ctx, node, drained); err != nil {
		return err
	}
	if err := s.showNode(ctx, 2, "drained"); err != nil {
		return err
	}
	for _, line := range []string{"mpsctl reap", "scontrol update State=RESUME NodeName=" + node} {
		if _, err := s.must(ctx, lab.Root, line); err != nil {
			return err
		}
	}
	if err := s.waitIdle(ctx); err != nil {
		return err
	}
	return s.showNode(ctx, 0, "idle")
}

// setMode is the function of the driver's library that changes a GPU's mode.
const setMode = "nvmlDeviceSetComputeMode"

// killEpilog kills the epilog of a running job before the epilog restores a compute mode. During this time the driver
// does not answer, so the epilog cannot continue.
func (m *machine) killEpilog(ctx context.Context, job uint32) (epilog proc.Process, err error) {
	boot, err := proc.BootID()
	if err != nil {
		return epilog, err
	}
	journal := lease.OpenReadOnly(m.node.Paths().Run(), boot)
	opened := func() bool { _, err := journal.ReadTicket(job); return err == nil }
	if err := until(ctx, "the prolog", opened); err != nil {
		return epilog, err
	}
	if err := m.node.Sim.Node.Delay(setMode, 900_000); err != nil {
		return epilog, err
	}
	ended := func() bool { return len(m.logged("epilog", job, "daemon ended")) > 0 }
	err = until(ctx, "the epilog", ended)
	found := m.running("epilog")
	for _, epilog = range found { // also after an error, because the epilog would hang for a long time
		err = errors.Join(err, epilog.Kill(syscall.SIGKILL))
	}
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%d epilogs run, not 1", len(found))
	}
	return epilog, errors.Join(err, m.mendNVML())
}

// mendNVML makes the driver answer again.
func (m *machine) mendNVML() error {
	if m.node.Sim == nil {
		return nil
	}
	return os.RemoveAll(filepath.Join(m.node.Sim.Node.Dir, "delay_ms"))
}

// running returns the processes that run one of the machine's programs.
func (m *machine) running(program string) (found []proc.Process) {
	pids, _ := proc.PIDs()
	for _, pid := range pids {
		stat, err := proc.ReadStat(pid)
		if name, _ := proc.Name(pid); err != nil || name != program {
			continue
		}
		line := proc.CommandLines(context.Background(), []proc.Process{stat.Process})[0]
		if slices.Contains(line.Args, m.node.Root) {
			found = append(found, stat.Process)
		}
	}
	return found
}

// until waits until the condition is true.
func until(ctx context.Context, what string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for !is() {
		if !wait.Sleep(ctx, 5*time.Millisecond) {
			return fmt.Errorf("cannot wait for %s: %w", what, ctx.Err())
		}
	}
	return nil
}

// showNode prints the modes of the GPUs, the processes of MPS and the node's state. It returns an error if they are
// not as expected.
func (s showing) showNode(ctx context.Context, exclusive int, want string) error {
	modes, err := s.modes()
	if err != nil {
		return err
	}
	processes, err := s.node.Below(s.node.Paths().Run())
	if err != nil {
		return err
	}
	state, err := s.nodeState(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\nThe node now (Slurm: %s), with %d processes of MPS:\n\n", state, len(processes))
	for i, mode := range modes {
		fmt.Fprintf(s.out, "    GPU %d  %s\n", i, mode)
	}
	kept := len(slices.DeleteFunc(modes, func(mode string) bool { return mode != "EXCLUSIVE_PROCESS" }))
	if kept != exclusive || len(processes) > 0 || state != want {
		return fmt.Errorf("the node is %s with %d GPUs in EXCLUSIVE_PROCESS and %d processes of MPS, not %s with %d and 0",
			state, kept, len(processes), want, exclusive)
	}
	return nil
}
