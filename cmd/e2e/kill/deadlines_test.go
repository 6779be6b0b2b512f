// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// These are the deadlines of the tests, and the bounds that docs/contract.md (T1) sets. Beyond its deadline, the
// prolog has time for its undo and its trial. The epilog has time to end.
const (
	prologDeadline = 5 * time.Second
	prologBound    = prologDeadline + 45*time.Second
	epilogDeadline = 10 * time.Second
	epilogBound    = epilogDeadline + 5*time.Second
)

// timedTestNode returns a node with short deadlines, and a job on it.
func timedTestNode(t *testing.T) (testNode, testnode.Job) {
	t.Helper()
	p := shapes[0].stand(t)
	p.Facts(fmt.Sprintf("prolog_deadline = %q", prologDeadline), fmt.Sprintf("epilog_deadline = %q", epilogDeadline))
	return p, p.Job(7, "0")
}

// timed has a place for each timed subtest that runs. If all ran at once, they would take the processors from each
// other when they start, and miss their deadlines.
var timed = make(chan struct{}, 6)

// atOnce runs subtests at the same time, because they spend most of their time waiting.
func atOnce[C any](t *testing.T, cases []C, name func(C) string, try func(*testing.T, C)) {
	t.Helper()
	t.Parallel()
	var all sync.WaitGroup
	for _, c := range cases {
		all.Go(func() {
			timed <- struct{}{}
			defer func() { <-timed }()
			t.Run(name(c), func(t *testing.T) { try(t, c) })
		})
	}
	all.Wait()
}

// within runs a binary. It checks the exit code and that the run took no longer than the bound.
func (p testNode) within(bound time.Duration, code int, job testnode.Job, program string) string {
	p.T.Helper()
	began := time.Now()
	out := p.Must(code, job, program)
	took := time.Since(began)
	p.T.Logf("%s: code %d after %v", program, code, took.Round(10*time.Millisecond))
	if took > bound {
		p.T.Errorf("%s took %v: want at most %v\n%s", program, took, bound, p.Log())
	}
	return out
}

// hang makes an NVML function take 15 minutes.
func (p testNode) hang(function string) {
	p.T.Helper()
	must.OK(p.T, p.Sim.Node.Delay(function, 900_000))
}

// answer ends the delay of every NVML function.
func (p testNode) answer() {
	p.T.Helper()
	delays := filepath.Join(p.Sim.Node.Dir, "delay_ms")
	entries, err := os.ReadDir(delays)
	for _, entry := range entries {
		if err == nil {
			err = os.Remove(filepath.Join(delays, entry.Name()))
		}
	}
	must.OK(p.T, err)
}

// stop stops every MPS process on the node, daemons and servers.
func (p testNode) stop() {
	p.T.Helper()
	var pids []int
	p.Until("daemon and server that answer", func() bool {
		var err error
		pids, err = p.Processes()
		return err == nil && len(pids) >= 2
	})
	for _, pid := range pids {
		stat, err := proc.ReadStat(pid)
		if err == nil {
			err = stat.Kill(syscall.SIGSTOP)
		}
		must.OK(p.T, err)
	}
}

// hold locks a file of the state until the test ends or the returned function is called.
func (p testNode) hold(name string) (release func()) {
	p.T.Helper()
	path := filepath.Join(p.Paths().Run(), name)
	must.OK(p.T, os.MkdirAll(filepath.Dir(path), 0o755))
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	must.OK(p.T, err)
	p.T.Cleanup(func() { file.Close() })
	return func() { file.Close() }
}

