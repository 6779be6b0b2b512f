// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

const (
	// soon is the time in which a GPU or a control group has room again after a death, and new clients work.
	soon = 10 * time.Second
	// hitBy is the time in which neighbours are hit after files were closed too early: 130 to 190 ms (measured), more
	// on a busy machine.
	hitBy = 500 * time.Millisecond
)

// rounds returns how often a test repeats a death, and gives the test 30 s for each.
func (s *shared) rounds(variable string, usual int) int {
	s.t.Helper()
	n := number(s.t, variable, usual)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(n)*30*time.Second)
	s.t.Cleanup(cancel)
	s.ctx = ctx
	return n
}

// together starts clients at the same time and waits until each is ready.
func (s *shared) together(n int, args ...string) (clients []*running) {
	s.t.Helper()
	for range n {
		clients = append(clients, s.open(s.asUser(append([]string{s.cudaClient()}, args...)...)))
	}
	for _, client := range clients {
		client.ready()
	}
	return clients
}

// neighbours starts n clients at the same time. They compute until they are asked to end, and each has MiB of memory.
func (s *shared) neighbours(n, mib int) []*running {
	s.t.Helper()
	return s.together(n, "spin", "-ms", "5", "-for", "100", "-exit-idle", "-mib", fmt.Sprint(mib))
}

// alive counts the clients that have not ended.
func (s *shared) alive(clients []*running) (count int) {
	for _, client := range clients {
		if !s.ended(client) {
			count++
		}
	}
	return count
}

// wrapped returns a command of the job's user that runs mpirun-wrap.
func (s *shared) wrapped(args ...string) *exec.Cmd {
	cmd := s.testNode.asUser(7, s.Command("mpirun-wrap", args...))
	cmd.SysProcAttr.Setpgid = true
	return cmd
}

// roomSoon waits until a new client works. It is a plain program, which cannot wait for room itself.
func (s *shared) roomSoon() {
	s.t.Helper()
	for began := time.Now(); ; {
		out, err := s.asUser(s.cudaClient(), "info").CombinedOutput()
		if err == nil && strings.HasPrefix(string(out), "err=0") {
			return
		}
		if time.Since(began) > soon || !site.Sleep(s.ctx, 50*time.Millisecond) {
			s.t.Errorf("%v after the death, a new client prints %s", soon, out)
			return
		}
	}
}

// survive waits until the work of the dead is over and the neighbours' errors would be seen. Then it checks that all
// neighbours live and that a new client works.
func (s *shared) survive(neighbours []*running, work time.Duration) {
	s.t.Helper()
	site.Sleep(s.ctx, work+hitBy)
	alive := s.alive(neighbours)
	s.t.Logf("%d of %d neighbours live", alive, len(neighbours))
	if alive < len(neighbours) {
		s.t.Fatalf("%d of %d neighbours died\n%s", len(neighbours)-alive, len(neighbours), s.closings())
	}
	s.lives(neighbours...)
}

// closings returns how many dead clients' files the guard closed for each reason, and the shortest time in ms for which
// it held them.
func (s *shared) closings() string {
	count, shortest := map[string]int{}, map[string]int{}
	for _, found := range regexp.MustCompile(`"reason":"([^"]+)","held_ms":([0-9]+)`).FindAllStringSubmatch(s.log(), -1) {
		held, _ := strconv.Atoi(found[2])
		if count[found[1]]++; count[found[1]] == 1 || held < shortest[found[1]] {
			shortest[found[1]] = held
		}
	}
	var guard strings.Builder
	for line := range strings.Lines(s.log()) {
		if strings.Contains(line, `"program":"guard"`) {
			guard.WriteString(line)
		}
	}
	return fmt.Sprintf("files closed: %v, after %v ms or more\n%s\n%s", count, shortest, &guard, s.serverLog(7))
}

// The tests of this file fill a GPU or a host: its memory, its places for clients, or the memory of a control group.
// What the guard holds there costs no neighbour its life, and no other program its start. ROOM_ROUNDS is how often a
// test of one end repeats it, and ROOM_KILLS how many members the kernel kills.

