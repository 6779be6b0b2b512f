package cmd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// crash is a job whose ranks die below the unmodified wrapper, in mid-kernel, without anybody's warning.
type crash struct {
	protection
	watched bool
}

// newCrash has the wrapper find the device file where it looks for it, unless it is to do without.
func newCrash(t *testing.T, watched bool) crash {
	t.Helper()
	c := crash{newProtection(t), watched}
	if watched {
		c.showDevice()
	}
	c.env = append(c.asUser(7, []string{"true"}).Env, c.env[2:]...) // of a rank, and of a bare neighbour
	return c
}

// showDevice puts the memory driver's file below the stage's root.
func (p play) showDevice() {
	p.t.Helper()
	target := "/dev/nvidia-uvm"
	if p.Sim != nil {
		target = filepath.Join(p.Sim.Node.Dir, "dev", "nvidia-uvm")
	}
	if err := os.MkdirAll(p.Paths().Devices(), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(p.Paths().Devices(), "nvidia-uvm")); err != nil {
		p.t.Fatal(err)
	}
}

// wrapped is the wrapper's command line before a program.
func (c crash) wrapped(flags ...string) []string { return c.Command("mpirun-wrap", flags...) }

// held counts the files of the memory driver that a process has open.
func held(t *testing.T, pid int) (count int) {
	t.Helper()
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasSuffix(target, "/dev/nvidia-uvm") {
			count++
		}
	}
	return count
}

// holds waits until a wrapper holds so many files, which is at once.
func (c crash) holds(wrapper, want int, within time.Duration) {
	c.t.Helper()
	for deadline := time.Now().Add(within); held(c.t, wrapper) != want; {
		if time.Now().After(deadline) || !site.Pause(c.ctx, time.Millisecond) {
			c.t.Fatalf("the wrapper holds %d files, want %d", held(c.t, wrapper), want)
		}
	}
}

// soon is far more than the wrapper takes to see an opening, and less than cuInit and the first kernel take together.
const soon = 500 * time.Millisecond

// heldFor is how long a wrapper holds what a program left that died.
const heldFor = 5 * time.Second

// neighbour is a client that computes without a wrapper.
func (c crash) neighbour() *exec.Cmd {
	return c.start(nil, "spin", "-ms", "1", "-for", "60", "-exit-idle")
}

// rank is a rank at work whose files its wrapper holds.
func (c crash) rank(wrapper []string, work ...string) *exec.Cmd {
	c.t.Helper()
	rank := c.start(wrapper, append([]string{"spin", "-for", "60"}, work...)...)
	c.holds(rank.Process.Pid, 2, soon)
	return rank
}

// A program that dies in mid-kernel, by whatever, harms no neighbour; its code is the wrapper's, after the work is done.
func TestACrashHarmsNoNeighbour(t *testing.T) {
	for _, c := range []struct {
		name  string
		ranks int
		work  []string
		by    unix.Signal // 0: it ends itself
		code  int
		least time.Duration
		most  time.Duration // of an exit: it is not held as long as a death by a signal
	}{
		{"SIGKILL", 1, []string{"-ms", "400"}, unix.SIGKILL, 137, heldFor, heldFor + patience},
		{"SIGSEGV", 1, []string{"-ms", "400"}, unix.SIGSEGV, 139, heldFor, heldFor + patience},
		{"SIGKILL with kernels of 4 s", 1, []string{"-ms", "4000"}, unix.SIGKILL, 137, heldFor, heldFor + patience},
		{"exit 1", 1, []string{"-ms", "400", "-exit", "0.5"}, 0, 1, 1800 * time.Millisecond, heldFor},
		{"SIGKILL of 8", 8, []string{"-ms", "400"}, unix.SIGKILL, 137, heldFor, heldFor + patience},
	} {
		for _, watched := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, device watched %v", c.name, watched), func(t *testing.T) {
				p := newCrash(t, watched)
				first, second := p.neighbour(), p.neighbour()
				var ranks []*exec.Cmd
				for range c.ranks {
					ranks = append(ranks, p.rank(p.wrapped(), c.work...))
				}
				began := time.Now()
				for _, rank := range ranks {
					if c.by != 0 {
						_ = p.child(rank.Process.Pid).Kill(c.by)
					}
				}
				for _, rank := range ranks {
					if code := p.code(rank); code != c.code {
						t.Errorf("code %d, want %d", code, c.code)
					}
				}
				if took := time.Since(began); took < c.least || took > c.most {
					t.Errorf("the wrapper took %v, want %v to %v", took, c.least, c.most)
				}
				if !p.survive(first, second) {
					t.Errorf("the neighbours died")
				}
			})
		}
	}
}