// A prolog ends in time whatever hangs or fails. It leaves the node quiet, or a lease by which the epilog makes the
// node quiet.
//
// Contract: T1, T2
func TestAPrologEndsInTime(t *testing.T) {
	e2e.JoinSweep(t, "points")
	type wait struct {
		name   string
		breaks func(testNode)
		code   int
		dirty  bool // the undo needs the call that hangs
	}
	atOnce(t, []wait{
		{"NVML hangs when it is opened", func(p testNode) { p.hang("nvmlInit_v2") }, 1, false},
		{"NVML hangs when it is asked for the GPU", func(p testNode) { p.hang("nvmlDeviceGetUUID") }, 1, false},
		{"NVML hangs when it is asked for the mode", func(p testNode) { p.hang("nvmlDeviceGetComputeMode") }, 1, false},
		{"NVML hangs when it sets the mode", func(p testNode) { p.hang("nvmlDeviceSetComputeMode") }, 1, true},
		{"the control program hangs when it starts the daemon", func(p testNode) { p.Control(`exec sleep 900`) }, 1, false},
		{"the control program hangs and has children that hang", func(p testNode) { p.Control(`sleep 900 & sleep 900`) }, 1, false},
		{"the control program hangs when it asks", func(p testNode) { p.Control(`[ "$1" = -d ] && exec $REAL "$@"; exec sleep 900`) }, 1, false},
		{"the daemon is stopped at once", func(p testNode) {
			p.Control(`$REAL "$@" || exit; [ "$1" = -d ] && kill -STOP $(cat $CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid)`)
		}, 1, false},
		{"the daemon answers each command after a quarter of an hour", func(p testNode) { p.Fault("slow_ms", "900000") }, 1, false},
		{"the server takes a quarter of an hour to start", func(p testNode) { p.Fault("server_start_ms", "900000") }, 0, false},
		{"the server dies at its start", func(p testNode) { p.Fault("server_dies_at_start", "1") }, 0, false},
		{"another process holds the journal", func(p testNode) { p.hold("lock") }, 1, false},
		{"another process holds the job's lock", func(p testNode) { p.hold("locks/7") }, 1, false},
	}, func(c wait) string { return c.name }, func(t *testing.T, c wait) {
		p, job := timedTestNode(t)
		c.breaks(p)
		p.within(prologBound, c.code, job, "prolog")
		switch left := p.Leftovers(); {
		case c.code == 0:
			p.opened(job.ID)
		case c.dirty:
			p.didTheRest()
		case len(left) > 0 && fmt.Sprint(left) != "[file locks/7]": // in one case the test itself holds this file
			t.Errorf("left behind: %q\n%s", left, p.Log())
		}
	})
}

// An epilog ends in time whatever hangs. It restores what it can and keeps the lease for the rest, and the next
// epilog finishes when nothing hangs any more.
//
// Contract: T1, T2
func TestAnEpilogEndsInTime(t *testing.T) {
	e2e.JoinSweep(t, "points")
	everythingStopped := func(p testNode) {
		cmd := p.Client(7, "spin", "-ms", "5", "-for", "900")
		p.stop()
		_ = cmd.Process.Signal(syscall.SIGSTOP)
	}
	type wait struct {
		name   string
		breaks func(testNode) (mends func())
		code   int
	}
	atOnce(t, []wait{
		{"daemon, server and client are stopped", func(p testNode) func() { everythingStopped(p); return nil }, 0},
		{"daemon, server and client are stopped, and NVML hangs",
			func(p testNode) func() { everythingStopped(p); p.hang("nvmlDeviceGetComputeMode"); return p.answer }, 1},
		{"NVML hangs when it is opened", func(p testNode) func() { p.hang("nvmlInit_v2"); return p.answer }, 1},
		{"NVML hangs when it sets the mode", func(p testNode) func() { p.hang("nvmlDeviceSetComputeMode"); return p.answer }, 1},
		{"the control program hangs", func(p testNode) func() { p.Control(`exec sleep 900`); return nil }, 0},
		{"the daemon answers each command after a quarter of an hour", func(p testNode) func() { p.Fault("slow_ms", "900000"); return nil }, 0},
		{"another process holds the journal", func(p testNode) func() { return p.hold("lock") }, 1},
		{"another process holds the job's lock", func(p testNode) func() { return p.hold("locks/7") }, 1},
	}, func(c wait) string { return c.name }, func(t *testing.T, c wait) {
		p := shapes[0].stand(t)
		p.Facts(fmt.Sprintf("epilog_deadline = %q", epilogDeadline))
		job := p.Job(7, "0")
		p.Must(0, job, "prolog")
		p.opened(job.ID)
		mends := c.breaks(p)
		p.within(epilogBound, c.code, job, "epilog")
		if mends != nil {
			p.didTheRest()
			mends()
			p.within(epilogBound, 0, job, "epilog")
		}
		p.Clean()
	})
}

