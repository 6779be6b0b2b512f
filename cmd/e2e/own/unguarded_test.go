// SPDX-License-Identifier: Apache-2.0

package own_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// hidden is a copy of a program that the user may run and not read. The kernel hides its processes from the user.
func (n testNode) hidden(program string) string {
	n.T.Helper()
	content := must.Get(os.ReadFile(program))(n.T)
	path := filepath.Join(n.home, "hidden-"+filepath.Base(program))
	must.OK(n.T, node.WriteProgram(path, content))
	must.OK(n.T, os.Chmod(path, 0o711))
	return path
}

const cannotGuard = "slurm-mps: cannot guard process "

// The program of a rank is hidden. One line at its start names the cause. A readable program, a script, and a program
// that is not found get no line.
func TestAHiddenProgram(t *testing.T) {
	n := newTestNode(t, node.H200)
	neighbour := n.start(inStep(7, 0, 0, 4), n.spin("60")...)
	ready(neighbour)
	program := n.hidden(n.CudaClient())
	var all []*process
	for rank := 1; rank < 3; rank++ {
		all = append(all, n.start(inStep(7, 0, rank, 4), n.wrap(program, "spin", "-ms", "1", "-for", "60", "-exit-idle")...))
	}
	ready(all...)
	text := all[0].Text() + all[1].Text()
	want := "mpirun-wrap: " + program + " is not guarded if it uses CUDA itself, because you may not read its file"
	must.Equal(t, fmt.Sprintf("they print %s\nwant once %s", text, want), strings.Count(text, want), 1)
	script := filepath.Join(n.home, "script")
	must.OK(t, node.WriteProgram(script, []byte("#!/bin/sh\nexec true\n")))
	for code, program := range map[int]string{0: script, 127: "/nonexistent"} {
		p := n.start(inStep(7, 0, 3, 4), n.wrap(program)...)
		ends(code, p)
		if strings.Contains(p.Text(), "guarded") {
			t.Errorf("%s: it prints %s", program, p.Text())
		}
	}
	lives(append(all, neighbour)...)
	if strings.Contains(neighbour.Text(), cannotGuard) {
		t.Errorf("the neighbour reads %s", neighbour.Text())
	}
	n.clean()
}

// A rank's script starts a hidden program. A neighbour is told when that is a client of MPS. Hidden programs that do
// not use CUDA, and those of another step, are not told.
func TestAHiddenChild(t *testing.T) {
	n := newTestNode(t, node.H200)
	neighbour := n.start(inStep(7, 0, 0, 4), n.spin("60")...)
	ready(neighbour)
	other := n.start(inStep(8, 0, 0, 2), n.spin("60")...)
	ready(other)
	client, sleeper := n.hidden(n.CudaClient()), n.hidden("/bin/sleep")
	sleeps := n.start(inStep(7, 0, 1, 4), n.wrap("sh", "-c", sleeper+" 60 & echo sleeps; wait")...)
	n.Until("sleeper", func() bool { return strings.Contains(sleeps.Text(), "sleeps") || sleeps.over() })
	elsewhere := n.start(inStep(8, 0, 1, 2), n.wrap("sh", "-c", client+" spin -ms 1 -for 60 -exit-idle; true")...)
	ready(elsewhere)
	computes := n.start(inStep(7, 0, 2, 4), n.wrap("sh", "-c", client+" spin -ms 1 -for 60 -exit-idle; true")...)
	ready(computes)
	told := func(of *process) string {
		return fmt.Sprintf("%s%d, because the kernel lets only root see its files: its end may kill its neighbours\n", cannotGuard, of.pid())
	}
	n.Until("lines", func() bool {
		return strings.Contains(neighbour.Text(), cannotGuard) && strings.Contains(other.Text(), cannotGuard)
	})
	right := strings.Contains(neighbour.Text(), told(computes)) && strings.Contains(other.Text(), told(elsewhere))
	if !right || strings.Count(neighbour.Text(), cannotGuard) != 1 || strings.Count(other.Text(), cannotGuard) != 1 {
		t.Errorf("the neighbours read %s%s", neighbour.Text(), other.Text())
	}
	for _, p := range []*process{sleeps, computes, elsewhere} {
		_ = node.SignalGroup(p.cmd, unix.SIGTERM)
		p.end()
	}
	lives(neighbour, other)
	n.clean()
}

