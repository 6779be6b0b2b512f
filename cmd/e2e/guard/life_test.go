// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"bufio"
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

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// full is the device number of /dev/full, which every machine has: major 1, minor 7.
const full = 1<<8 | 7

// rareLook is the time between two looks of the guard for no reason.
const rareLook = 10 * time.Second

// device makes a character device that every user may open.
func device(t *testing.T, path string) {
	t.Helper()
	_ = os.Remove(path)
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, full); err != nil {
		t.Skipf("cannot make device files here: %v", err)
	}
	must.OK(t, os.Chmod(path, 0o666))
	file, err := os.Open(path)
	if err != nil {
		t.Skipf("cannot open device files here: %v", err)
	}
	file.Close()
}

// heldDevices counts how many open files of the device a process has, whatever their paths are.
func heldDevices(pid int) (count int) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		var st unix.Stat_t
		if unix.Stat(link, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == full {
			count++
		}
	}
	return count
}

// A container may have a device file of its own: the same device number at another inode, whose openings inotify does
// not report. The guard finds the container's clients too, about as soon as others, and not only when it looks for no
// reason.
func TestAClientWithADeviceFileOfItsOwn(t *testing.T) {
	p := e2e.NewNode(t, "", node.H200)
	path := filepath.Join(p.Sim.Node.Dir, "dev", "nvidia-uvm")
	device(t, path)
	s := e2e.OpenShared(p)
	own := filepath.Join(e2e.PublicDir(t), "nvidia-uvm")
	device(t, own)
	const clients = 5
	early, seen := 0, map[bool]time.Duration{} // with a device file of its own, and with the node's
	for i := range 2 * clients {
		device, isOwn := path, i%2 == 1
		if isOwn {
			device = own
		}
		line := append([]string{"--mount", "sh", "-ec", `mount --bind "$0" "$1"; shift; exec "$@"`, device, path}, e2e.Setpriv...)
		cmd := exec.Command("unshare", append(line, s.CudaClient(), "spin", "-ms", "1", "-for", "900")...)
		cmd.Env = s.Env
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		ready := make(chan time.Time, 1)
		go func() {
			s.Begin(cmd)
			ready <- time.Now()
		}()
		opened := s.When(func() bool { return cmd.Process != nil && heldDevices(cmd.Process.Pid) > 0 })
		held := s.When(func() bool { return heldDevices(s.Guard.PID) == 2*(i+1) })
		seen[isOwn] += held.Sub(opened)
		if held.Before(<-ready) && isOwn {
			early++
		}
	}
	t.Logf("%d clients each: the node's file is held after %v in all, a file of their own after %v", clients, seen[false], seen[true])
	if seen[true] > 3*seen[false]+clients*rareLook/4 {
		t.Errorf("files of their own are held after %v, the node's after %v", seen[true], seen[false])
	}
	if early == 0 {
		t.Errorf("the guard held the files of none of %d clients before their first kernel", clients)
	}
	s.Knows(2 * clients)
}

// The guard closes the last client's files when the GPU has been idle for a moment. The GPU's memory is then free
// again.
func TestTheLastClientsFilesAreNotHeld(t *testing.T) {
	s := e2e.NewShared(t)
	before := s.Free()
	client := s.Start("spin", "-ms", "0", "-for", "900", "-mib", "5000")
	s.Holds(2)
	if with := s.Free(); with > before-5000 {
		t.Fatalf("free memory was %d MiB and is %d", before, with)
	}
	client.Kill()
	died := time.Now()
	s.Holds(0)
	t.Logf("closed after %v", time.Since(died))
	if after := s.Free(); after != before {
		t.Errorf("free memory was %d MiB and is %d", before, after)
	}
	s.Released("work done")
}