// The same deaths where nobody holds the files take the neighbours along: else the tests above would prove nothing. A
// program that its user may run and not read is one whose files the kernel does not give away.
func TestACrashThatNobodyHoldsTakesItsNeighboursAlong(t *testing.T) {
	for _, name := range []string{"pass", "refused"} {
		t.Run(name, func(t *testing.T) {
			p := newCrash(t, true)
			neighbour := p.neighbour()
			program, below, flags := p.cudaClient(), false, []string{"--signals=pass"}
			if name == "refused" {
				secret := filepath.Join(publicDir(t), "client")
				content, err := os.ReadFile(p.cudaClient())
				if err == nil {
					err = os.WriteFile(secret, content, 0o711)
				}
				if err != nil {
					t.Fatal(err)
				}
				program, below, flags = secret, true, nil
			}
			rank := p.launched(append(p.wrapped(flags...), program, "spin", "-ms", "400", "-for", "60")...)
			p.atWork(rank.Process.Pid, below)
			if below {
				_ = p.child(rank.Process.Pid).Kill(unix.SIGKILL)
			} else {
				_ = rank.Process.Kill()
			}
			if code := p.code(rank); code != 137 {
				t.Errorf("code %d", code)
			}
			if p.survive(neighbour) {
				t.Error("the neighbour lives")
			}
		})
	}
}

// A worker that dies while the program goes on harms nobody either, and after 5 s nothing is held of it any more.
func TestAWorkersCrash(t *testing.T) {
	p := newCrash(t, true)
	neighbour := p.neighbour()
	rank := p.launched(p.wrapped("sh", "-c", p.cudaClient()+" spin -ms 400 -for 60 & wait; exec sleep 60")...)
	p.holds(rank.Process.Pid, 2, soon)
	worker := p.child(p.child(rank.Process.Pid).PID)
	began := time.Now()
	if err := worker.Kill(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.gone(worker)
	p.holds(rank.Process.Pid, 0, heldFor+patience)
	if took := time.Since(began); took < heldFor {
		t.Errorf("held for %v", took)
	}
	if !p.survive(neighbour) {
		t.Error("the neighbour died")
	}
	if codes, _ := p.cancel(rank); codes[0] != 143 {
		t.Errorf("codes %d", codes)
	}
}

// A program that ends well is not delayed, and one of no CUDA never.
func TestWhatEndsWellIsNotHeld(t *testing.T) {
	p := newCrash(t, true)
	rank := p.start(p.wrapped(), "spin", "-ms", "1", "-for", "60", "-exit-idle")
	p.holds(rank.Process.Pid, 2, soon)
	if codes, took := p.cancel(rank); codes[0] != 0 || took >= heldFor {
		t.Errorf("codes %d after %v", codes, took)
	}
	for _, c := range []struct {
		script string
		code   int
	}{{"sleep 0.2", 0}, {"sleep 0.2; exit 3", 3}, {"sleep 0.2; kill -9 $$", 137}, {p.cudaClient() + " spin -ms 1 -for 0.3", 0}} {
		cmd := p.asUser(7, p.wrapped("sh", "-c", c.script))
		began := time.Now()
		_ = cmd.Start()
		if code := p.code(cmd); code != c.code || time.Since(began) >= heldFor {
			t.Errorf("%q: code %d after %v", c.script, code, time.Since(began))
		}
	}
}

// A first signal to a wrapper that holds does not cut the work short, since a launcher sends it to all ranks when one has
// died; a second does.
func TestASignalWhileFilesAreHeld(t *testing.T) {
	p := newCrash(t, true)
	neighbour := p.neighbour()
	rank := p.rank(p.wrapped("-v"), "-ms", "400")
	program := p.child(rank.Process.Pid)
	began := time.Now()
	_ = program.Kill(unix.SIGKILL)
	p.gone(program)
	_ = rank.Process.Signal(syscall.SIGTERM)
	p.holds(rank.Process.Pid, 2, 0)
	if !site.Pause(p.ctx, time.Until(began.Add(time.Second))) || held(t, rank.Process.Pid) != 2 {
		t.Error("the first signal ended it")
	}
	_ = rank.Process.Signal(syscall.SIGTERM)
	if code := p.code(rank); code != 137 || time.Since(began) >= heldFor {
		t.Errorf("code %d after %v", code, time.Since(began))
	}
	if !p.survive(neighbour) {
		t.Error("the neighbour died")
	}
}

// A client that comes late is held as soon: its opening wakes the wrapper. Three, since a look without a reason, of which
// there is one in 1.5 s by then, may come by chance.
func TestALateClientIsHeldAtOnce(t *testing.T) {
	p := newCrash(t, true)
	var ranks []*exec.Cmd
	for i := range 3 {
		ranks = append(ranks, p.start(append(p.wrapped(), "sh", "-c", `sleep 6; exec "$@"`, "sh"), "spin", "-ms", "5", "-for", "60"))
		p.holds(ranks[i].Process.Pid, 2, soon)
	}
	p.cancel(ranks...)
}

// The wrapper stays small with what it holds.
func TestAHoldingWrapperIsSmall(t *testing.T) {
	p := newCrash(t, true)
	rank := p.rank(p.wrapped(), "-ms", "1")
	p.holdsSmall(crew{p: p.play, ranks: []*exec.Cmd{rank}}, 2*time.Second)
	p.cancel(rank)
}
