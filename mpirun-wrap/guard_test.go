package mpirunwrap

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// TestMain has what the tests start end of SIGHUP also where they were themselves started with it ignored, by nohup: a
// signal that is caught is at its default in a new program, and one that is ignored is ignored.
func TestMain(m *testing.M) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	os.Exit(m.Run())
}

// guardBinary is a wrapper that does nothing but Guard: that waits for every child of its process, so it needs one.
// It has no name any more, so that nothing of it is left, and is run through its descriptor.
var guardBinary = sync.OnceValues(func() (*os.File, error) {
	dir, err := os.MkdirTemp("", "guard")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "guard")
	cmd := exec.Command("go", "build", "-o", path, "./testdata/guard")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot build guard: %w: %s", err, out)
	}
	return os.Open(path)
})

// rank is a program below a guard, with a folder to leave files in.
type rank struct {
	t     *testing.T
	dir   string
	guard string
	cmd   *exec.Cmd
	said  *bytes.Buffer // stdout and stderr, to be read when it has ended
	ended chan struct{}
}

func newRank(t *testing.T) *rank {
	t.Helper()
	t.Parallel()
	binary, err := guardBinary()
	if err != nil {
		t.Fatal(err)
	}
	return &rank{t: t, dir: t.TempDir(), said: &bytes.Buffer{}, guard: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), binary.Fd())}
}

// start starts it in a process group of its own; what is left of the rank is killed when the test ends.
func (r *rank) start(line ...string) {
	r.t.Helper()
	r.cmd = exec.Command(line[0], line[1:]...)
	r.cmd.Dir, r.cmd.Stdout, r.cmd.Stderr = r.dir, r.said, r.said
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.ended = make(chan struct{})
	go func() { _ = r.cmd.Wait(); close(r.ended) }()
	r.t.Cleanup(func() { _ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL); <-r.ended })
}

// sh starts a guard with flags over a shell's script.
func (r *rank) sh(flags []string, script string) {
	r.t.Helper()
	r.start(append(append([]string{r.guard}, flags...), "--", "/bin/sh", "-c", script)...)
}

const patience = 15 * time.Second

// code waits for the wrapper's end.
func (r *rank) code() int {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(patience):
		r.t.Fatal("the wrapper does not end")
	}
	if status := r.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		r.t.Fatalf("the wrapper died of %v", status.Signal())
	}
	return r.cmd.ProcessState.ExitCode()
}

func (r *rank) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rank) signalGroup(s syscall.Signal) {
	r.t.Helper()
	if err := syscall.Kill(-r.cmd.Process.Pid, s); err != nil {
		r.t.Fatal(err)
	}
}

// proc is the process that wrote its pid into a file of the folder.
func (r *rank) proc(name string) site.Proc {
	r.t.Helper()
	var proc site.Proc
	r.until("pid in "+name, func() bool {
		content, _ := os.ReadFile(filepath.Join(r.dir, name))
		pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
		if err != nil || !bytes.HasSuffix(content, []byte("\n")) {
			return false
		}
		stat, err := site.ReadStat(pid)
		proc = stat.Proc
		return err == nil
	})
	return proc
}

func (r *rank) until(what string, done func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for !done() {
		if !site.Pause(ctx, time.Millisecond) {
			r.t.Fatalf("no %s", what)
		}
	}
}

func stateOf(p site.Proc) byte {
	stat, err := site.ReadStat(p.PID)
	if err != nil || stat.Start != p.Start {
		return 'X'
	}
	return stat.State
}

