// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// members is a job on a node. Its processes have no launcher.
type members struct {
	t      *testing.T
	dir    string // root folder of the node, and the members' folder
	binary string
	env    []string
}

func newMembers(t *testing.T, gpus int) *members {
	t.Helper()
	must.Root(t)
	binary := must.Get(wrapperBinary())(t)
	dir, err := os.MkdirTemp("/tmp", "mps") // a socket's path is short
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	boot := must.Get(proc.BootID())(t)
	self := must.Get(proc.Current())(t)
	ticket := ticketOf(gpus, policy.ScopeJob, 1)
	ticket.Daemons[0] = lease.Daemon{PipeDir: dir, LogDir: dir, Proc: self}
	ticket.ExchangeDir = filepath.Join(dir, "exchange")
	must.OK(t, os.Mkdir(ticket.ExchangeDir, 0o700))
	must.OK(t, os.Mkdir(filepath.Join(dir, "used"), 0o700))
	store := must.Get(lease.Open(site.Paths{Root: dir}.Run(), boot))(t)
	must.OK(t, store.WriteTicket(ticket))
	listener := must.Get(net.Listen("unixpacket", filepath.Join(dir, "control")))(t)
	t.Cleanup(func() { listener.Close() })
	m := &members{t: t, dir: dir, binary: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), binary.Fd())}
	m.env = append(os.Environ(), "SLURM_JOB_ID=7", "SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_TASKS_PER_NODE=1",
		"WRAP="+m.binary+" --root "+dir)
	return m
}

// member is one process of the job, as its parent sees it.
type member struct {
	cmd *exec.Cmd
	in  *os.File // the member's program ends when this is closed
	out *os.File
}

// start starts a member with these flags. It waits for a line that the program prints, and returns it without the
// newline.
func (m *members) start(flags, script string) (member, string) {
	m.t.Helper()
	reads, writes, err := os.Pipe()
	must.OK(m.t, err)
	said := must.Get(os.CreateTemp(m.dir, "said"))(m.t)
	cmd := exec.Command("/bin/sh", "-c", "exec $WRAP "+flags+` -- /bin/sh -c "$0"`, script)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = m.env, reads, said, said
	must.OK(m.t, cmd.Start())
	reads.Close()
	p := member{cmd, writes, said}
	m.t.Cleanup(func() { p.in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait(); said.Close() })
	return p, m.line(p)
}

func (m *members) line(p member) string {
	m.t.Helper()
	for deadline := time.Now().Add(timeLimit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		content := must.Get(os.ReadFile(p.out.Name()))(m.t)
		if first, _, whole := strings.Cut(string(content), "\n"); whole {
			return first
		}
	}
	m.t.Fatal("the member prints nothing")
	return ""
}

// run runs a member to its end and returns what it prints.
func (m *members) run(flags, script string) string {
	m.t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "exec $WRAP "+flags+` -- /bin/sh -c "$0"`, script)
	cmd.Env = m.env
	out, _ := cmd.CombinedOutput()
	return strings.TrimSpace(string(out))
}

// where prints the member's GPU and percentage, and waits for the end of its input.
const where = `echo "$CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"; read -r line`

// Eight processes in eight slots have the places of eight ranks. If all slots are taken, another process is refused
// or waits.
func TestSlots(t *testing.T) {
	t.Parallel()
	m := newMembers(t, 2)
	m.env = append(m.env, "SLURM_TASKS_PER_NODE=8")
	var all []member
	var got []string
	for i := range 8 {
		p, line := m.start("--slots=8", where)
		all, got = append(all, p), append(got, line)
		if want := fmt.Sprintf("GPU-%d ", i%2); !strings.HasPrefix(line, want) {
			t.Errorf("member %d has %q: not the GPU with the fewest, %s", i, line, want)
		}
	}
	slices.Sort(got)
	if want := "GPU-0 24.242425 GPU-0 24.242425 GPU-0 25.757576 GPU-0 25.757576 GPU-1 24.242425"; !strings.HasPrefix(strings.Join(got, " "), want) {
		t.Errorf("members have %q", got)
	}
	const none = "mpirun-wrap: cannot take a slot: all 8 are taken: start fewer processes at once, or " +
		"wait longer (--slots-wait=10m); "
	slot0 := regexp.MustCompile(`slot 0: sh \(pid \d+\)`)
	if got := m.run("--slots=8 --slots-wait=0", where); !strings.HasPrefix(got, none) || !slot0.MatchString(got) ||
		!strings.HasSuffix(got, "; and 4 more") {
		t.Errorf("the ninth process prints\n%s", got)
	}
	const other = "mpirun-wrap: cannot take one of 4 slots: other processes of this job use 8: " +
		"give all of them the same --slots; "
	if got := m.run("--slots=4", where); !strings.HasPrefix(got, other) || !slot0.MatchString(got) {
		t.Errorf("a process with another number of slots prints\n%s", got)
	}
	const waits = "mpirun-wrap: waiting for a slot: all 8 are taken (--slots-wait=0 does not wait); slot 0: sh (pid "
	if got := m.run("--slots=8 --slots-wait=500ms", where); !strings.HasPrefix(got, waits) {
		t.Errorf("a waiting process prints\n%s", got)
	}
	must.OK(t, all[5].cmd.Process.Kill())
	if _, line := m.start("--slots", where); !strings.HasPrefix(line, "GPU-1 ") {
		t.Errorf("the next process has %q, not the slot of the killed process", line)
	}
}

