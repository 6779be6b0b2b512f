// SPDX-License-Identifier: Apache-2.0

// Package own_test tests mpirun-wrap --own: a daemon without an admin. In each test, a plain user has one file of ours.
// At the end, nothing is left of any step, and no rank has computed without MPS.
//
// The tests of this file are the situations in which scripts that people wrote by hand fail: twelve public ones were
// read. They wait by a sleep or a pid file, share one folder in /tmp, or let rank 0 tell the daemon to quit.
package own_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// Many ranks start at once. One of them starts the daemon, and the others wait until it serves.
func TestStartRace(t *testing.T) {
	n := newTestNode(t, node.H200)
	all := n.step(7, 0, 48, n.spin("600")...) // the first computes until the last is ready
	ready(all...)
	if got := n.serving(2); got != 2 {
		t.Errorf("%d processes of MPS, want a daemon and its server\n%s", got, n.state())
	}
	n.one("--own-supervise")
	n.one("--own-keep")
	lives(all...)
	ends(0, all...)
	n.clean()
}

// Steps of a job beside each other and after each other have a daemon each.
func TestSecondStep(t *testing.T) {
	n := newTestNode(t, node.H200)
	first := n.step(7, 0, 2, n.spin("60")...)
	ready(first...)
	second := n.step(7, 1, 2, n.spin("60")...)
	ready(second...)
	if got := n.serving(4); got != 4 {
		t.Errorf("%d processes of MPS, want those of two steps\n%s", got, n.state())
	}
	lives(first...)
	n.Until("end of the first daemon", func() bool { return len(n.daemons()) == 2 })
	third := n.step(7, 2, 2, n.spin("60")...)
	ready(third...)
	lives(second...)
	lives(third...)
	n.clean()
}

// Each of two users has a daemon, and is told of the other one's. Neither can enter or take the other one's folder.
func TestSecondUser(t *testing.T) {
	n := newTestNode(t, node.H200)
	first := n.start(nil, n.spin("60")...)
	ready(first)
	second := n.startAs(e2e.UID+1, nil, n.spin("60")...)
	ready(second)
	if got := len(n.folders()); got != 2 || n.serving(4) != 4 {
		t.Errorf("%d folders, %d processes of MPS\n%s", got, len(n.daemons()), n.state())
	}
	// With other tests beside this one, it may be one of theirs.
	if want := regexp.MustCompile(`mpirun-wrap: an MPS server of uid \d+ \(pid `); !want.MatchString(second.Text()) {
		t.Errorf("the second user reads %q, want %q", second.Text(), want)
	}
	lives(first, second)
	n.clean()
}

// A rank that crashes has its own status, and its neighbours live, also if its work is in flight.
func TestACrash(t *testing.T) {
	n := newTestNode(t, node.H200)
	all := n.step(7, 0, 3, n.spin("60")...)
	ready(all...)
	for end, status := range map[string]int{"exit:3": 3, "_exit:77": 77, "signal:11": 139, "signal:9": 137, "signal:6": 134} {
		spin := []string{n.CudaClient(), "spin", "-ms", "100", "-queue", "10", "-for", "60", "-end", end, "-after", "0.5"}
		crash := n.start(inStep(7, 0, 3, 8), n.wrap(spin...)...)
		ends(status, crash)
		if !strings.Contains(crash.Text(), " ready ") {
			t.Errorf("the crashing rank prints %s", crash.Text())
		}
	}
	library := must.Get(e2e.WithoutFirstThread())(t)
	spin := []string{"spin", "-ms", "100", "-queue", "10", "-for", "60", "-end", "signal:9", "-after", "0.5"}
	line := append([]string{"env", "LD_PRELOAD=" + library, n.CudaClient()}, spin...)
	crash := n.start(inStep(7, 0, 3, 8), n.wrap(line...)...)
	ends(137, crash)
	wait.Sleep(n.Ctx, e2e.HitBy)
	late := n.start(inStep(7, 0, 4, 8), n.spin("0.1")...)
	ends(0, late)
	lives(all...)
	n.clean()
}