func TestTheProgramsExitIsTheWrappers(t *testing.T) {
	for _, c := range []struct {
		program []string
		code    int
		says    string
	}{
		{[]string{"true"}, 0, ""},
		{[]string{"sh", "-c", "exit 7"}, 7, ""},
		{[]string{"sh", "-c", "exit 255"}, 255, ""},
		{[]string{"sh", "-c", "kill -SEGV $$"}, 128 + 11, ""},
		{[]string{"sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		{[]string{"sh", "-c", "kill -USR1 $$"}, 128 + 10, ""},
		{[]string{"nosuchprogram"}, 127, "guard: cannot run nosuchprogram: not found in PATH\n"},
		{[]string{"/etc/passwd"}, 126, "guard: cannot run /etc/passwd: permission denied\n"},
		{[]string{"./text"}, 126, "guard: cannot run ./text: exec format error\n"},
		{[]string{"./orphan"}, 127, "guard: cannot run ./orphan: no such file or directory\n"},
	} {
		t.Run(strings.Join(c.program, " "), func(t *testing.T) {
			r := newRank(t)
			for name, content := range map[string]string{"text": "no program\n", "orphan": "#!/nonexistent/interpreter\n"} {
				if err := os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			r.start(append([]string{r.guard, "--"}, c.program...)...)
			if code := r.code(); code != c.code || r.said.String() != c.says {
				t.Errorf("code %d and %q, want %d and %q", code, r.said, c.code, c.says)
			}
		})
	}
}

// What a program inherits is what it has without a wrapper, but for SIGTERM and SIGINT.
func TestWhatAProgramInherits(t *testing.T) {
	const asks = `ulimit -Sn; ulimit -Sc; cat /proc/self/stat | cut -d' ' -f5,6; grep -E 'SigBlk|SigIgn' /proc/self/status`
	for _, c := range []struct{ name, before string }{{"plain", ""}, {"under nohup", "trap '' HUP; "}} {
		t.Run(c.name, func(t *testing.T) {
			bare, below := newRank(t), &rank{t: t, said: &bytes.Buffer{}}
			below.dir, below.guard = bare.dir, bare.guard
			limits := "ulimit -Sn 512; ulimit -Sc 0; " + c.before
			bare.start("/bin/sh", "-c", limits+asks)
			below.start("/bin/sh", "-c", limits+"exec "+bare.guard+" -- /bin/sh -c '"+asks[:strings.Index(asks, "'")]+`" " -f5,6; grep -E "SigBlk|SigIgn" /proc/self/status'`)
			if bare.code() != 0 || below.code() != 0 {
				t.Fatalf("%s\n%s", bare.said, below.said)
			}
			got, want := strings.Split(below.said.String(), "\n"), strings.Split(bare.said.String(), "\n")
			// Each has a group of its own, in the session of the test.
			if fmt.Sprint(got[0], got[1], got[3]) != fmt.Sprint(want[0], want[1], want[3]) || got[0] != "512" {
				t.Errorf("got  %q\nwant %q", got, want)
			}
			session := strings.Fields(want[2])[1]
			if got[2] != fmt.Sprintf("%d %s", below.cmd.Process.Pid, session) {
				t.Errorf("group and session %s, want the wrapper's", got[2])
			}
			const terminateAndInterrupt = 0x4002 // what is ignored without a wrapper depends on who runs the tests
			if ignored(t, got[4]) != ignored(t, want[4])|terminateAndInterrupt {
				t.Errorf("%s, and without a wrapper %s", got[4], want[4])
			}
		})
	}
}

// ignored reads a line of /proc/PID/status.
func ignored(t *testing.T, line string) (mask uint64) {
	t.Helper()
	if _, err := fmt.Sscanf(line, "SigIgn:\t%x", &mask); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return mask
}

func TestASignalEndsARank(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGXCPU, syscall.SIGUSR1} {
		t.Run(unix.SignalName(signal), func(t *testing.T) {
			r := newRank(t)
			r.sh(nil, "echo $$ >pid; exec sleep 60")
			program := r.proc("pid")
			r.signal(signal)
			if code := r.code(); code != 128+int(signal) {
				t.Errorf("code %d, %s", code, r.said)
			}
			if program.Alive() {
				t.Error("the program lives")
			}
		})
	}
}

// catcher is a program that catches SIGTERM, which a shell cannot: what is ignored at its start stays so.
const catcher = `exec python3 -c '
import os, signal, sys, time
def caught(*_):
    print("caught", flush=True)
    if sys.argv[1] == "ends": sys.exit(3)
signal.signal(signal.SIGTERM, caught)
signal.signal(signal.SIGUSR1, caught)
open("pid", "w").write("%d\n" % os.getpid())
end = time.time() + 60
while time.time() < end: time.sleep(1)
' `

func TestAProgramThatCatchesTheSignal(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	t.Run("ends in its grace with its own code", func(t *testing.T) {
		r := newRank(t)
		r.sh(nil, catcher+"ends")
		r.proc("pid")
		r.signal(syscall.SIGTERM)
		if code := r.code(); code != 3 || r.said.String() != "caught\n" {
			t.Errorf("code %d, said %q", code, r.said)
		}
	})
	t.Run("does not end in its grace", func(t *testing.T) {
		r := newRank(t)
		r.sh([]string{"-grace", "300ms"}, catcher+"stays")
		r.proc("pid")
		began := time.Now()
		r.signal(syscall.SIGTERM)
		if code := r.code(); code != 128+15 || r.said.String() != "caught\n" {
			t.Errorf("code %d, said %q", code, r.said)
		}
		if took := time.Since(began); took < 300*time.Millisecond {
			t.Errorf("its grace was %v", took)
		}
	})
	t.Run("a second signal ends the grace", func(t *testing.T) {
		r := newRank(t)
		r.sh([]string{"-grace", "1h", "-drain", "50ms"}, catcher+"stays")
		program := r.proc("pid")
		r.signal(syscall.SIGTERM)
		// An echo of the first is none: signals are sent until the drain has passed and one counts.
		r.until("end of the program", func() bool {
			_ = r.cmd.Process.Signal(syscall.SIGTERM)
			return !program.Alive()
		})
		if code := r.code(); code != 128+15 {
			t.Errorf("code %d", code)
		}
	})
	t.Run("got it from the launcher: it is not sent again", func(t *testing.T) {
		r := newRank(t)
		r.sh([]string{"-broadcast", "-grace", "300ms"}, catcher+"stays")
		r.proc("pid")
		r.signal(syscall.SIGTERM)
		if code := r.code(); code != 128+15 || r.said.String() != "" {
			t.Errorf("code %d, said %q", code, r.said)
		}
	})
	t.Run("a signal that it expects is passed on and ends nothing", func(t *testing.T) {
		r := newRank(t)
		r.sh(nil, catcher+"ends")
		r.proc("pid")
		r.signal(syscall.SIGUSR1)
		if code := r.code(); code != 3 || r.said.String() != "caught\n" {
			t.Errorf("code %d, said %q", code, r.said)
		}
	})
}

// Whatever a rank has started goes with it: children of shells, forks, sessions of their own, orphans.
func TestATreeGoesWhole(t *testing.T) {
	r := newRank(t)
	r.sh(nil, `sh -c 'echo $$ >a; sleep 60; :' &
setsid sh -c 'echo $$ >b; sleep 60; :' &
(setsid sh -c 'echo $$ >c; exec sleep 60' &)
echo $$ >pid; wait`)
	var procs []site.Proc
	for _, name := range []string{"pid", "a", "b", "c"} {
		procs = append(procs, r.proc(name))
	}
	r.until("orphan below the wrapper", func() bool {
		stat, err := site.ReadStat(procs[3].PID)
		return err == nil && stat.Parent == r.cmd.Process.Pid
	})
	r.signal(syscall.SIGTERM)
	if code := r.code(); code != 128+15 {
		t.Errorf("code %d", code)
	}
	for i, p := range procs {
		if p.Alive() {
			t.Errorf("process %d of the tree lives", i)
		}
	}
}

// A program that ends leaves what it left in the background alone, as without a wrapper, and zombies go at once.
func TestWhatAProgramLeavesBehind(t *testing.T) {
	r := newRank(t)
	r.sh(nil, `(setsid sh -c 'echo $$ >dead' &) ; setsid sleep 60 >/dev/null 2>&1 & echo $! >left; cat >/dev/null </dev/zero & echo $! >pid; wait $!`)
	left, busy := r.proc("left"), r.proc("pid")
	t.Cleanup(func() { _ = left.Kill(unix.SIGKILL) })
	r.until("end of the orphan", func() bool {
		content, _ := os.ReadFile(filepath.Join(r.dir, "dead"))
		pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
		return err == nil && syscall.Kill(pid, 0) == syscall.ESRCH
	})
	_ = busy.Kill(unix.SIGKILL)
	if code := r.code(); code != 128+9 {
		t.Errorf("code %d", code)
	}
	if !left.Alive() {
		t.Error("what the program left behind is gone")
	}
}

// cuda is a program that looks as if it used CUDA: the file of a library of that name is mapped into it.
const cuda = `exec python3 -c '
import mmap, os, time
with open("libcuda.so.1", "w+b") as f:
    f.truncate(4096)
    page = mmap.mmap(f.fileno(), 4096)
open("pid", "w").write("%d\n" % os.getpid())
time.sleep(60)
'`

// A rank that may have work in flight is stopped at once and killed after the drain, no sooner; any other is not waited
// for. The signal comes to the whole group, as from a launcher: the program must not die of it by itself.
func TestTheDrain(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	for _, c := range []struct {
		name, script string
		drains       bool
	}{{"with CUDA", cuda, true}, {"without", `echo $$ >pid; exec sleep 60`, false}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRank(t)
			const drain = 2 * time.Second
			r.sh([]string{"-broadcast", "-drain", drain.String()}, c.script)
			program := r.proc("pid")
			began := time.Now()
			r.signalGroup(syscall.SIGTERM)
			if c.drains {
				r.until("stopped program", func() bool { return stateOf(program) == 'T' })
				if took := time.Since(began); took > drain/2 {
					t.Errorf("stopped after %v", took)
				}
				r.signalGroup(syscall.SIGTERM) // an echo, which must not end it in mid-kernel
			}
			if code := r.code(); code != 128+15 {
				t.Errorf("code %d", code)
			}
			if took := time.Since(began); took >= drain != c.drains {
				t.Errorf("ended after %v, drain %v", took, drain)
			}
		})
	}
}