// Beside a neighbour, the guard holds a dead client's files as long as there is room. If a program may need the room,
// the guard closes the files of a client that ended in order at once. For any other client it pauses the neighbours
// until the GPU is idle. If it may not pause them, it waits until hold is over.
//
// Contract: G2
func TestHowLongFilesAreHeld(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		policy   string
		mib      string // of the victim; the GPU has 143,155 MiB
		end      string
		newcomer bool
		reason   string        // "" if the files stay
		from     time.Duration // for which they are held
		pauses   int
	}{
		{"killed, with room, beside a newer client", `hold = "1s"`, "5000", "signal:9", true, "", 0, 0},
		{"killed, and its memory may be needed", `hold = "30s"`, "80000", "signal:9", false, "work done", 400 * time.Millisecond, 1},
		{"killed, and no pause is allowed", "hold = \"3s\"\n    pause = \"0s\"", "80000", "signal:9", true, "hold over", 3 * time.Second, 0},
		{"ended in order, with room", `hold = "1s"`, "5000", "exit:0", true, "", 0, 0},
		{"ended in order, and its memory may be needed", `hold = "30s"`, "80000", "exit:0", false, "ended in order", 0, 0},
		{"ended with a status, and its memory may be needed", `hold = "30s"`, "80000", "exit:3", false, "work done", 400 * time.Millisecond, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := e2e.NewShared(t, c.policy)
			s.Free() // starts the server
			s.Holds(0)
			neighbour := s.Neighbour()
			s.Holds(2)
			victim := s.Start("spin", "-ms", "0", "-for", "900", "-mib", c.mib, "-end", c.end, "-after", "1") // a busy guard sees it
			s.Holds(4)
			victim.Ends()
			living := []*e2e.Running{neighbour}
			if c.newcomer {
				living = append(living, s.Neighbour())
			}
			if c.reason == "" {
				wait.Sleep(s.Ctx, 4*time.Second) // longer than hold
				s.Holds(2*len(living) + 2)       // it may duplicate one more file for a moment
			} else {
				s.Holds(2 * len(living))
				s.Released(c.reason)
				if held := s.HeldFor(victim); held < c.from {
					t.Errorf("the guard held the files for %v, want at least %v", held, c.from)
				}
			}
			s.When(func() bool { return s.State().Pauses == c.pauses })
			s.Lives(living...)
		})
	}
}

// After the death of a guard, the end of an idle client harms no neighbour. A second prolog of the running job starts
// another guard, which holds the files of the clients that live.
func TestAGuardThatDies(t *testing.T) {
	s := e2e.NewShared(t)
	idle, neighbour := s.Start("spin", "-ms", "0", "-for", "900"), s.Neighbour()
	s.Holds(4)
	must.OK(t, s.Guard.Kill(unix.SIGKILL))
	s.Gone(s.Guard)
	idle.Kill()
	s.Works()
	if strings.Contains(s.Log(), "the job's guard was gone") {
		t.Fatal("another guard was started before the second prolog")
	}
	s.Node.Open(s.Job)
	if log := s.Log(); strings.Count(log, "the job's guard was gone: another one is started") != 1 {
		t.Errorf("the log does not report exactly one new guard:\n%s", log)
	}
	before := s.Guard
	s.Guard = s.Lease(7).Guard
	if s.Guard == before || !e2e.Alive(s.Guard) {
		t.Fatalf("the guard was %v and is %v", before, s.Guard)
	}
	s.Holds(2)
	victim := s.Start("spin", "-ms", "5", "-queue", "150", "-for", "900")
	s.Holds(4)
	victim.Kill()
	s.Lives(neighbour)
	s.Node.Open(s.Job)
	if s.Lease(7).Guard != s.Guard || strings.Count(s.Log(), "the job's guard was gone") != 1 {
		t.Errorf("a prolog started another guard although one runs\n%s", s.Log())
	}
}

// Nothing about a guard delays the epilog or is left by it: a guard that died or does not answer, or files that it
// holds.
func TestAnEpilogBesideAGuard(t *testing.T) {
	for name, act := range map[string]func(*e2e.Shared){
		"a guard that died":    func(s *e2e.Shared) { _ = s.Guard.Kill(unix.SIGKILL) },
		"a guard that stopped": func(s *e2e.Shared) { _ = s.Guard.Kill(unix.SIGSTOP) },
		"held files": func(s *e2e.Shared) {
			victim := s.Start("spin", "-ms", "5", "-queue", "150", "-for", "900")
			s.Holds(4)
			victim.Kill()
			s.HoldsNow(4)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := e2e.NewShared(t, `drain_grace = "200ms"`, `hold = "10m"`) // an epilog has a minute
			s.Neighbour()
			s.Holds(2)
			act(s)
			s.Must(0, s.Job, "epilog")
			s.Gone(s.Guard)
			s.Clean()
		})
	}
}