// A process of the step that does not find the daemon reads that it computes without MPS. Clients of the step and of
// another one read nothing.
func TestAProcessOutside(t *testing.T) {
	n := newTestNode(t, node.H200)
	all := append(n.step(7, 0, 2, n.spin("600")...), n.step(8, 0, 1, n.spin("600")...)...)
	ready(all...)
	spin := n.CudaClient() + " spin -ms 1 -for 600 -exit-idle"
	clean := n.start(inStep(7, 0, 1, 3), n.wrap("sh", "-c", "exec env -i LD_LIBRARY_PATH=$LD_LIBRARY_PATH "+spin)...)
	tmpfs := fmt.Sprintf("mount -t tmpfs none %s && mount -t tmpfs none %s && exec ", n.bases()[0], n.bases()[1])
	container := n.start(inStep(7, 0, 2, 3), n.wrap("unshare", "-Urm", "sh", "-c", tmpfs+spin)...)
	plain := n.start(nil, n.CudaClient(), "spin", "-ms", "1", "-for", "600", "-exit-idle") // not of this step
	launcher := filepath.Join(n.home, "prted")
	shell, err := os.ReadFile("/bin/sh")
	must.OK(t, errors.Join(err, node.WriteProgram(launcher, shell)))
	rank := strings.Join(n.wrap("sleep", "600"), " ")
	spawned := n.start(inStep(7, 0, 2, 3), launcher, "-c", rank+" & rank=$!; sleep 1; "+spin+" & wait $!; kill $rank")
	ready(clean, container, plain, spawned)
	for p, cause := range map[*process]string{
		clean: "what starts it (env -i, a container) must keep CUDA_MPS_PIPE_DIRECTORY", container: "its container does not show it " + n.bases()[0],
		spawned: "a launcher starts it beside these ranks",
	} {
		want := fmt.Sprintf("slurm-mps: process %d of this step computes without MPS: %s", p.pid(), cause)
		if !e2e.Comes(func() bool { return strings.Contains(p.Text(), want) }) {
			t.Fatalf("it prints %swant %s\n%s", p.Text(), want, n.state())
		}
	}
	for _, p := range append(all, plain) {
		if strings.Contains(p.Text(), "without MPS") {
			t.Errorf("it reads %s", p.Text())
		}
	}
	lives(append(all, clean, container, plain)...)
	_ = unix.Kill(spawned.pid(), unix.SIGTERM)
	spawned.end()
	n.Until("end", func() bool { return len(n.left()) == 0 })
}

// daemonize starts a program as daemons start: in a session of its own, with no descriptor of its parent. It prints to
// a file.
const daemonize = `use POSIX; fork and exit; setsid; fork and exit; POSIX::close($_) for 0..1023;
open STDIN, "</dev/null"; open STDOUT, ">", shift; open STDERR, ">&STDOUT"; exec @ARGV`

// A rank leaves a process in the background that opens CUDA when no rank lives any more. It is served, and everything
// ends with it.
func TestADaemonOfTheUsers(t *testing.T) {
	n := newTestNode(t, node.H200)
	out := filepath.Join(n.home, "out")
	line := n.CudaClient() + " spin -ms 1 -for 600 -exit-idle"
	must.OK(t, unix.Mkfifo(out+".go", 0o666))
	rank := n.start(inStep(7, 0, 0, 1), n.wrap("perl", "-e", daemonize, out, "sh", "-c", "echo $$; read line <"+out+".go; exec "+line)...)
	ends(0, rank)
	keeper := n.one("--own-keep")
	wait.Sleep(n.Ctx, time.Second)
	if daemons := n.serving(2); !e2e.Alive(keeper) || daemons != 2 {
		t.Fatalf("the keeper has ended, or there are %d processes of MPS, not 2\n%s", daemons, n.state())
	}
	must.OK(t, os.WriteFile(out+".go", []byte("go\n"), 0))
	n.Until("client", func() bool { return strings.Contains(e2e.Read(t, out), " ready ") })
	pid := 0
	fmt.Sscan(e2e.Read(t, out), &pid)
	stat := must.Get(proc.ReadStat(pid))(t)
	late := n.start(inStep(7, 0, 0, 1), n.spin("0.1")...)
	ends(0, late)
	kill(stat.Process)
	n.clean()
}

