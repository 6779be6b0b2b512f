// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// ways are the ways in which a client is started.
var ways = []struct {
	name  string
	start func(s *e2e.Shared, client []string) *e2e.Running
}{
	{"plain", func(s *e2e.Shared, client []string) *e2e.Running { return s.Launch(client...) }},
	{"a child of a shell", func(s *e2e.Shared, client []string) *e2e.Running {
		return s.Launch("sh", "-c", e2e.ShellWords(client)+" & wait")
	}},
	{"an orphan in a session of its own", func(s *e2e.Shared, client []string) *e2e.Running {
		return s.Launch("sh", "-c", "setsid "+e2e.ShellWords(client)+" & exit 0")
	}},
	{"in a pid namespace", func(s *e2e.Shared, client []string) *e2e.Running {
		inside := slices.Concat(e2e.Setpriv, []string{"sh", "-c", e2e.ShellWords(client) + "; exit 0"})
		cmd := exec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc", "--kill-child"}, inside...)...)
		cmd.Env = s.Env
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return s.Begin(cmd)
	}},
	{"in a user namespace", func(s *e2e.Shared, client []string) *e2e.Running {
		if err := s.AsUser("unshare", "-U", "true").Run(); err != nil {
			s.T.Skip("this machine allows no user namespaces: ", err)
		}
		return s.Launch(append([]string{"unshare", "-U", "--map-root-user"}, client...)...)
	}},
	{"not dumpable", func(s *e2e.Shared, client []string) *e2e.Running {
		library := must.Get(undumpable())(s.T)
		r := s.Launch(append([]string{"env", "LD_PRELOAD=" + library}, client...)...)
		info, err := os.Stat(fmt.Sprintf("/proc/%d/fd", r.Pid))
		must.Hold(s.T, err != nil || info.Sys().(*syscall.Stat_t).Uid == 0, "the client is dumpable")
		return r
	}},
	{"without its first thread", func(s *e2e.Shared, client []string) *e2e.Running {
		library := must.Get(e2e.WithoutFirstThread())(s.T)
		r := s.Launch(append([]string{"env", "LD_PRELOAD=" + library}, client...)...)
		if stat, err := proc.ReadStat(r.Pid); err == nil && stat.State != 'Z' {
			s.T.Error("the client's first thread has not ended")
		}
		return r
	}},
}

// undumpable builds the library of testdata/undumpable.c once and returns its path.
var undumpable = sync.OnceValues(func() (string, error) {
	folder, err := testnode.Shared()
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "undumpable.so")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-o", path, "testdata/undumpable.c").CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build %s: %w: %s", path, err, out)
	}
	return path, nil
})

// endings are the ways in which a client ends while its kernels are queued.
var endings = []string{"signal:9", "signal:15", "signal:11", "signal:6", "exit:0", "_exit:0", "_exit:1", "alloc"}

// someEndings returns three of the endings, and others for the next number, so that eight numbers have each ending
// three times. In the sweep it returns all.
func someEndings(number int) []string {
	if e2e.Everything {
		return endings
	}
	var chosen []string
	for i := range 3 {
		chosen = append(chosen, endings[(number+3*i)%len(endings)])
	}
	return chosen
}

// loads are the kernels that a client has queued when it ends, and how long they take together. Most of them take
// long enough for a guard on a loaded machine, on which other tests run too. The last load ends as early as a client
// with queued kernels can end.
var loads = []struct {
	name  string
	args  []string
	takes time.Duration
}{
	{"150 x 5 ms", []string{"-ms", "5", "-queue", "150", "-after", "0.3"}, 750 * time.Millisecond},
	{"1 x 400 ms", []string{"-ms", "400", "-after", "0.2"}, 400 * time.Millisecond},
	{"20 x 5 ms", []string{"-ms", "5", "-queue", "20", "-after", "0.02"}, 100 * time.Millisecond},
}

// A client that ends harms no neighbour, however it ends, however it was started and whatever kernels it has queued.
// The neighbour lives while the guard holds the client's files and after it closes them, and new clients work.
func TestClientsThatEndHarmNoNeighbour(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	cells := 0
	for _, way := range ways {
		for _, load := range loads {
			if way.name != "plain" && load.name != loads[0].name {
				continue
			}
			tried := someEndings(cells)
			cells++
			t.Run(way.name+", "+load.name, func(t *testing.T) {
				s := e2e.NewShared(t, `hold = "10s"`)
				neighbour := s.Neighbour()
				for _, ending := range tried {
					victim := way.start(s, slices.Concat([]string{s.CudaClient(), "spin", "-for", "900", "-end", ending}, load.args))
					victim.Ends()
					s.Works()
					// Otherwise the queued kernels add up, and the next client makes the guard close the files.
					wait.Sleep(s.Ctx, load.takes)
					if s.Ended(neighbour) {
						t.Fatalf("after %s\n%s\n%s", ending, s.ServerLog(7), s.Log())
					}
				}
				s.Lives(s.Fill(neighbour)...)
				s.Knows(len(tried) + 2)
			})
		}
	}
}

