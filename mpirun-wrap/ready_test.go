// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

func TestOneRankOfALaunchSaysIt(t *testing.T) {
	folder := t.TempDir()
	var said atomic.Int32
	var all sync.WaitGroup
	for rank := range 48 {
		all.Go(func() {
			if oncePerNode(folder, "step0", "waits", rank) {
				said.Add(1)
			}
		})
	}
	all.Wait()
	if said.Load() != 1 {
		t.Errorf("%d ranks print it", said.Load())
	}
	for _, c := range []struct {
		folder, launch, thing string
		rank                  int
		want                  bool
	}{
		{folder, "step0", "waits", 0, false}, {folder, "step1", "waits", 3, true}, {folder, "step0", "without", 3, true},
		{folder, "step0", "CUDA_MPS_PIPE_DIRECTORY=/a/b", 3, true}, {folder, "step0", "CUDA_MPS_PIPE_DIRECTORY=/a/b", 0, false},
		{"", "step0", "waits", 0, true}, {"", "step0", "waits", 1, false},
		{folder + "/nowhere", "step0", "waits", 0, true}, {folder + "/nowhere", "step0", "waits", 1, false},
	} {
		must.Equal(t, fmt.Sprintf("%+v", c), oncePerNode(c.folder, c.launch, c.thing, c.rank), c.want)
	}
	for launch := range 1000 { // the job's file system has few files
		oncePerNode(folder, fmt.Sprint("step", launch), "waits", 1)
	}
	if files, err := os.ReadDir(folder); err != nil || len(files) != 1 {
		t.Errorf("%d files, %v", len(files), err)
	}
}

func TestTheEnvironmentWithoutMPS(t *testing.T) {
	placement := Placement{Sees: []site.UUID{"GPU-1", "GPU-2"}}
	got := withGPUs([]string{"A=1", "CUDA_MPS_PIPE_DIRECTORY=/dead", "CUDA_VISIBLE_DEVICES=0", "CUDA_MPS_CLIENT_PRIORITY=1", "CUDA_HOME=/c"}, placement.visible())
	if want := []string{"A=1", "CUDA_HOME=/c", "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// asked is an MPS whose daemon has this answer about a server.
type asked struct {
	MPS
	answer func(ctx context.Context, server int) (string, error)
}

func (a asked) ServerStatus(ctx context.Context, _ lease.Ticket, _ lease.Daemon, server int) (string, error) {
	return a.answer(ctx, server)
}

// placementHere is a placement whose daemon is this process.
func placementHere(t *testing.T) (Placement, serverLogFile) {
	t.Helper()
	self := must.Get(proc.Current())(t)
	dir, err := os.MkdirTemp("/tmp", "mps") // a socket's path is short
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	listener := must.Get(net.Listen("unix", filepath.Join(dir, "control")))(t)
	t.Cleanup(func() { listener.Close() })
	log := newLog(t)
	return Placement{gpuShare: gpuShare{Device: site.Device{UUID: "GPU-1"}}, Daemon: lease.Daemon{PipeDir: dir, LogDir: log.dir, Proc: self}}, log
}

// The daemon is asked only if the log contains a fault. An unreadable log is no reason to refuse.
//
// Contract: K1
func TestTheDaemonIsAskedOnlyOfAFault(t *testing.T) {
	for _, c := range []struct {
		name, log string
		asked     int
	}{
		{"no log", "", 0},
		{"no fault", stamp + "Server has started\n", 0},
		{"a fault that is over", faulted + stamp + "Client process 957 disconnected\n" + stamp + "Client process 962 disconnected\n", 0},
		{"a fault by the log alone", faulted, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			placement, log := placementHere(t)
			if c.log != "" {
				log.write(c.log)
			}
			questions := 0
			err := placement.waitReady(t.Context(), asked{answer: func(_ context.Context, server int) (string, error) {
				questions++
				must.Equal(t, "asked for server", server, 829)
				return "ACTIVE", nil
			}}, func(string) { t.Error("the rank waits") }, nil)
			must.Hold(t, err == nil && questions == c.asked, "%v, asked %d times", err, questions)
		})
	}
}

// A waiting rank reports the wait once. It also reads the log, so it need not ask the daemon whether the wait is
// over.
func TestAWaitEndsByTheLog(t *testing.T) {
	placement, log := placementHere(t)
	log.write(faulted)
	var said []string
	err := placement.waitReady(t.Context(), asked{answer: func(context.Context, int) (string, error) {
		if len(said) > 0 {
			log.write(stamp + "Client process 957 disconnected\n" + stamp + "Client process 962 disconnected\n")
		}
		return "", fs.ErrNotExist
	}}, func(what string) { said = append(said, what) }, nil)
	const want = "waiting up to 30s for the MPS server of GPU-1, which recovers from a fatal GPU error: these processes that it hit are still there: 957 962"
	must.Hold(t, err == nil && len(said) == 1 && said[0] == want, "%v, %q", err, said)
}

func TestADaemonThatGoesWhileARankWaits(t *testing.T) {
	placement, log := placementHere(t)
	log.write(faulted)
	err := placement.waitReady(t.Context(), asked{answer: func(context.Context, int) (string, error) {
		return "FAULT", os.RemoveAll(filepath.Join(placement.Daemon.PipeDir, "control"))
	}}, func(string) {}, nil)
	var off *unavailableError
	if !errors.As(err, &off) || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// If the deadline interrupts the last question, the error still reports that the server is in FAULT.
func TestADeadlineInMidQuestion(t *testing.T) {
	for first, want := range map[string]string{"FAULT": "has not recovered from a fatal GPU error", "": "nothing could be learned of it"} {
		placement, log := placementHere(t)
		log.write(faulted)
		ctx, cancel := context.WithCancel(t.Context())
		questions := 0
		err := placement.waitReady(ctx, asked{answer: func(context.Context, int) (string, error) {
			if questions++; questions == 1 && first != "" {
				return first, nil
			}
			cancel()
			return "", site.ErrNoAnswer
		}}, func(string) {}, nil)
		must.Hold(t, err != nil && strings.Contains(err.Error(), want), "after %q: %v, want %q", first, err, want)
	}
}