// Each job has at most one guard, and each guard has a job.
func TestAGuardStartedByHand(t *testing.T) {
	s := e2e.NewShared(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--job", "7"}, fmt.Sprintf("cannot lock %s/guards/7: %v holds it", s.Paths().Run(), s.Guard)},
		{[]string{"--job", "99"}, "cannot guard job 99: it has no lease on this node: its prolog makes one"},
		{[]string{"--job", "0"}, "want --job ID"},
		{[]string{}, "want --job ID"},
		{[]string{"--job", "4294967296"}, `cannot read --job: it is "4294967296": want a whole number`},
		{[]string{"--job", "-1"}, `cannot read --job: it is "-1": want a whole number`},
		{[]string{"--job", "7", "more"}, `cannot take "more": guard takes only flags`},
	} {
		code, output := s.ByHand(c.args...)
		if code != 1 || !strings.Contains(output, c.want) {
			t.Errorf("%q: code %d: %s, want %q", c.args, code, output, c.want)
		}
	}
	if out, err := s.AsUser(s.Command("guard", "--job", "7")...).CombinedOutput(); err == nil || !strings.Contains(string(out), "not root") {
		t.Errorf("the guard as the job's user: %s, %v", out, err)
	}
	if !e2e.Alive(s.Guard) {
		t.Error("the job's own guard has ended")
	}
	if _, err := os.Stat(filepath.Join(s.Paths().Run(), "guards/99")); err == nil {
		t.Error("a guard without a job left a file")
	}
}

// wakeUps counts how often the threads of processes have gone to sleep.
func wakeUps(t *testing.T, pids ...int) (count int) {
	t.Helper()
	var files []string
	for _, pid := range pids {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		files = append(files, threads...)
	}
	for _, file := range files {
		_, rest, found := strings.Cut(e2e.Read(t, file), "\nvoluntary_ctxt_switches:")
		n := 0
		if _, err := fmt.Sscan(rest, &n); err != nil || !found {
			t.Fatalf("%s: %v", file, err)
		}
		count += n
	}
	return count
}

// family returns a process and its children.
func family(t *testing.T, pid int) []int {
	t.Helper()
	all := []int{pid}
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		child, _ := strconv.Atoi(filepath.Base(folder))
		if stat, err := proc.ReadStat(child); err == nil && stat.Parent == pid {
			all = append(all, child)
		}
	}
	return all
}

// A guard of 48 clients, the process that duplicates files for it and gpu-usage use little memory. They do nothing while
// the clients compute.
func TestAnIdleGuardCostsNothing(t *testing.T) {
	s := e2e.NewShared(t)
	for range 48 {
		s.Start("spin", "-ms", "0", "-for", "900") // longer than the test
	}
	s.Holds(2 * 48)
	wait.Sleep(s.Ctx, 8*time.Second) // the guard has then seen that they are clients of the daemon
	const window, handful = 4 * time.Second, 10
	// The minimum of some, because once in 10 s the guard checks for no reason, and Go's runtime is then busy for a
	// while, on a busy machine longer.
	least := 1 << 30
	recorder := s.Recorder().PID // the recorder has a budget of its own
	ours := slices.DeleteFunc(family(t, s.Guard.PID), func(pid int) bool { return pid == recorder })
	for tries := 0; least > handful && tries < 10; tries++ {
		before := wakeUps(t, ours...)
		wait.Sleep(s.Ctx, window)
		least = min(least, wakeUps(t, ours...)-before)
	}
	if least > handful {
		t.Errorf("%d wake-ups in %v", least, window)
	}
	mib := e2e.Resident(t, ours...)
	if mib > 24 || len(ours) != 3 {
		t.Errorf("resident memory %.1f MiB of processes %v", mib, ours)
	}
	t.Logf("%d wake-ups in %v, resident memory %.1f MiB", least, window, mib)
	s.Knows(48)
	if state := s.State(); state.ClientsPeak != 48 || state.Clients != 48 {
		t.Errorf("%+v", state)
	}
}