// A daemon that does not answer, as happened in 2 of 270 calls on an H200: the rank is stopped again, waits for a longer
// drain and is killed.
func TestADaemonThatHangs(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	r := newRank(t)
	control := filepath.Join(r.dir, "control")
	if err := os.WriteFile(control, []byte("#!/bin/sh\necho asked >>"+r.dir+"/asked\nexec sleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	const drain = 100 * time.Millisecond
	r.sh([]string{"-drain", drain.String(), "-control", control}, cuda)
	program := r.proc("pid")
	began := time.Now()
	r.signal(syscall.SIGTERM)
	r.until("question", func() bool { _, err := os.Stat(filepath.Join(r.dir, "asked")); return err == nil })
	r.until("program that is stopped again", func() bool { return time.Since(began) > terminatePatience && stateOf(program) == 'T' })
	if code := r.code(); code != 128+15 {
		t.Errorf("code %d", code)
	}
	if took := time.Since(began); took < terminatePatience+longer*drain {
		t.Errorf("ended after %v", took)
	}
	if asked, err := os.ReadFile(filepath.Join(r.dir, "asked")); err != nil || string(asked) != "asked\n" {
		t.Errorf("asked %q, %v: want once", asked, err)
	}
}

// A wrapper that has ended its rank waits for its peers, but not for one that was killed, nor for ever.
func TestWrappersWaitForTheirPeers(t *testing.T) {
	self, err := site.Self()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		peer  string
		waits bool
	}{
		{"no peer", "", false},
		{"a peer that drains", fmt.Sprintf("%d-%d", self.PID, self.Start), true},
		{"a peer that was killed", fmt.Sprintf("%d-%d", self.PID, self.Start+1), false},
		{"a file of somebody else's", "x-y", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRank(t)
			peers := filepath.Join(r.dir, "peers")
			if err := os.Mkdir(peers, 0o700); err != nil {
				t.Fatal(err)
			}
			if c.peer != "" {
				if err := os.WriteFile(filepath.Join(peers, c.peer), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			const drain = time.Second
			r.sh([]string{"-drain", drain.String(), "-peers", peers}, "echo $$ >pid; exec sleep 60")
			r.proc("pid")
			began := time.Now()
			r.signal(syscall.SIGTERM)
			r.code()
			if took := time.Since(began); took >= 2*drain != c.waits {
				t.Errorf("ended after %v", took)
			}
			if left, _ := os.ReadDir(peers); len(left) > 1 || len(left) == 1 && left[0].Name() != c.peer {
				t.Errorf("left %v", left)
			}
		})
	}
}

// A wrapper that is killed takes its program along, as if it had been the program.
func TestAKilledWrapper(t *testing.T) {
	r := newRank(t)
	r.sh(nil, "echo $$ >pid; exec sleep 60")
	program := r.proc("pid")
	r.signal(syscall.SIGKILL)
	r.until("end of the program", func() bool { return !program.Alive() })
}

func TestTheWaitingWrapperIsSmall(t *testing.T) {
	r := newRank(t)
	r.sh(nil, "echo $$ >pid; exec sleep 60")
	r.proc("pid")
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(content), "VmRSS:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil || kib > 8<<10 {
		t.Errorf("resident memory %d KiB, %v", kib, err)
	}
}
