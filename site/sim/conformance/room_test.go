// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// These tests show what a dead client still takes, and how a client ends that finds no room: no memory, or no place.

// A client that allocates until there is no more memory gets error 2 while its kernels are in flight. It ends with
// exit code 1. While its files are held, a new client gets error 2, too, because its context needs memory.
func TestAClientThatFillsTheMemory(t *testing.T) {
	alone(t)
	onlySimulated(t, "it takes all memory of a GPU")
	needsRoot(t)
	d, _, victim, neighbour := beside(t, append([]string{"-grow", "4096", "-after", "0.3"}, queue...)...)
	files := hold(t, victim.pid())
	if said := victim.end(); !strings.Contains(said, "alloc err=2 cudaErrorMemoryAllocation") || victim.call.ProcessState.ExitCode() != 1 {
		t.Errorf("the client ends with %v and prints %q", victim.call.ProcessState, said)
	}
	if got := d.client(nil, "alloc", "4096"); !strings.Contains(got.stdout, "err=2(") {
		t.Errorf("a client that needs memory: %q", got.stdout)
	}
	filler := d.run(nil, "spin", "-ms", "0", "-for", "30", "-mib", fmt.Sprint(d.info().free-64))
	eventually(t, "the rest of the memory is taken", answerDeadline, func() bool { return strings.Contains(filler.line(0), "ready") })
	if got := d.info(); got.err != 2 {
		t.Errorf("a client without memory for its context: %+v", got)
	}
	time.Sleep(time.Second)
	files.release()
	eventually(t, "new clients work", soon, func() bool { return d.info().err == 0 })
	neighbour.survives("a client that fills the memory")
}

// The memory and the place of a dead client are taken while any process has any of its files open, also a process
// that inherited them from the holder.
func TestFilesThatAForkHolds(t *testing.T) {
	alone(t)
	needsRoot(t)
	d := start(t, "CUDA_VISIBLE_DEVICES="+under(t).gpus[0])
	d.server()
	const allocated = 4096
	before := d.info().free
	victim := d.spin(nil, "-ms", "0", "-for", "60", "-mib", fmt.Sprint(allocated))
	files := hold(t, victim.pid())
	heir := exec.Command("sleep", "60")
	for _, fd := range *files {
		own := must.Get(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(t)
		heir.ExtraFiles = append(heir.ExtraFiles, os.NewFile(uintptr(own), "duplicate"))
	}
	must.OK(t, heir.Start())
	for _, file := range heir.ExtraFiles {
		file.Close()
	}
	t.Cleanup(func() { heir.Process.Kill(); heir.Wait() })
	files.release()
	victim.signal(syscall.SIGKILL)
	victim.end()
	time.Sleep(200 * time.Millisecond)
	if got := d.info().free; got >= before-allocated+64 {
		t.Errorf("free while a fork holds the files: %d MiB of %d", got, before)
	}
	heir.Process.Kill()
	heir.Wait()
	eventually(t, "the memory is free", soon, func() bool { return d.info().free >= before-64 })
}

// A new client gets error 2 if the dead take all places that the living leave, and error 46 if the living take all. A
// place is free when the last of the files is closed.
func TestPlacesOfTheDead(t *testing.T) {
	alone(t)
	onlySimulated(t, "other processes of a real GPU may take places")
	needsRoot(t)
	const places = 48
	d := start(t, "CUDA_VISIBLE_DEVICES="+under(t).gpus[0])
	d.server()
	var clients []*spinner
	for range places {
		clients = append(clients, d.run(nil, "stay", "context", "60"))
	}
	for _, c := range clients {
		eventually(t, "a client has its context", answerDeadline, func() bool { return strings.Contains(c.line(0), "err=0") })
	}
	if got := d.info(); got.err != 46 {
		t.Errorf("client 49 beside 48 living ones: %+v", got)
	}
	dead := clients[0]
	files := hold(t, dead.pid())
	dead.signal(syscall.SIGKILL)
	dead.end()
	for len(*files) > 0 {
		if got := d.info(); got.err != 2 {
			t.Errorf("client 49 with %d files of a dead client held: %+v", len(*files), got)
		}
		files.next()
	}
	eventually(t, "a place is free", soon, func() bool { return d.info().err == 0 })
}

// The host memory of a dead client stays charged to its control group while both of its memory files are open.
func TestHostMemoryOfTheDead(t *testing.T) {
	alone(t)
	onlySimulated(t, "the charge of a real client's memory was read in the driver's source and not measured")
	needsRoot(t)
	const root, host = "/sys/fs/cgroup/memory", 32 << 20
	if _, err := os.Stat(filepath.Join(root, "memory.usage_in_bytes")); err != nil {
		t.Skip("this machine has no memory controller of cgroup version 1: ", err)
	}
	group, err := os.MkdirTemp(root, "slurm-mps-test-")
	if err != nil {
		t.Skip("cannot make a control group here: ", err)
	}
	t.Cleanup(func() { eventually(t, "the group is removed", soon, func() bool { return os.Remove(group) == nil }) })
	file := func(name string) string { return filepath.Join(group, name) }
	used := func() int {
		text, _ := os.ReadFile(file("memory.usage_in_bytes"))
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return n
	}
	_, _, victim, neighbour := beside(t, "-ms", "5", "-queue", "400", "-grow-host", "4", "-after", "1")
	files := hold(t, victim.pid())
	for name, value := range map[string]int{"cgroup.procs": victim.pid(), "memory.limit_in_bytes": host} {
		must.OK(t, os.WriteFile(file(name), []byte(strconv.Itoa(value)), 0))
	}
	victim.end()
	if status := victim.call.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Errorf("the client in a full group ends with %v", victim.call.ProcessState)
	}
	time.Sleep(1500 * time.Millisecond) // until its work is done
	if got := used(); got < host/2 {
		t.Errorf("the group has %d bytes in use while the files are held, want about %d", got, host)
	}
	files.release()
	eventually(t, "the group is empty", soon, func() bool { return used() < host/4 })
	neighbour.survives("a kill by the kernel")
}

// A client that is stopped launches nothing more. When its queue is done, the GPU has no work, and the samples of the
// server are 0.
func TestSamplesOfAPausedNeighbour(t *testing.T) {
	alone(t)
	onlySimulated(t, "the samples are read from the simulated node")
	_, server, victim, neighbour := beside(t, "-ms", "5", "-queue", "60", "-replay")
	latest := func() (percents []int) {
		text, _ := os.ReadFile(filepath.Join(under(t).node.GPU(0).Dir, "samples", fmt.Sprint(server)))
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		slices.Sort(lines)
		for _, line := range lines[max(0, len(lines)-2):] {
			var micros uint64
			percent := -1
			fmt.Sscanf(line, "%d %d", &micros, &percent)
			percents = append(percents, percent)
		}
		return percents
	}
	eventually(t, "the GPU is busy", soon, func() bool { return slices.Min(latest()) > 0 })
	for _, s := range []*spinner{victim, neighbour} {
		s.signal(syscall.SIGSTOP)
	}
	time.Sleep(50 * time.Millisecond)
	if got := latest(); slices.Max(got) == 0 {
		t.Errorf("samples right after the stop, with 0.3 s in flight: %d", got)
	}
	eventually(t, "two samples are 0", soon, func() bool { return slices.Max(latest()) == 0 })
	for _, s := range []*spinner{victim, neighbour} {
		s.signal(syscall.SIGCONT)
	}
	eventually(t, "the GPU is busy again", soon, func() bool { return slices.Min(latest()) > 0 })
	neighbour.survives("a pause")
}