// A job's guard runs as root in a session of its own, and the lease names it. The epilog ends it when
// the daemon has no client any more, and before it restores the modes, because the GPU is still the job's.
//
// Contract: G1
func TestAJobsGuard(t *testing.T) {
	p := e2e.NewNode(t, "", node.H200)
	p.Open(p.Job(7, "0"))
	guard := p.Lease(7).Guard
	stat, err := proc.ReadStat(guard.PID)
	if err != nil || stat.Process != guard || stat.Session != guard.PID {
		t.Fatalf("%+v, %v: want process %v in a session of its own", stat, err, guard)
	}
	if group, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", guard.PID)); err == nil && !strings.HasSuffix(string(group), " nice -20\n") {
		t.Errorf("the guard's session is scheduled as %q", group)
	}
	threads := 0
	err = proc.EachThread(guard.PID, func(thread int) bool {
		threads++
		if slack := e2e.Read(t, fmt.Sprintf("/proc/%d/timerslack_ns", thread)); slack != "1000000\n" {
			t.Errorf("thread %d of the guard wakes within %q ns: want 1000000", thread, slack)
		}
		return true
	})
	if err != nil || threads == 0 {
		t.Errorf("the guard has %d threads: %v", threads, err)
	}
	if owner, err := os.Stat(fmt.Sprintf("/proc/%d", guard.PID)); err != nil || owner.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("the guard does not run as root: %v", err)
	}
	p.Close(p.Job(7, "0"))
	log := p.Log()
	restored := strings.Index(log, `"step":"mode restored"`)
	for _, step := range []string{`"step":"daemon ended"`, `"step":"guard ended"`} {
		if at := strings.Index(log, step); at < 0 || at > restored {
			t.Errorf("the log has %s too late or not at all\n%s", step, log)
		}
	}
}

// A job whose hold is 0 has no guard.
//
// Contract: G1
func TestAJobWithoutHold(t *testing.T) {
	p := e2e.NewNode(t, testnode.Default(`hold = "0s"`), node.H200)
	p.Open(p.Job(7, "0"))
	if guard := p.Lease(7).Guard; guard.PID != 0 {
		t.Errorf("the job has a guard although its hold is 0: %v", guard)
	}
	p.Close(p.Job(7, "0"))
}

// Dead clients whose files are held still count against the GPU's limit of clients. More short clients than that
// limit work beside a neighbour, one after another (measured: without a bound, 139 of 1,619 worked).
func TestShortClientsOneAfterAnother(t *testing.T) {
	s := e2e.NewShared(t)
	neighbour := s.Neighbour()
	for i := range policy.Clients + policy.Clients/8 {
		if out := s.Start("spin", "-ms", "1", "-for", "0.05").Ends(); !strings.Contains(out, "done") {
			t.Fatalf("client %d: %s", i+1, out)
		}
	}
	s.Lives(neighbour)
}

// If a rank ends badly while its neighbour computes, the neighbour's standard error gets a line about it. A rank that
// ends in order gets none.
func TestTheJobIsToldOfABadEnd(t *testing.T) {
	s := e2e.NewShared(t)
	reads, writes, err := os.Pipe()
	must.OK(t, err)
	defer reads.Close()
	cmd := s.AsUser(s.CudaClient(), "spin", "-ms", "1", "-for", "900", "-exit-idle")
	cmd.Stderr = writes
	neighbour := s.Open(cmd)
	writes.Close()
	neighbour.Ready()
	s.Env = append(s.Env, "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=3")
	// The guard trusts a status of 0, so this rank leaves no work that could harm the neighbour.
	s.Start("spin", "-for", "0.3", "-ms", "5").Ends()
	s.Start("spin", "-for", "900", "-ms", "5", "-queue", "150", "-after", "0.3", "-end", "signal:9").Ends()
	_ = reads.SetReadDeadline(time.Now().Add(e2e.WaitLimit))
	line, err := bufio.NewReader(reads).ReadString('\n')
	if want := "slurm-mps: rank 3 of step 0 ended by signal 9 while GPU 0 had work; its 1 neighbour goes on\n"; err != nil || line != want {
		t.Errorf("%q, %v\n%s", line, err, s.Log())
	}
	s.Lives(neighbour)
}