// The number of slots can change when no process has a slot.
func TestSlotsOfAnotherNumber(t *testing.T) {
	t.Parallel()
	m := newMembers(t, 2)
	for _, c := range []struct{ flags, want string }{
		{"--slots=8", "GPU-0 25.757576"}, {"--slots=2", "GPU-0"}, {"--slots=4 --gpu=block", "GPU-0 50"}, {"--slots=6 --share=none", "GPU-0"},
		{"--slots=0", "GPU-0"}, {"--slots=1", "GPU-0"},
		{"--slots=4 --gpu=inherit", "mpirun-wrap: cannot take a slot with --gpu=inherit: a slot is on one GPU: use --gpu=cyclic or --gpu=block"},
		{"--slots=5000", "mpirun-wrap: cannot take one of 5000 slots: want 1 to 384"},
		{"--slots=4 --slots-wait=5", `mpirun-wrap: cannot read --slots-wait: it is "5": want a time like 30s or 10m, or 0`},
		{"--slots=4 --local-rank=0 --local-size=2", "mpirun-wrap: cannot take a slot: --local-rank gives the process its place: leave out --slots or --local-rank"},
	} {
		must.Equal(t, c.flags, m.run(c.flags, where), c.want)
	}
}

// A process that a member starts through the wrapper uses the member's slot. Otherwise the member would wait for
// itself.
func TestASlotInASlot(t *testing.T) {
	t.Parallel()
	m := newMembers(t, 1)
	first, _ := m.start("--slots=2", where)
	if got := m.run("--slots=2 --slots-wait=0", `$WRAP --slots=2 --slots-wait=0 /bin/sh -c 'echo "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"'; true`); got != "50" {
		t.Errorf("the inner process prints %q", got)
	}
	first.in.Close()
}

// A slot is taken while its program runs, whatever it does with its files. After its end, a child keeps the slot if it
// uses the GPU or works. A child that waits for nothing does not keep it, and a message names it.
func TestWhatKeepsASlot(t *testing.T) {
	t.Parallel()
	const bash = `exec bash -c '%s echo ready $pid; read -r line; wait'`
	for _, c := range []struct {
		name, script string
		ends         bool   // the program ends
		want         string // for the next process, "" if the slot is free
	}{
		{"closes its files", "exec 230<&-;", false, "slot 0: bash (pid P)"},
		{"ends after that", "exec 230<&-;", true, ""},
		{"ends", "", true, ""},
		{"a child on the GPU", "sleep 60 9<$UVM & pid=$!;", true, "slot 0: sleep (pid P), left by a program that has ended"},
		{"a child in a session, on the GPU", "setsid sleep 60 9<$UVM & pid=$!;", true, "slot 0: sleep (pid P), left by"},
		{"a child that begins", "bash -c \"while :; do :; done\" & pid=$!;", true, "slot 0: bash (pid P), left by"},
		{"a helper", "setsid sleep 60 & pid=$!;", true, ""},
		{"a helper that asks the GPU", "setsid sleep 60 9<$UVM-tools & pid=$!;", true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMembers(t, 1)
			must.OK(t, os.Mkdir(filepath.Join(m.dir, "dev"), 0o700))
			m.env = append(m.env, "UVM="+filepath.Join(m.dir, "dev/nvidia-uvm"))
			for _, name := range []string{"nvidia-uvm", "nvidia-uvm-tools"} {
				must.OK(t, os.WriteFile(filepath.Join(m.dir, "dev", name), nil, 0o600))
			}
			p, line := m.start("--slots=1", fmt.Sprintf(bash, c.script))
			pid, err := strconv.Atoi(strings.TrimPrefix(line, "ready "))
			if err != nil {
				pid = p.cmd.Process.Pid
			}
			if c.ends {
				must.OK(t, p.cmd.Process.Kill())
				_ = p.cmd.Wait()
			}
			if pid != p.cmd.Process.Pid {
				t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
			}
			wait := "20s"
			if c.want != "" { // after the time in which a helper loses the slot
				wait = "5s"
			}
			got := m.run("--slots=1 --slots-wait="+wait, "echo runs")
			want := strings.Replace(c.want, "(pid P)", fmt.Sprintf("(pid %d)", pid), 1)
			if runs := strings.HasSuffix(got, "runs"); runs != (c.want == "") || !strings.Contains(got, want) {
				t.Errorf("the next process: %s\nwant %q", got, want)
			}
			got = m.run("--slots=2 --slots-wait=0", "echo runs")
			if free := strings.HasSuffix(got, "runs"); free != (c.want == "") || !strings.Contains(got, want) {
				t.Errorf("a process with other slots: %s\nwant %q", got, want)
			}
		})
	}
}

