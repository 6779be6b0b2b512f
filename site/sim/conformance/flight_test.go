// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a client leaves in flight, and who has its files: the neighbour lives or dies. A queue of 150 kernels of 5 ms is
// 0.75 s of work, as the matrix products were with which it was measured (docs/measurements).
var queue = []string{"-ms", "5", "-queue", "150"}

// beside starts a server on the first GPU with two clients: a neighbour that computes, and a victim.
func beside(t *testing.T, victimArgs ...string) (d *daemon, server int, victim, neighbour *spinner) {
	t.Helper()
	d = start(t, "CUDA_VISIBLE_DEVICES="+under.gpus[0])
	server = d.server()
	neighbour = d.neighbour()
	victim = d.spin(nil, append([]string{"-for", "30"}, victimArgs...)...)
	return d, server, victim, neighbour
}

// held are duplicates of a process's driver files, as somebody outside has them. They are closed the memory driver's
// first and the control device's last.
type held []int

func hold(t *testing.T, pid int) *held {
	t.Helper()
	files := &held{}
	t.Cleanup(files.release)
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	for _, kind := range []string{"nvidia-uvm", "nvidia", "nvidiactl"} {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, link := range links {
			to, _ := os.Readlink(link)
			name := to[strings.LastIndex(to, "/")+1:]
			if !strings.Contains(to, "/dev/nvidia") || strings.TrimRight(name, "0123456789") != kind {
				continue
			}
			number, _ := strconv.Atoi(filepath.Base(link))
			file, err := unix.PidfdGetfd(pidfd, number, 0)
			if err != nil {
				t.Fatal(err)
			}
			*files = append(*files, file)
		}
	}
	if len(*files) < 4 {
		t.Fatalf("process %d has %d driver files", pid, len(*files))
	}
	return files
}

// release closes those that are left.
func (h *held) release() {
	for len(*h) > 0 {
		h.next()
	}
}

// next closes one.
func (h *held) next() {
	unix.Close((*h)[0])
	*h = (*h)[1:]
}

// terminate_client with more than one longer kernel in flight takes the neighbours along, though it answers 0. One
// kernel of any length does not, nor do short ones in any number. On the H200 a queue of PyTorch's matrix products
// did so, in 1 of 1 trials by SIGTERM and 1 of 1 by exit(0), and a queue of this client's did not, in 4 of 4
// (docs/measurements/12-h200/ends-3.csv, conformance.txt): what makes the difference is not known, so the simulation
// takes the neighbours along in both.
func TestTerminateClientWithAQueue(t *testing.T) {
	for _, c := range []struct {
		args []string
		dies bool
	}{
		{queue, true},
		{[]string{"-ms", "5", "-queue", "150", "-replay"}, true},
		{[]string{"-ms", "70", "-queue", "10", "-once"}, true},
		{[]string{"-ms", "400"}, false},
		{[]string{"-ms", "inf"}, false},
		{[]string{"-ms", "0.1", "-queue", "1000"}, false},
		{[]string{"-ms", "0"}, false},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			if c.dies {
				onlySimulated(t, "the H200 does it to PyTorch's neighbours, not to this client's")
			}
			d, server, victim, neighbour := beside(t, append([]string{"-hold", "0.5"}, c.args...)...)
			time.Sleep(inFlight)
			if got := d.ask(fmt.Sprintf("terminate_client %d %d", server, victim.pid())); got != "0" {
				t.Errorf("terminate_client: %q", got)
			}
			victim.fails("terminate_client", 810)
			if c.dies {
				neighbour.fails("terminate_client", 700)
			} else {
				neighbour.survives("terminate_client")
			}
			eventually(t, "new clients work", 5*time.Second, func() bool { return d.info().err == 0 })
		})
	}
}

// To hold the files does not help beside terminate_client.
func TestTerminateClientWithAQueueAndHeldFiles(t *testing.T) {
	onlySimulated(t, "the H200 does it to PyTorch's neighbours, not to this client's")
	needsRoot(t)
	d, server, victim, neighbour := beside(t, "-ms", "5", "-queue", "600")
	time.Sleep(inFlight)
	files := hold(t, victim.pid())
	if got := d.ask(fmt.Sprintf("terminate_client %d %d", server, victim.pid())); got != "0" {
		t.Errorf("terminate_client: %q", got)
	}
	victim.signal(syscall.SIGKILL)
	neighbour.fails("terminate_client", 700)
	files.release()
}

// ends are the ways in which a process ends that has work in flight: a SIGKILL, or by itself.
var ends = []string{"SIGKILL", "exit:0", "_exit:0", "exit:3", "_exit:3", "signal:11", "signal:6", "alloc"}

// dyingOf starts a neighbour, and a victim that has work in flight and ends within a second unless end is SIGKILL.
func dyingOf(t *testing.T, end string, work []string) (d *daemon, victim, neighbour *spinner) {
	t.Helper()
	args := append([]string{"-replay"}, work...)
	if end != "SIGKILL" {
		args = append(args, "-end", end, "-after", "0.4")
	}
	d, _, victim, neighbour = beside(t, args...)
	time.Sleep(inFlight)
	return d, victim, neighbour
}

// ended waits for the end of a victim, which it brings about where the victim does not.
func ended(t *testing.T, end string, victim *spinner) {
	t.Helper()
	if end == "SIGKILL" {
		victim.signal(syscall.SIGKILL)
	}
	victim.end()
}