// Row: seven PyTorch ranks start together, six hold 15 GiB and compute. The seventh queues 0.9 s of kernels, allocates
// until CUDA is out of memory, and ends with exit 1. On an H200 its six neighbours died in 3 of 5 trials.
func TestRoomARankThatFillsTheGPU(t *testing.T) {
	s := newShared(t)
	for range s.rounds("ROOM_ROUNDS", 2) {
		victim := s.open(s.asUser(s.cudaClient(), "spin", "-ms", "5", "-queue", "180", "-for", "60", "-grow", "2048", "-after", "0.1"))
		neighbours := s.neighbours(6, 15<<10)
		victim.ready()
		if said := victim.ends(); !strings.Contains(said, "alloc err=2 ") || victim.ProcessState.ExitCode() != 1 {
			t.Fatalf("the victim ends with %v and prints %q", victim.ProcessState, said)
		}
		s.roomSoon()
		s.survive(neighbours, 900*time.Millisecond)
	}
}

// Row: a member of 70 GiB is killed with 2 s in flight, and the next one starts. On an H200 the neighbours died in one
// of two trials. A next member that mpirun-wrap starts gets its memory.
func TestRoomTheNextMemberNeedsTheMemory(t *testing.T) {
	t.Parallel()
	next := []string{"spin", "-ms", "5", "-for", "0.5", "-mib", fmt.Sprint(70 << 10)}
	for _, wrapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("mpirun-wrap %v", wrapped), func(t *testing.T) {
			s := newShared(t)
			for range s.rounds("ROOM_ROUNDS", 1) {
				neighbours := s.neighbours(2, 0)
				site.Sleep(s.ctx, 1500*time.Millisecond) // so that the neighbours are older than the death
				victim := s.start("spin", "-ms", "5", "-queue", "400", "-for", "60", "-mib", fmt.Sprint(70<<10))
				site.Sleep(s.ctx, 100*time.Millisecond)
				victim.kill()
				cmd := s.asUser(append([]string{s.cudaClient()}, next...)...)
				if wrapped {
					cmd = s.wrapped(append([]string{s.cudaClient()}, next...)...)
				}
				out, err := cmd.CombinedOutput()
				switch done := err == nil && strings.Contains(string(out), " done "); {
				case !done && wrapped:
					t.Errorf("the next member: %v: %s", err, out)
				case !done:
					t.Logf("the next member, without mpirun-wrap: %v: %s", err, out)
				}
				s.roomSoon()
				s.survive(neighbours, 2*time.Second)
			}
		})
	}
}

// twoPrograms starts ranks that each run two short CUDA programs, one after the other. Both end with nothing in
// flight. All ranks must be able to run both. The second program does not wait for room, so on a machine that pauses it
// may start before the guard has run. Then all ranks get another try, of three.
func (p testNode) twoPrograms(ranks int) {
	p.t.Helper()
	const script = `"$0" spin -ms 20 -for 0.3 && exec "$0" spin -ms 20 -for 2`
	var said string
	for range 3 {
		c := p.launch(ranks, "sh", "-c", script, p.cudaClient())
		codes, _ := c.end()
		failed := len(slices.DeleteFunc(codes, func(code int) bool { return code == 0 }))
		p.t.Logf("%d of %d ranks could run both programs", ranks-failed, ranks)
		if failed == 0 {
			return
		}
		said += fmt.Sprintf("%d of %d ranks could not run both programs\n%s\n", failed, ranks, failures(c.out()))
	}
	p.t.Errorf("in none of three launches could all ranks run both programs\n%s", said)
}

// failures returns the lines of clients that failed, each different one once.
func failures(said string) string {
	lines := regexp.MustCompile(`(?m)err=[1-9].*$`).FindAllString(said, -1)
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

// Rows: 40 ranks on one GPU, and 26, each run two short CUDA programs one after the other. On an H200, 23 of 40 could
// start the second one (error 2), and 40 of 40 with hold = "0s". Simulated, 22 of 26 could.
func TestRoomForTheSecondProgram(t *testing.T) {
	for _, ranks := range []int{40, 26} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) { newShared(t).twoPrograms(ranks) })
	}
}