// A rank that starts late joins the daemon of its step, if a rank still runs. Otherwise it gets a new one.
func TestALateRank(t *testing.T) {
	n := newTestNode(t, node.H200)
	first := n.step(7, 0, 2, n.spin("60")...)
	ready(first...)
	keeper := n.one("--own-keep")
	late := n.start(inStep(7, 0, 1, 2), n.spin("60")...)
	ready(late)
	must.Equal(t, "the keeper was", n.one("--own-keep"), keeper)
	lives(first...)
	lives(late)
	later := n.step(7, 0, 2, n.spin("60")...) // at this moment, the daemon ends
	ready(later...)
	lives(later...)
	n.clean()
}

// The rank that has started the daemon is killed. The others compute on, and new ones join.
func TestRankZeroKilled(t *testing.T) {
	n := newTestNode(t, node.H200)
	all := n.step(7, 0, 1, n.spin("60")...)
	ready(all...)
	for rank := 1; rank < 4; rank++ {
		all = append(all, n.start(inStep(7, 0, rank, 4), n.spin("60")...))
	}
	ready(all...)
	_ = all[0].cmd.Process.Signal(unix.SIGKILL)
	ends(137, all[0])
	wait.Sleep(n.Ctx, e2e.HitBy)
	late := n.start(inStep(7, 0, 0, 4), n.spin("60")...)
	ready(late)
	lives(append(all[1:], late)...)
	n.clean()
}

// A rank tells the daemon to quit, as a script does at its end. The other ranks compute to their ends. While the daemon
// waits for them, CUDA refuses new clients, and a new rank waits. After that, the keeper starts the daemon again.
func TestQuitByASibling(t *testing.T) {
	n := newTestNode(t, node.H200)
	waits := n.start(inStep(7, 0, 0, 4), n.wrap("sh", "-c", "echo waits; exec sleep 900")...)
	n.Until("first rank", func() bool { return strings.Contains(waits.Text(), "waits") || waits.over() })
	before := n.daemons()
	for range 3 {
		quit := n.start(inStep(7, 0, 1, 4), n.wrap("sh", "-c", "echo quit | nvidia-cuda-mps-control")...)
		ends(0, quit)
		for _, p := range before {
			n.Gone(p)
		}
		late := n.start(inStep(7, 0, 2, 4), n.spin("0.1")...)
		ends(0, late)
		if !strings.Contains(late.Text(), " done ") {
			t.Errorf("a late rank prints %s", late.Text())
		}
		before = n.daemons()
	}
	computes := n.start(inStep(7, 0, 3, 4), n.spin("60")...)
	ready(computes)
	before = n.daemons()
	n.start(inStep(7, 0, 1, 4), n.wrap("sh", "-c", "echo quit | nvidia-cuda-mps-control")...)
	log := filepath.Join(n.folders()[0], "jobs/7/0/log/control.log")
	n.Until("quit in the daemon's log", func() bool { return strings.Count(e2e.Read(t, log), "Cmd:quit") == 4 })
	late := n.start(inStep(7, 0, 2, 4), n.spin("0.1")...)
	n.Until("rank that has joined", func() bool {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", late.cmd.Process.Pid))
		return late.over() || slices.ContainsFunc(files, func(fd string) bool {
			to, _ := os.Readlink(fd)
			return strings.HasPrefix(to, "socket:")
		})
	})
	lives(computes)
	ends(0, late)
	if !strings.Contains(late.Text(), " done ") {
		t.Errorf("the rank that has waited prints %s", late.Text())
	}
	for _, p := range before {
		n.Gone(p)
	}
	_ = waits.cmd.Process.Signal(unix.SIGKILL)
	n.clean()
}