// On a node with too little processor time, a process that works is not taken for an idle one.
func TestIdle(t *testing.T) {
	for state, want := range map[byte]bool{'S': true, 'T': true, 'R': false, 'D': false} {
		if got := isIdle(proc.Stat{State: state}); got != want { // since the node's boot
			t.Errorf("a process in the state %c that has used no processor is idle: %t", state, got)
		}
	}
}

// Many slots are taken for long. A process that waits for one uses little of a processor, and one that waits for its
// turn names no slot.
func TestWhatAWaitCosts(t *testing.T) {
	t.Parallel()
	m := newMembers(t, 2)
	other := exec.Command("sleep", "60")
	must.OK(t, other.Start())
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	stat := must.Get(proc.ReadStat(other.Process.Pid))(t)
	taker := fmt.Sprintf("%d %d %s", stat.PID, stat.Start, namespaces())
	for slot := range 64 {
		must.OK(t, os.WriteFile(filepath.Join(m.dir, "exchange", fmt.Sprintf("slot.%d", slot)), []byte(taker), 0o600))
	}
	waiting := exec.Command("/bin/sh", "-c", "exec $WRAP --slots=64 --slots-wait=4s -- true")
	waiting.Env = m.env
	said := must.Get(waiting.StderrPipe())(t)
	must.OK(t, waiting.Start())
	_, _ = said.Read(make([]byte, 1)) // it has the table
	if got := m.run("--slots=64 --slots-wait=0", "true"); !strings.HasSuffix(got, "; other processes of this job wait, too") {
		t.Errorf("the second one prints %s", got)
	}
	_, _ = io.Copy(io.Discard, said)
	_ = waiting.Wait()
	// It is 150 ms on a loaded machine, and 900 ms if each look comes after 5 ms.
	if used := waiting.ProcessState.UserTime() + waiting.ProcessState.SystemTime(); used > 400*time.Millisecond {
		t.Errorf("a wait of 4 s uses %v of a processor", used)
	}
}

// A process in a pid namespace of its own sees no process outside, and is not seen by its pid there. Only locks count.
func TestSlotsInAPIDNamespace(t *testing.T) {
	t.Parallel()
	m := newMembers(t, 1)
	content := must.Get(os.ReadFile(m.binary))(t)
	binary := filepath.Join(m.dir, "wrap") // a path that a pid namespace has, too
	must.OK(t, os.WriteFile(binary, content, 0o700))
	in := *m
	in.env = append(slices.Clone(m.env), "WRAP=unshare --pid --fork --mount-proc --kill-child "+binary+" --root "+m.dir)
	const inner = "unshare --pid --fork --mount-proc --kill-child $0 --root $1 --slots=1 --slots-wait=5s echo runs; true"
	if got := m.run("--slots=1", strings.NewReplacer("$0", binary, "$1", m.dir).Replace(inner)); got != "runs" {
		t.Errorf("in a container that a slot's program starts: %s", got)
	}
	first, _ := in.start("--slots=1", where)
	const unseen = "slot 0: a process that cannot be seen here"
	if got := m.run("--slots=1 --slots-wait=2s", "echo runs"); !strings.Contains(got, unseen) {
		t.Errorf("beside a process in a container: %s", got)
	}
	first.in.Close()
	_ = first.cmd.Wait()
	p, _ := m.start("--slots=1 --slots-wait=20s", "sleep 60 & "+where)
	if got := in.run("--slots=1 --slots-wait=0", "echo runs"); !strings.Contains(got, unseen) {
		t.Errorf("in a container: %s", got)
	}
	must.OK(t, p.cmd.Process.Kill())
	_ = p.cmd.Wait()
	if got := in.run("--slots=1 --slots-wait=4s", "echo runs"); !strings.Contains(got, unseen) {
		t.Errorf("in a container, after the end: %s", got)
	}
	if got := m.run("--slots=1 --slots-wait=20s", "echo runs"); !strings.HasSuffix(got, "runs") {
		t.Errorf("outside, after the end: %s", got)
	}
}