// A client whose environment names the daemon's folder in another way, and that has closed its rank's lock, outlives
// its rank. The daemon serves it.
func TestAClientThatOutlivesItsRank(t *testing.T) {
	n := newTestNode(t, node.H200)
	out := filepath.Join(n.home, "out")
	line := `export CUDA_MPS_PIPE_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY/.; exec perl -e '` + daemonize + `' ` + out + " " + n.CudaClient() + " spin -ms 1 -for 60 -exit-idle"
	// The guard tells the keeper of a new client within a second.
	script := fmt.Sprintf("(%s); until grep -q ready %s; do sleep 0.1; done; sleep 2", line, out)
	rank := n.start(inStep(7, 0, 0, 1), n.wrap("sh", "-c", script)...)
	ends(0, rank)
	var keepers []proc.Process // a child that asks the daemon looks like a keeper until its exec
	n.Until("one keeper", func() bool { keepers = n.of("--own-keep"); return len(keepers) < 2 })
	if len(keepers) == 0 {
		t.Fatalf("the keeper has ended\n%s", n.state())
	}
	keeper := keepers[0]
	wait.Sleep(n.Ctx, time.Second)
	if !e2e.Alive(keeper) || strings.Contains(e2e.Read(t, out), "err=") {
		t.Errorf("the keeper runs: %v; the client prints %s", keeper.Running(), e2e.Read(t, out))
	}
	pid := readyPID.FindStringSubmatch(e2e.Read(t, out))
	if pid == nil {
		t.Fatalf("it prints %s", e2e.Read(t, out))
	}
	var number int
	fmt.Sscan(pid[1], &number)
	stat := must.Get(proc.ReadStat(number))(t)
	kill(stat.Process)
	n.clean()
}

// The keeper of a step is killed while it removes its folder. The keeper that follows ends what that one has left, and
// nothing of the user's other step.
func TestAnOrphansKeeper(t *testing.T) {
	n := newTestNode(t, node.H200)
	other := n.step(8, 0, 2, n.spin("60")...)
	ready(other...)
	n.serving(2)
	theirs := n.daemons()
	first := n.step(7, 0, 1, n.spin("60")...)
	ready(first...)
	keeper := n.keeperOf(7)
	crowd := "" // removing it takes long enough
	for _, dir := range n.folders() {
		if _, err := os.Stat(filepath.Join(dir, "jobs/7")); err == nil {
			crowd = filepath.Join(dir, "jobs/7/exchange")
		}
	}
	for i := range 20_000 {
		must.OK(t, os.WriteFile(filepath.Join(crowd, fmt.Sprint(i)), nil, 0o600))
	}
	lives(first...)
	n.Until("removal", func() bool {
		_, err := os.Stat(filepath.Join(crowd, "0"))
		return err != nil
	})
	kill(keeper)
	n.Until("end of the first step", func() bool { return len(n.of("--own-keep")) == 1 && len(n.daemons()) == len(theirs) })
	for _, p := range theirs {
		must.Hold(t, e2e.Alive(p), "%v of the other step has ended", p)
	}
	lives(other...)
	ends(0, n.start(nil, n.wrap("true")...)) // removes the rest of the folder
	n.clean()
}

// keeperOf returns the keeper of a job.
func (n testNode) keeperOf(job int) proc.Process {
	n.T.Helper()
	for _, p := range n.of("--own-keep") {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if strings.Contains(string(line), fmt.Sprintf("\x00%d\x00", job)) {
			return p
		}
	}
	n.T.Fatalf("no keeper of job %d\n%s", job, n.state())
	return proc.Process{}
}