// The ranks end with their daemon, and the keeper asks it for clients while it starts it again. A control program that
// asks is not taken for the daemon, which would stay when the step has ended.
func TestAQuestionWhileTheDaemonStarts(t *testing.T) {
	n := newTestNode(t, node.H200)
	const program = "nvidia-cuda-mps-control"
	slow := filepath.Join(n.home, "slow")
	script := fmt.Sprintf("#!/bin/sh\n[ $# != 0 ] || sleep 0.3\nexec %s \"$@\"\n", n.Sim.Program(program))
	must.OK(t, errors.Join(os.Mkdir(slow, 0o755), node.WriteProgram(filepath.Join(slow, program), []byte(script))))
	for range 4 {
		var ranks []*process
		for i := range 2 {
			ranks = append(ranks, n.start(append(inStep(7, 0, i, 2), "PATH="+slow+":/usr/bin:/bin"), n.spin("60")...))
		}
		ready(ranks...)
		kill(n.daemons()...)
		ends(1, ranks...)
		n.clean()
	}
}

// Several launches at once and one after the other, without Slurm. The members of an ensemble share the GPU by slots.
func TestWithoutALauncher(t *testing.T) {
	n := newTestNode(t, node.H200)
	line := fmt.Sprintf("seq 24 | xargs -P8 -n1 %s sh -c 'exec %s info'", strings.Join(n.wrap("--slots=8", "--share=even"), " "), n.CudaClient())
	p := n.start(nil, "sh", "-c", line)
	ends(0, p)
	eighth := regexp.MustCompile(`err=0\(cudaSuccess\) sm=1[68] `) // 66 TPCs are not divisible by 8
	if got := len(eighth.FindAllString(p.Text(), -1)); got != 24 {
		t.Errorf("%d of 24 members had an eighth of the GPU:\n%s", got, p.Text())
	}
	n.clean()
}

// A daemon that is killed is started again for the ranks that come. Those that computed get CUDA's error.
func TestTheDaemonKilled(t *testing.T) {
	n := newTestNode(t, node.H200)
	waits := n.start(inStep(7, 0, 0, 4), n.wrap("sleep", "100")...)
	n.Until("daemon", func() bool { return len(n.daemons()) == 2 })
	hit := n.start(inStep(7, 0, 1, 4), n.spin("60")...)
	ready(hit)
	before := n.daemons()
	kill(before...)
	ends(1, hit)
	for _, p := range before { // until it has ended, a rank takes it for a daemon that serves
		n.Gone(p)
	}
	if !strings.Contains(hit.Text(), "err=806") {
		t.Errorf("the rank prints %s", hit.Text())
	}
	began := time.Now()
	late := n.start(inStep(7, 0, 2, 4), n.spin("0.1")...)
	ends(0, late)
	t.Logf("a rank after the daemon's death has ended after %v: %s%s", time.Since(began), hit.Text(), late.Text())
	_ = waits.cmd.Process.Signal(unix.SIGKILL)
	n.clean()
}

// A member of half of the memory is killed, and the next one starts at once. With gpu-usage beside mpirun-wrap, the guard
// knows that the memory is needed, and pauses the neighbour until it may free it.
func TestAFullGPUWithGPUUsage(t *testing.T) {
	n := newTestNode(t, node.H200)
	program, err := os.ReadFile(n.Command("gpu-usage")[0])
	if err = errors.Join(err, node.WriteProgram(filepath.Join(n.home, "gpu-usage"), program)); err != nil {
		t.Fatal(err)
	}
	neighbour := n.start(inStep(7, 0, 0, 3), n.spin("600")...)
	ready(neighbour)
	big := append(n.wrap(), n.CudaClient(), "spin", "-ms", "50", "-queue", "10", "-for", "20", "-mib", "90000")
	victim := n.start(inStep(7, 0, 1, 3), big...)
	ready(victim)
	_ = victim.cmd.Process.Kill()
	ends(137, victim)
	next := n.start(inStep(7, 0, 2, 3), append(n.wrap(), n.CudaClient(), "spin", "-ms", "5", "-for", "0.2", "-mib", "90000")...)
	ends(0, next)
	if !strings.Contains(next.Text(), " done ") {
		t.Errorf("the next member prints %s", next.Text())
	}
	lives(neighbour)
	n.clean()
}