// If two processes without slots have the whole GPU at the same time, one message reports it. Two processes in
// sequence get no message, and a process and its child get none.
func TestProcessesWithoutSlots(t *testing.T) {
	t.Parallel()
	m := newMembers(t, 1)
	must.Equal(t, "the first process prints", m.run("", "true"), "")
	must.Equal(t, "the second process, with a child, prints", m.run("", `$WRAP true; true`), "")
	first, _ := m.start("", where)
	const want = "mpirun-wrap: another process of this job runs on the same GPU, and each has the whole share: " +
		"to divide it, give all of them --slots=N (or set SLURM_MPS_SLOTS=N)"
	must.Equal(t, "the process beside it prints", m.run("", "true"), want)
	must.Equal(t, "the next process prints the message again", m.run("", "true"), "")
	first.in.Close()
}

// A process with a slot beside one without is told, whichever comes first. A process of a slot's own program is not.
func TestSlotsBesideNoSlots(t *testing.T) {
	const mixed = "mpirun-wrap: some processes of this job on this GPU have slots and some have none, " +
		"so they have more than the GPU together: give all of them the same --slots=N (or set SLURM_MPS_SLOTS=N)"
	for _, flags := range [][2]string{{"--slots=4", ""}, {"", "--slots=4"}, {"--local-rank=0 --local-size=2", "--slots=4"}} {
		t.Run(strings.Join(flags[:], " beside "), func(t *testing.T) {
			t.Parallel()
			m := newMembers(t, 1)
			first, line := m.start(flags[0], where)
			must.Hold(t, !strings.HasPrefix(line, "mpirun-wrap"), "the first one prints %s", line)
			must.Equal(t, "the second one prints", m.run(flags[1], "true"), mixed)
			first.in.Close()
			_ = first.cmd.Wait()
			must.Equal(t, "a process alone prints", m.run(flags[1], "true"), "")
		})
	}
	t.Run("in a slot", func(t *testing.T) {
		t.Parallel()
		must.Equal(t, "prints", newMembers(t, 1).run("--slots=4", "exec $WRAP -- true"), "")
	})
}

// Ranks that ask for more slots than they are leave a part of the GPU idle. A process alone may be one of many steps.
func TestMoreSlotsThanRanks(t *testing.T) {
	t.Parallel()
	m := newMembers(t, 1)
	must.Equal(t, "a process alone prints", m.run("--slots=8", "true"), "")
	m.env = append(m.env, "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=4", "OMPI_COMM_WORLD_RANK=0",
		"OMPI_COMM_WORLD_SIZE=4")
	const want = "mpirun-wrap: --slots=8 is more than the 4 ranks of this step on the node: if no other step takes " +
		"the rest, a part of the GPUs stays unused: leave out --slots"
	must.Equal(t, "prints", m.run("--slots=8", "true"), want)
	must.Equal(t, "as many slots as ranks", m.run("--slots=4", "true"), "")
}

// Members are killed at any moment, from their start to after their end: no slot is lost, and none has two holders.
//
// Contract: K6
func TestSlotsOfKilledMembers(t *testing.T) {
	t.Parallel()
	m := newMembers(t, 2)
	kills := 300
	if n, err := strconv.Atoi(os.Getenv("SLOT_KILLS")); err == nil {
		kills = n
	}
	const slots = 6
	script := `slot=$(readlink /proc/$$/fd/230); exec 9>>"` + m.dir + `/used/${slot##*/}"; flock -n 9 || echo "two in ${slot##*/}"; sleep 0.0` + "$(( $$ % 5 ))"
	work := make(chan int)
	var group sync.WaitGroup
	for range slots + 2 {
		group.Go(func() {
			for range work {
				cmd := exec.Command("/bin/sh", "-c", "exec $WRAP --slots="+strconv.Itoa(slots)+` -- /bin/sh -c "$0"`, script)
				var said strings.Builder
				cmd.Env, cmd.Stdout, cmd.WaitDelay = m.env, &said, timeLimit
				if err := cmd.Start(); err != nil {
					t.Error(err)
					continue
				}
				time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				if said.Len() > 0 {
					t.Error(said.String())
				}
			}
		})
	}
	for i := range kills {
		work <- i
	}
	close(work)
	group.Wait()
	for range slots {
		if _, line := m.start("--slots=6 --slots-wait=5s", where); !strings.HasPrefix(line, "GPU-") {
			t.Errorf("a slot is lost: %s", line)
		}
	}
}
