// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

// newJob makes job 7 on a node: its ticket, and a socket in place of its daemon's. It has GPU 3 of the node.
func newJob(t *testing.T) (paths site.Paths, store *lease.Store, ticket lease.Ticket) {
	t.Helper()
	must.Root(t)
	dir, err := os.MkdirTemp("/tmp", "mps") // a socket's path is short
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	boot, err1 := proc.BootID()
	self, err2 := proc.Current()
	listener, err3 := net.Listen("unixpacket", filepath.Join(dir, "control"))
	paths = site.Paths{Root: dir}
	store, err4 := lease.Open(paths.Run(), boot)
	must.OK(t, errors.Join(err1, err2, err3, err4, os.Mkdir(filepath.Join(dir, "exchange"), 0o700)))
	t.Cleanup(func() { listener.Close() })
	ticket = lease.Ticket{
		Job: lease.Job{ID: 7}, Grant: policy.DefaultGrant(), ExchangeDir: filepath.Join(dir, "exchange"),
		Daemons: []lease.Daemon{{Devices: []site.UUID{"GPU-3"}, PipeDir: dir, LogDir: dir, Proc: self}},
		Devices: []lease.TicketDevice{{Device: site.Device{UUID: "GPU-3", Minor: 3, SMs: 132, TPC: 2}}},
	}
	must.OK(t, errors.Join(os.MkdirAll(store.JobDir(7), 0o755), store.WriteTicket(ticket)))
	return paths, store, ticket
}

// full says that a GPU has no room for some time.
func full(t *testing.T, store *lease.Store, minor int, wait time.Duration) {
	t.Helper()
	if wait == 0 {
		return
	}
	room := lease.Room{GPUs: []lease.FullGPU{{Minor: minor, Dead: 1, Until: time.Now().Add(wait)}}}
	must.OK(t, store.SaveRoom(7, room))
}

// A task that Slurm starts waits for room on its GPU, and the first task of the node says so after a second.
func TestATaskWaitsForRoom(t *testing.T) {
	for _, c := range []struct {
		name       string
		minor      int
		wait, took time.Duration
		localID    int
		says       bool
	}{
		{"there is room", 3, 0, 0, 0, false},
		{"another GPU has none", 2, 5 * time.Second, 0, 0, false},
		{"for half a second", 3, 500 * time.Millisecond, 500 * time.Millisecond, 0, false},
		{"for three seconds", 3, 3 * time.Second, 3 * time.Second, 0, true},
		{"another task", 3, 3 * time.Second, 3 * time.Second, 1, false},
	} {
		paths, store, _ := newJob(t)
		synctest.Test(t, func(t *testing.T) {
			full(t, store, c.minor, c.wait)
			var out bytes.Buffer
			env := []string{
				"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=0", fmt.Sprintf("SLURM_LOCALID=%d", c.localID),
				"SLURM_GTIDS=0,1", "SLURM_NODEID=0", fmt.Sprintf("SLURM_TASK_PID=%d", os.Getpid()),
			}
			began := time.Now()
			run := newRun(os.Getpid(), env, &out, nil)
			run.Paths = paths
			run.printTask()
			if took := time.Since(began); took < c.took || took > c.took+100*time.Millisecond {
				t.Errorf("%s: after %v", c.name, took)
			}
			const line = "print slurm-mps: waited 3s for ranks that ended and may have work on the GPU\n"
			printed := out.String()
			placed := strings.Contains(printed, "export CUDA_MPS_PIPE_DIRECTORY=")
			must.Hold(t, strings.Contains(printed, line) == c.says && placed, "%s: it prints %s", c.name, printed)
		})
	}
}