// ensemble runs members as xargs does, some at a time. It returns what they print. In the script, $1 is the number of
// the member, WRAP the command of the wrapper and CLIENT the CUDA client.
func (s *shared) ensemble(members, atOnce int, script string) string {
	s.t.Helper()
	wrap := shellWords(s.Command("mpirun-wrap", fmt.Sprintf("--slots=%d", atOnce)))
	path := filepath.Join(publicDir(s.t), "member")
	s.write(path, strings.NewReplacer("WRAP", wrap, "CLIENT", s.cudaClient()).Replace(script)+"\ntrue\n") // xargs ends if a member is killed
	cmd := s.testNode.asUser(7, []string{"sh", "-c", fmt.Sprintf("seq %d | xargs -P%d -n1 sh %s", members, atOnce, path)})
	cmd.SysProcAttr.Setpgid = true
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Errorf("xargs: %v", err)
	}
	return string(out)
}

// bigMembers runs 12 members of 66,000 MiB for 1 s each, two at a time. All must be able to run.
func (s *shared) bigMembers() {
	s.t.Helper()
	const members = 12
	out := s.ensemble(members, 2, "WRAP CLIENT spin -ms 5 -for 1 -mib 66000")
	done := strings.Count(out, " done ")
	s.t.Logf("%d of %d members worked", done, members)
	if done < members {
		s.t.Errorf("%d of %d members worked\n%s\n%s", done, members, failures(out), s.closings())
	}
}

// Row: xargs -P2 mpirun-wrap --slots=2, 12 members of 66,000 MiB. Simulated, 12, 6 and 11 of 12 worked, and 12 of 12
// with hold = "0s".
func TestRoomForBigMembers(t *testing.T) {
	s := newShared(t)
	s.bigMembers()
	s.roomSoon()
}

// Without a guard, the programs of these rows start. So what fails beside a guard is what the guard holds.
func TestRoomWithoutAGuard(t *testing.T) {
	for _, ranks := range []int{40, 26} {
		t.Run(fmt.Sprintf("two programs, %d ranks", ranks), func(t *testing.T) { newShared(t, `hold = "0s"`).twoPrograms(ranks) })
	}
	t.Run("big members", func(t *testing.T) { newShared(t, `hold = "0s"`).bigMembers() })
}

// Row: forty clients are killed with work in flight, eight come at once, and two neighbours compute. The neighbours
// died in two of two trials. 42 clients take places, and a GPU has 48. Eight that mpirun-wrap starts find places.
func TestRoomFortyDieAndEightCome(t *testing.T) {
	next := []string{"spin", "-ms", "20", "-for", "3"}
	for _, wrapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("mpirun-wrap %v", wrapped), func(t *testing.T) {
			s := newShared(t)
			neighbours := s.neighbours(2, 0)
			victims := s.together(40, "spin", "-ms", "20", "-replay", "-queue", "5", "-for", "60")
			site.Sleep(s.ctx, 1500*time.Millisecond) // so that all are older than the deaths
			for _, victim := range victims {
				_ = victim.Process.Signal(syscall.SIGKILL)
			}
			if wrapped {
				c := s.testNode.launch(8, append([]string{s.cudaClient()}, next...)...)
				codes, _ := c.end()
				if slices.ContainsFunc(codes, func(code int) bool { return code != 0 }) {
					t.Errorf("the eight end with codes %d\n%s", codes, failures(c.out()))
				}
			} else {
				t.Logf("%d of 8 without mpirun-wrap worked", s.plain(8, next...))
			}
			s.roomSoon()
			s.survive(neighbours, 4*time.Second)
		})
	}
}

// plain runs n clients at once and returns how many worked.
func (s *shared) plain(n int, args ...string) (worked int) {
	s.t.Helper()
	var clients []*running
	for range n {
		clients = append(clients, s.open(s.asUser(append([]string{s.cudaClient()}, args...)...)))
	}
	for _, client := range clients {
		if strings.Contains(client.ends(), " done ") {
			worked++
		}
	}
	return worked
}