// What --own cannot serve ends with 125 and a sentence, and no rank computes without MPS.
func TestASentenceForEachRefusal(t *testing.T) {
	exclusive := func(n testNode) { must.OK(n.T, n.Sim.Node.GPU(0).SetMode(3)) }
	for _, c := range []struct {
		name    string
		models  []node.Model
		prepare func(testNode)
		env     []string
		want    string
	}{
		{name: "no GPU", models: []node.Model{node.H200}, env: []string{"CUDA_VISIBLE_DEVICES=7"}, want: `cannot find a GPU: no GPU can be opened: CUDA_VISIBLE_DEVICES is "7"`},
		{name: "a GPU for each task", models: []node.Model{node.H200, node.H200},
			env:  append(inStep(7, 0, 0, 2), "SLURM_NTASKS_PER_GPU=1", "SLURM_STEP_GPUS=0", "CUDA_VISIBLE_DEVICES=0"),
			want: "cannot use --own: Slurm gives each task of this step GPUs of its own: ask for --gpus-per-node or --gres=gpu:N in place of --gpus-per-task"},
		{name: "MIG", models: []node.Model{node.H100SXM.Cut(node.H100Slice3)}, want: "is divided into MIG instances, and --own serves whole GPUs"},
		{name: "no control program", models: []node.Model{node.H200}, env: []string{"PATH=/bin"},
			want: "cannot start an MPS daemon: cannot find nvidia-cuda-mps-control on PATH or in /usr/bin"},
		{name: "the daemon does not start", models: []node.Model{node.H200}, prepare: func(n testNode) { n.Fault("dies_at_start", "") },
			want: "this job has no MPS: cannot start "},
		{name: "the server does not start", models: []node.Model{node.H200}, prepare: func(n testNode) { n.Fault("server_dies_at_start", "") },
			want: "this job has no MPS: "},
		{name: "another process has an exclusive GPU", models: []node.Model{node.H200}, prepare: func(n testNode) {
			exclusive(n)
			ready(n.start(nil, n.CudaClient(), "spin", "-for", "60", "-exit-idle"))
		}, want: "this job has no MPS: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newTestNode(t, c.models...)
			if c.prepare != nil {
				c.prepare(n)
			}
			n.start(c.env, n.wrap(n.CudaClient(), "info")...).says(c.want)
			n.Until("clean node", func() bool { return len(n.folders()) == 0 && len(n.daemons()) == 0 })
		})
	}
}

// A node in EXCLUSIVE_PROCESS without a prolog: the daemon takes the GPU, and ranks run under MPS.
func TestExclusiveMode(t *testing.T) {
	n := newTestNode(t, node.H200)
	must.OK(t, n.Sim.Node.GPU(0).SetMode(3))
	all := n.step(7, 0, 4, n.spin("60")...)
	ready(all...)
	lives(all...)
	n.clean()
}

// With the site's prolog the ticket wins, and --report says so. The same script works on both kinds of sites.
func TestTheSitesTicketWins(t *testing.T) {
	n := newTestNode(t, node.H200)
	n.Open(n.Job(7, "0"))
	p := n.start(inStep(7, 0, 0, 1), n.wrap("--report", n.CudaClient(), "info")...)
	ends(0, p)
	if want := "mpirun-wrap: --own starts no daemon: the site's prolog has started one for this job"; !strings.Contains(p.Text(), want) {
		t.Errorf("it prints %s\nwant %s", p.Text(), want)
	}
	quiet := n.start(inStep(7, 0, 0, 1), n.wrap(n.CudaClient(), "info")...)
	ends(0, quiet)
	if strings.Contains(quiet.Text(), "--own") || len(n.of("--own-keep")) > 0 {
		t.Errorf("it prints %s\n%s", quiet.Text(), n.state())
	}
	n.Close(n.Job(7, "0"))
	n.clean()
}
