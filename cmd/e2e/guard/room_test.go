// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// The tests of this file fill a GPU or a host: its memory, its places for clients, or the memory of a control group.
// What the guard holds there costs no neighbour its life, and no other program its start. ROOM_ROUNDS is how often a
// test of one end repeats it, and ROOM_KILLS how many members the kernel kills.

// Row: seven PyTorch ranks start together, six hold 15 GiB and compute. The seventh queues 0.9 s of kernels, allocates
// until CUDA is out of memory, and ends with exit 1. On an H200 its six neighbours died in 3 of 5 trials.
func TestRoomARankThatFillsTheGPU(t *testing.T) {
	s := e2e.NewShared(t)
	for range e2e.Number(t, "ROOM_ROUNDS", 2) {
		neighbours := s.Neighbours(6, 15<<10) // the victim leaves no memory for one that is late
		victim := s.Start("spin", "-ms", "5", "-queue", "180", "-for", "900", "-grow", "2048", "-after", "0.1")
		if said := victim.Ends(); !strings.Contains(said, "alloc err=2 ") || victim.ProcessState.ExitCode() != 1 {
			t.Fatalf("the victim ends with %v and prints %q", victim.ProcessState, said)
		}
		s.RoomSoon()
		s.Survive(neighbours, 900*time.Millisecond)
	}
}

// Row: a member of 70 GiB is killed with 2 s in flight, and the next one starts. On an H200 the neighbours died in one
// of two trials. A next member that mpirun-wrap starts gets its memory.
func TestRoomTheNextMemberNeedsTheMemory(t *testing.T) {
	t.Parallel()
	next := []string{"spin", "-ms", "5", "-for", "0.5", "-mib", fmt.Sprint(70 << 10)}
	for _, wrapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("mpirun-wrap %v", wrapped), func(t *testing.T) {
			s := e2e.NewShared(t)
			for range e2e.Number(t, "ROOM_ROUNDS", 1) {
				neighbours := s.Neighbours(2, 0)
				wait.Sleep(s.Ctx, 1500*time.Millisecond) // so that the neighbours are older than the death
				victim := s.Start("spin", "-ms", "5", "-queue", "400", "-for", "900", "-mib", fmt.Sprint(70<<10))
				wait.Sleep(s.Ctx, 100*time.Millisecond)
				victim.Kill()
				cmd := s.AsUser(append([]string{s.CudaClient()}, next...)...)
				if wrapped {
					cmd = s.Wrapped(append([]string{s.CudaClient()}, next...)...)
				}
				out, err := cmd.CombinedOutput()
				switch done := err == nil && strings.Contains(string(out), " done "); {
				case !done && wrapped:
					t.Errorf("the next member: %v: %s", err, out)
				case !done:
					t.Logf("the next member, without mpirun-wrap: %v: %s", err, out)
				}
				s.RoomSoon()
				s.Survive(neighbours, 2*time.Second)
			}
		})
	}
}

// Rows: 40 ranks on one GPU, and 26, each run two short CUDA programs one after the other. On an H200, 23 of 40 could
// start the second one (error 2), and 40 of 40 with hold = "0s". Simulated, 22 of 26 could.
func TestRoomForTheSecondProgram(t *testing.T) {
	for _, ranks := range []int{40, 26} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) { e2e.NewShared(t).TwoPrograms(ranks) })
	}
}

// Row: xargs -P2 mpirun-wrap --slots=2, 12 members of 66,000 MiB. Simulated, 12, 6 and 11 of 12 worked, and 12 of 12
// with hold = "0s".
func TestRoomForBigMembers(t *testing.T) {
	s := e2e.NewShared(t)
	s.BigMembers()
	s.RoomSoon()
}

// Without a guard, the programs of these rows start. So what fails beside a guard is what the guard holds.
func TestRoomWithoutAGuard(t *testing.T) {
	for _, ranks := range []int{40, 26} {
		t.Run(fmt.Sprintf("two programs, %d ranks", ranks), func(t *testing.T) { e2e.NewShared(t, `hold = "0s"`).TwoPrograms(ranks) })
	}
	t.Run("big members", func(t *testing.T) { e2e.NewShared(t, `hold = "0s"`).BigMembers() })
}