// Row: six members at once of 22 GB, 60 in all. Every third one crashes, by a signal or exit 1, with 0.6 s in flight.
// All others work, and those that crash do so by themselves.
func TestRoomForMembersOfWhichSomeCrash(t *testing.T) {
	s := newShared(t)
	const members, crash = 60, 20
	out := s.ensemble(members, 6, `case $(($1 % 6)) in 0) how="-queue 140 -end signal:11 -after 0.1";; `+
		`3) how="-queue 140 -end exit:1 -after 0.1";; *) how="-for 0.5";; esac; WRAP CLIENT spin -ms 5 -mib 22000 $how`)
	ready, done := strings.Count(out, " ready "), strings.Count(out, " done ")
	t.Logf("%d of %d members started, and %d of %d ended well", ready, members, done, members-crash)
	if ready < members || done < members-crash {
		t.Errorf("%d of %d members started, and %d of %d ended well\n%s\n%s", ready, members, done, members-crash, failures(out), s.closings())
	}
	s.roomSoon()
}

// Row: the kernel kills a rank with 1 s in flight, because the memory of its control group is full. The rank's host
// memory stays charged to the group while its files are held. The neighbours are in the group, too.
func TestRoomInTheHostsMemory(t *testing.T) {
	const room = 96 << 20
	s := newShared(t)
	job := newMemoryGroup(t, 1<<40)
	step := job.below("step")
	client := func(args ...string) *running {
		cmd := exec.Command("env", step.inside(slices.Concat(setpriv, []string{s.cudaClient()}, args)...)...)
		cmd.Env, cmd.SysProcAttr = s.env, &syscall.SysProcAttr{Setpgid: true}
		return s.begin(cmd)
	}
	var neighbours []*running
	for range 2 {
		neighbours = append(neighbours, client("spin", "-ms", "5", "-for", "10000", "-exit-idle"))
	}
	full := job.used() + room
	job.set("memory.limit_in_bytes", "memory.max", fmt.Sprint(full))
	for range s.rounds("ROOM_KILLS", 3) {
		site.Sleep(s.ctx, 1200*time.Millisecond) // so that the neighbours are older than the death
		victim := client("spin", "-ms", "5", "-queue", "220", "-for", "60", "-grow-host", "4", "-after", "0.1")
		said := victim.ends()
		if status, ok := victim.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			t.Fatalf("the victim ends with %v and prints %q", victim.ProcessState, said)
		}
		died := time.Now()
		if used := job.used(); used < full-room/4 {
			t.Errorf("the group has %d of %d bytes in use after the kill", used, full)
		}
		for job.used() > full-room/2 {
			if time.Since(died) > soon || !site.Sleep(s.ctx, 10*time.Millisecond) {
				t.Fatalf("the group is still full %v after the kill\n%s", soon, s.closings())
			}
		}
		t.Logf("the group had room %v after the kill", time.Since(died))
		if next := client("spin", "-ms", "5", "-for", "0.2", "-host", "16"); !strings.Contains(next.ends(), " done ") {
			t.Errorf("the next member ends with %v", next.ProcessState)
		}
		site.Sleep(s.ctx, time.Until(died.Add(time.Second+hitBy)))
		if alive := s.alive(neighbours); alive < len(neighbours) {
			t.Fatalf("%d of %d neighbours live\n%s", alive, len(neighbours), s.closings())
		}
	}
	s.lives(neighbours...)
}

// What a guard costs an ensemble that has little room: the members that end well in a second, with a guard and without.
// The test prints both and their ratio, which should be 0.97 or more. ROOM_COST is the number of members.
func TestRoomCost(t *testing.T) {
	members := number(t, "ROOM_COST", 0)
	if members == 0 {
		t.Skip("ROOM_COST is not set")
	}
	rate := map[string]float64{}
	for _, hold := range []string{"30s", "0s"} {
		s := openShared(testNodeIn(t, publicDir(t), testnode.Default(fmt.Sprintf("hold = %q", hold)), node.H200))
		began := time.Now()
		done := strings.Count(s.ensemble(members, 2, "WRAP CLIENT spin -ms 5 -for 0.3 -mib 66000"), " done ")
		rate[hold] = float64(done) / time.Since(began).Seconds()
		t.Logf("hold = %q: %d of %d members, %.2f in a second", hold, done, members, rate[hold])
	}
	t.Logf("ratio %.3f", rate["30s"]/rate["0s"])
}