// small puts the state on a file system with a limited number of blocks and inodes. 0 means no limit.
func (p testNode) small(blocks, inodes int) {
	p.T.Helper()
	run := p.Paths().Run()
	must.OK(p.T, os.MkdirAll(run, 0o755))
	limits := fmt.Sprintf("mode=755,size=%d,nr_inodes=%d", blocks*os.Getpagesize(), inodes)
	if err := unix.Mount("small", run, "tmpfs", 0, limits); err != nil {
		p.T.Fatalf("cannot mount a tmpfs: %v: give the container CAP_SYS_ADMIN", err)
	}
	p.T.Cleanup(func() { _ = unix.Unmount(run, unix.MNT_DETACH) })
}

// However little space /run has, a prolog opens the lease or leaves nothing behind, and the epilog closes the lease.
// Eight inodes belong to the store itself.
func TestASmallRun(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	p, job := timedTestNode(t)
	opened := 0
	try := func(t *testing.T, blocks, inodes int) {
		p := testNode{p.Again(t)}
		p.small(blocks, inodes)
		result, err := p.Run(p.Ctx, job.Environment("prolog_slurmd"), "prolog")
		switch {
		case err != nil || result.Code > 1:
			t.Errorf("%+v, %v\n%s", result, err, p.Log())
		case result.Code == 0:
			opened++
		default:
			p.Clean()
			lacks, other := ": df "+p.Paths().Run(), "inode"
			if inodes > 0 {
				lacks, other = ": df -i "+p.Paths().Run(), "no space left"
			}
			if said := result.Output; !strings.Contains(said, lacks) || strings.Contains(said, other) {
				t.Errorf("the prolog prints %q: want %q, without %q", said, lacks, other)
			}
		}
		p.Close(job)
	}
	var blocks, inodes []int
	for n := range 20 {
		blocks = append(blocks, 1+n)
	}
	for n := range 21 {
		inodes = append(inodes, 8+n)
	}
	blocks, inodes = sample(t, blocks, 1), sample(t, inodes, 1)
	for _, n := range blocks {
		t.Run(fmt.Sprintf("%d blocks", n), func(t *testing.T) { try(t, n, 0) })
	}
	few := opened
	for _, n := range inodes {
		t.Run(fmt.Sprintf("%d inodes", n), func(t *testing.T) { try(t, 0, n) })
	}
	if many := opened - few; !e2e.Named(t) && (few == 0 || few == len(blocks) || many == 0 || many == len(inodes)) {
		t.Errorf("of %d prologs %d opened, and of %d prologs %d: want some of each to fail and some to open", len(blocks), few, len(inodes), many)
	}
}

// A job may fill the file system of its pipe folder, which also has the state. The epilog closes the lease all the
// same. The hooks have their shipped deadlines: this is about space, and beside other tests the short ones pass.
func TestAJobThatFillsRun(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	for _, c := range []struct {
		name           string
		blocks, inodes int
		line           string
	}{
		{"with data", 64, 0, `! cat /dev/zero >fill`},
		{"with files", 0, 64, `n=0; while echo >$n; do n=$((n+1)); done 2>/dev/null`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := shapes[0].stand(t)
			job := p.Job(7, "0")
			p.small(c.blocks, c.inodes)
			p.Must(0, job, "prolog")
			cmd := p.AsUser(7, []string{"/bin/sh", "-c", c.line})
			cmd.Dir = p.Ticket(7).Daemons[0].PipeDir
			e2e.Runs(t, cmd)
			p.Must(0, job, "epilog")
			// On a busy machine its time is over before the folder is empty. It names the folder then, and reap empties it.
			p.Until("empty folder", func() bool { p.MpsctlAs(0, "reap"); return len(p.Leftovers()) == 0 })
		})
	}
}