// Row: forty clients are killed with work in flight, eight come at once, and two neighbours compute. The neighbours
// died in two of two trials. 42 clients take places, and a GPU has 48. Eight that mpirun-wrap starts find places.
func TestRoomFortyDieAndEightCome(t *testing.T) {
	next := []string{"spin", "-ms", "20", "-for", "3"}
	for _, wrapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("mpirun-wrap %v", wrapped), func(t *testing.T) {
			s := e2e.NewShared(t)
			neighbours := s.Neighbours(2, 0)
			victims := s.Together(40, "spin", "-ms", "20", "-replay", "-queue", "5", "-for", "900")
			wait.Sleep(s.Ctx, 1500*time.Millisecond) // so that all are older than the deaths
			for _, victim := range victims {
				_ = victim.Process.Signal(syscall.SIGKILL)
			}
			if wrapped {
				c := s.Node.Launch(8, append([]string{s.CudaClient()}, next...)...)
				codes, _ := c.End()
				if slices.ContainsFunc(codes, func(code int) bool { return code != 0 }) {
					t.Errorf("the eight end with codes %d\n%s", codes, e2e.Failures(c.Out()))
				}
			} else {
				t.Logf("%d of 8 without mpirun-wrap worked", s.Plain(8, next...))
			}
			s.RoomSoon()
			s.Survive(neighbours, 4*time.Second)
		})
	}
}

// Row: six members at once of 22 GB, 60 in all. Every third one crashes, by a signal or exit 1, with 0.6 s in flight.
// All others work, and those that crash do so by themselves, half a second after their start: the guard has found them
// then, also on a busy machine.
func TestRoomForMembersOfWhichSomeCrash(t *testing.T) {
	s := e2e.NewShared(t)
	const members, crash = 60, 20
	out := s.Ensemble(members, 6, `case $(($1 % 6)) in 0) how="-queue 220 -end signal:11 -after 0.5";; `+
		`3) how="-queue 220 -end exit:1 -after 0.5";; *) how="-for 0.5";; esac; WRAP CLIENT spin -ms 5 -mib 22000 $how`)
	ready, done := strings.Count(out, " ready "), strings.Count(out, " done ")
	t.Logf("%d of %d members started, and %d of %d ended well", ready, members, done, members-crash)
	if ready < members || done < members-crash {
		t.Errorf("%d of %d members started, and %d of %d ended well\n%s\n%s", ready, members, done, members-crash, e2e.Failures(out), s.Closings())
	}
	s.RoomSoon()
}

// Row: the kernel kills a rank with 1 s in flight, because the memory of its control group is full. The rank's host
// memory stays charged to the group while its files are held. The neighbours are in the group, too. The rank grows
// after the guard's last scan, and leaves more free than it had then.
func TestRoomInTheHostsMemory(t *testing.T) {
	const room = 96 << 20
	s := e2e.NewShared(t)
	job := e2e.NewMemoryGroup(t, 1<<40)
	step := job.Below("step")
	client := func(args ...string) *e2e.Running {
		cmd := exec.Command("env", step.Inside(slices.Concat(e2e.Setpriv, []string{s.CudaClient()}, args)...)...)
		cmd.Env, cmd.SysProcAttr = s.Env, &syscall.SysProcAttr{Setpgid: true}
		return s.Begin(cmd)
	}
	var neighbours []*e2e.Running
	for range 2 {
		neighbours = append(neighbours, client("spin", "-ms", "5", "-for", "10000", "-exit-idle"))
	}
	full := job.Used() + room
	job.Set("memory.limit_in_bytes", "memory.max", fmt.Sprint(full))
	for range e2e.Number(t, "ROOM_KILLS", 3) {
		wait.Sleep(s.Ctx, 1200*time.Millisecond) // so that the neighbours are older than the death
		victim := client("spin", "-ms", "5", "-queue", "220", "-for", "900", "-grow-host", "4", "-after", "1")
		said := victim.Ends()
		if status, ok := victim.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			t.Fatalf("the victim ends with %v and prints %q", victim.ProcessState, said)
		}
		died := time.Now()
		used := job.Used()
		if held := s.Held(s.Guard.PID, "/nvidia-uvm") > 2*len(neighbours); held && used < full-room/2 {
			t.Errorf("the group has %d of %d bytes in use while the victim's files are held", used, full)
		}
		if !e2e.Comes(func() bool { return job.Used() <= full-room/2 }) {
			t.Fatalf("the group is still full %v after the kill\n%s", e2e.WaitLimit, s.Closings())
		}
		t.Logf("the group had room %v after the kill", time.Since(died))
		if next := client("spin", "-ms", "5", "-for", "0.2", "-host", "16"); !strings.Contains(next.Ends(), " done ") {
			t.Errorf("the next member ends with %v", next.ProcessState)
		}
		wait.Sleep(s.Ctx, time.Until(died.Add(time.Second+e2e.HitBy)))
		if alive := s.Alive(neighbours); alive < len(neighbours) {
			t.Fatalf("%d of %d neighbours live\n%s", alive, len(neighbours), s.Closings())
		}
	}
	s.Lives(neighbours...)
}