// The ranks of a launch wait for room, and one of them says so.
func TestRanksWaitForRoom(t *testing.T) {
	paths, store, ticket := newJob(t)
	synctest.Test(t, func(t *testing.T) {
		full(t, store, 3, 4*time.Second)
		var printed [8]bytes.Buffer
		began := time.Now()
		for rank := range printed {
			go func() {
				run := newRun(os.Getpid(), []string{"SLURM_JOB_ID=7"}, nil, &printed[rank])
				run.Paths, run.ticket, run.store = paths, ticket, store
				run.task, run.taskRead = launch.Task{LocalRank: rank, LocalSize: 8, Source: launch.SourceStepd}, true
				run.rank.Task = run.task
				run.placement = &Placement{Ticket: ticket, gpuShare: gpuShare{Device: ticket.Devices[0].Device}}
				if run.waitRoom(run.messages().waits("room")); time.Since(began) < 4*time.Second {
					t.Errorf("rank %d waited %v", rank, time.Since(began))
				}
			}()
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		const line = "mpirun-wrap: waiting for GPU 3: 1 rank that ended may have work there (3s more at most)"
		lines := 0
		for rank := range printed {
			lines += strings.Count(printed[rank].String(), line)
		}
		must.Hold(t, lines == 1, "%d ranks print that they wait", lines)
	})
}

// A rank runs without MPS only if the policy allows it, and never on an exclusive GPU. One rank says so.
//
// Contract: K3
func TestWhichRankRunsWithoutMPS(t *testing.T) {
	off := &unavailableError{cause: errors.New("cannot use MPS on GPU-1: its daemon is gone")}
	for _, c := range []struct {
		name               string
		err                error
		without, exclusive bool
		runs               bool
	}{
		{"the policy does not allow it", off, false, false, false},
		{"the policy allows it", off, true, false, true},
		{"the GPU is exclusive", off, true, true, false},
		{"for another reason", errors.New("no ticket"), true, false, false},
	} {
		var printed bytes.Buffer
		run := newRun(os.Getpid(), []string{"CUDA_MPS_PIPE_DIRECTORY=/x", "A=b"}, nil, &printed)
		run.ticket = lease.Ticket{RunWithoutMPS: c.without, Exclusive: c.exclusive}
		run.placement = &Placement{Sees: []site.UUID{"GPU-1"}}
		environ, err := run.runUnavailable(c.err)
		want := "[]"
		if c.runs {
			want = "[A=b CUDA_VISIBLE_DEVICES=GPU-1]"
		}
		if fmt.Sprint(environ) != want || c.runs != (err == nil) || !c.runs && !errors.Is(err, c.err) ||
			c.exclusive && !strings.Contains(err.Error(), "run_without does not help: the GPU is in EXCLUSIVE_PROCESS mode") {
			t.Errorf("%s: %s, %v", c.name, environ, err)
		}
		if says := strings.Contains(printed.String(), "running without MPS"); says != c.runs {
			t.Errorf("%s: it prints %q", c.name, printed.String())
		}
	}
}

// A rank of prun in a batch script has no place of its own, so it is refused. A slot is a place.
func TestARankWithoutAPlace(t *testing.T) {
	env := slurm.Env{"SLURM_JOB_ID": "7", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0", "PMIX_RANK": "3"}
	const want = "give prun or prterun --personality ompi, or export LOCAL_RANK and LOCAL_WORLD_SIZE, " +
		"or unset PMIX_RANK if no launcher has set it; or give --local-rank and --local-size"
	read := func(o Options) (launch.Task, error) {
		r := run{Env: env, PID: os.Getpid(), Options: o, stepOf: func(int, int) string { return "" }}
		r.readTask()
		return r.task, r.taskErr
	}
	if task, err := read(Options{}); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%+v, %v", task, err)
	}
	for _, n := range []int{8, jobTasks} {
		if task, err := read(Options{Slots: n}); err != nil || task.JobID != 7 {
			t.Errorf("%d slots: %+v, %v", n, task, err)
		}
	}
	env["SLURM_JOB_ID"] = "x"
	if task, err := read(Options{Slots: 8}); err == nil {
		t.Errorf("%+v", task)
	}
}