// Eight clients that end together queue more kernels than one client does. The kernels are done before the guard
// closes the clients' files, so the neighbour lives.
func TestManyClientsThatEndTogetherHarmNoNeighbour(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		signals []syscall.Signal
	}{
		{"SIGKILL", []syscall.Signal{syscall.SIGKILL}},
		{"one of four signals each", []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSEGV, syscall.SIGABRT}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := e2e.NewShared(t, `hold = "5m"`)
			neighbour := s.Neighbour()
			var victims []*e2e.Running
			for range 8 {
				victims = append(victims, s.Start("spin", "-ms", "5", "-queue", "150", "-for", "900"))
			}
			s.Holds(18)
			for i, victim := range victims {
				_ = victim.Process.Signal(c.signals[i%len(c.signals)])
			}
			for _, victim := range victims {
				victim.Ends()
			}
			wait.Sleep(s.Ctx, 7*time.Second) // the clients' kernels take 6 s, one after the other
			s.HoldsNow(18)
			s.Lives(s.Fill(neighbour)...)
		})
	}
}

// Without a guard, a client that ends in one of these ways also ends its neighbour. If the neighbour lived, the other
// tests of the guard would prove nothing.
func TestClientsThatEndWithoutAGuardHarmTheirNeighbour(t *testing.T) {
	t.Parallel()
	for _, ending := range []string{"signal:9", "signal:15", "exit:0", "_exit:0"} {
		for _, load := range loads[:2] {
			t.Run(ending+", "+load.name, func(t *testing.T) {
				s := e2e.NewShared(t)
				must.OK(t, s.Guard.Kill(syscall.SIGKILL))
				s.Gone(s.Guard)
				neighbour := s.Neighbour()
				s.Start(slices.Concat([]string{"spin", "-for", "900", "-end", ending}, load.args)...).Ends()
				if said := neighbour.Ends(); !strings.Contains(said, "err=700") {
					t.Errorf("the neighbour prints %q", said)
				}
			})
		}
	}
}

// The guard finds a process that was started without the daemon's folder and logs it with the cause, and leaves the
// process alone. It does not log a client of MPS beside that process.
//
// Contract: K4
func TestAProcessOutsideMPSIsNamed(t *testing.T) {
	s := e2e.NewShared(t, `compute_mode = "unchanged"`)
	client := s.Neighbour()
	titled := s.Start("title", "spin", "-for", "600") // which keeps the variable, and shows it no more
	s.Env = slices.DeleteFunc(slices.Clone(s.Env), func(v string) bool { return strings.HasPrefix(v, "CUDA_MPS_PIPE_DIRECTORY=") })
	began := time.Now()
	outsider := s.Neighbour()
	pid := outsider.Process.Pid
	line := fmt.Sprintf(`"pid":%d,`, pid)
	logged := func() string {
		for line := range strings.Lines(s.Log()) {
			if strings.Contains(line, "is not a client of its MPS daemon") {
				return line
			}
		}
		return ""
	}
	if !e2e.Comes(func() bool { return logged() != "" }) {
		t.Fatalf("the guard does not log process %d\n%s", pid, s.Log())
	}
	if took := time.Since(began); took < 5*time.Second-100*time.Millisecond {
		t.Errorf("logged after %v: the guard checked the process only once", took)
	}
	const cause = "it was started without CUDA_MPS_PIPE_DIRECTORY"
	if said := logged(); !strings.Contains(said, line) || !strings.Contains(said, cause) || !strings.Contains(said, `"program":"guard"`) {
		t.Errorf("the log has %s, want %s and %q", said, line, cause)
	}
	s.When(func() bool { return len(s.State().Outside) > 0 }) // the guard writes its state once a second
	for _, command := range []string{"status", "audit"} {
		if found := s.Outsiders(command); !strings.Contains(found[pid], cause) || len(found) != 1 {
			t.Errorf("%s: %v, want pid %d alone with %q", command, found, pid, cause)
		}
	}
	if status := s.Ctl("status").Output; !strings.Contains(status, "overwritten its environment") {
		t.Errorf("status of a client with a title:\n%s", status)
	}
	must.Hold(t, !s.Ended(outsider) && !s.Ended(client) && !s.Ended(titled), "a process has ended")
	for _, r := range []*e2e.Running{client, outsider, titled} {
		r.Kill()
	}
	s.Must(0, s.Job, "epilog")
	if log := s.Log(); strings.Count(log, "is not a client of its MPS daemon") != 1 || !strings.Contains(log, `"outside":1,`) {
		t.Errorf("the log does not report exactly one outside process:\n%s", log)
	}
}