// However a process ends, its neighbours live when somebody has its driver files until the work is done.
func TestEndsWithHeldFiles(t *testing.T) {
	needsRoot(t)
	for _, end := range ends {
		t.Run(end, func(t *testing.T) {
			d, victim, neighbour := dyingOf(t, end, queue)
			files := hold(t, victim.pid())
			ended(t, end, victim)
			time.Sleep(2 * time.Second)
			files.release()
			neighbour.survives("held files")
			if got := d.info(); got.err != 0 {
				t.Errorf("new client: %+v", got)
			}
		})
	}
}

// Where nobody has the files, or lets them go at once, all these ends are alike.
func TestEndsWithFilesReleasedAtOnce(t *testing.T) {
	onlySimulated(t, "with 0.75 s in flight some of the neighbours live")
	for _, end := range ends {
		t.Run(end, func(t *testing.T) {
			d, victim, neighbour := dyingOf(t, end, queue)
			ended(t, end, victim)
			neighbour.fails("end", 700)
			eventually(t, "new clients work", 5*time.Second, func() bool { return d.info().err == 0 })
		})
	}
	t.Run("SIGKILL, held for 5 ms", func(t *testing.T) {
		needsRoot(t)
		_, victim, neighbour := dyingOf(t, "SIGKILL", queue)
		files := hold(t, victim.pid())
		ended(t, "SIGKILL", victim)
		time.Sleep(5 * time.Millisecond)
		files.release()
		neighbour.fails("end", 700)
	})
}

// Short work harms no one, however its process ends.
func TestEndsWithShortWork(t *testing.T) {
	for _, end := range ends {
		t.Run(end, func(t *testing.T) {
			_, victim, neighbour := dyingOf(t, end, []string{"-ms", "0.1", "-queue", "1000"})
			ended(t, end, victim)
			neighbour.survives("end")
		})
	}
}

// The work of dead clients shares the GPU. It is done after the sum of what each had left, and until then the files
// of all are needed.
func TestTheDeadShareTheGPU(t *testing.T) {
	onlySimulated(t, "was measured with matrix products: these kernels go by the clock and do not share a GPU")
	needsRoot(t)
	const victims = 6
	for _, c := range []struct {
		held time.Duration
		dies bool
	}{{2 * time.Second, true}, {5500 * time.Millisecond, false}} {
		t.Run(c.held.String(), func(t *testing.T) {
			d := start(t, "CUDA_VISIBLE_DEVICES="+under.gpus[0])
			d.server()
			neighbour := d.neighbour()
			var dying []*spinner
			var files []*held
			for range victims {
				dying = append(dying, d.spin(nil, append([]string{"-replay", "-for", "30"}, queue...)...))
			}
			time.Sleep(inFlight)
			for _, victim := range dying {
				files = append(files, hold(t, victim.pid()))
			}
			for _, victim := range dying {
				victim.signal(syscall.SIGKILL)
			}
			time.Sleep(c.held)
			for _, each := range files {
				each.release()
			}
			if c.dies {
				neighbour.fails("files held for too short", 700)
			} else {
				neighbour.survives("files held long enough")
			}
		})
	}
}

// A dead client's memory is free when the last of its driver files is closed, and no sooner.
func TestMemoryOfTheDead(t *testing.T) {
	needsRoot(t)
	d := start(t, "CUDA_VISIBLE_DEVICES="+under.gpus[0])
	d.server()
	const allocated = 4096
	before := d.info().free
	taken := func() bool { return d.info().free < before-allocated+64 }
	victim := d.spin(nil, "-ms", "0", "-for", "60", "-mib", fmt.Sprint(allocated))
	files := hold(t, victim.pid())
	if !taken() {
		t.Errorf("free with the client: %d MiB of %d", d.info().free, before)
	}
	victim.signal(syscall.SIGKILL)
	victim.end()
	for len(*files) > 0 {
		if !taken() {
			t.Errorf("free with %d files held: %d MiB of %d", len(*files), d.info().free, before)
		}
		files.next()
	}
	eventually(t, "the memory is free", 5*time.Second, func() bool { return d.info().free >= before-64 })
}

// pipesOf are the pipes that a process has open, by their numbers.
func pipesOf(pid int) map[string]bool {
	found := map[string]bool{}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if to, _ := os.Readlink(link); strings.HasPrefix(to, "pipe:") {
			found[to] = true
		}
	}
	return found
}

// A client has four pipes in common with its server for itself and four for each context; a process without MPS has
// none. They go with the client. What both have from whoever started them is no sign.
func TestPipes(t *testing.T) {
	d := start(t, "CUDA_VISIBLE_DEVICES="+under.gpus[0])
	server := d.server()
	inherited := pipesOf(server)
	for _, c := range []struct {
		stage string
		mps   bool
		want  int
	}{{"load", true, 0}, {"init", true, 4}, {"context", true, 8}, {"context", false, 0}} {
		var variables []string
		if !c.mps {
			variables = []string{"CUDA_MPS_PIPE_DIRECTORY=/nonexistent"}
		}
		s := d.stay(c.stage, variables...)
		clients := pipesOf(s.pid())
		common := func() (count int) {
			for pipe := range pipesOf(server) {
				if clients[pipe] && !inherited[pipe] {
					count++
				}
			}
			return count
		}
		if got := common(); got != c.want {
			t.Errorf("%s, MPS %v: %d pipes in common", c.stage, c.mps, got)
		}
		s.signal(syscall.SIGKILL)
		s.end()
		eventually(t, "the server has closed its ends", 5*time.Second, func() bool { return common() == 0 })
	}
}
