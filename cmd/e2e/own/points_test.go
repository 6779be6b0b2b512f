// SPDX-License-Identifier: Apache-2.0

package own_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/faultinject"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"golang.org/x/sys/unix"
)

// A rank that starts the daemon is killed at each of its effects. Other ranks of the step compute all the same.
func TestAStarterKilledAnywhere(t *testing.T) {
	e2e.JoinSweep(t, "points")
	n := newTestNode(t, node.H200)
	line := asUser(n.wrap(n.CudaClient(), "info"))
	run := func(kill func(faultinject.Effect) bool) faultinject.Result {
		return n.traced(line, inStep(7, 0, 0, 4), kill)
	}
	points := n.points(run)
	for _, at := range sample(points, 30) {
		t.Run(strings.ReplaceAll(at.String(), "/", ":"), func(t *testing.T) {
			n := n.again(t)
			if run(n.reached(at)).Signal != syscall.SIGKILL {
				t.Skip("not reached again") // the names of some effects depend on the time
			}
			n.computes(3)
		})
	}
}

// The keeper is killed at each of its effects while ranks wait for it, compute or end. The next keeper takes over.
func TestAKeeperKilledAnywhere(t *testing.T) {
	e2e.JoinSweep(t, "points")
	n := newTestNode(t, node.H200)
	name := n.nameOf(7)
	points := n.points(func(kill func(faultinject.Effect) bool) faultinject.Result {
		result, _ := n.tracedKeeper(name, kill)
		return result
	})
	for _, at := range sample(points, 30) {
		t.Run(strings.ReplaceAll(at.String(), "/", ":"), func(t *testing.T) {
			n := n.again(t)
			result, ranks := n.tracedKeeper(name, n.reached(at))
			ends(0, ranks...)
			if result.Signal != syscall.SIGKILL {
				n.clean() // late ranks have started a keeper of their own
				t.Skip("not reached again")
			}
			n.computes(2)
		})
	}
}

// The daemon is killed after each effect of the keeper that starts it. Each rank computes under MPS, or it ends with a
// sentence.
func TestADaemonKilledAnywhere(t *testing.T) {
	e2e.JoinSweep(t, "points")
	n := newTestNode(t, node.H200)
	name := n.nameOf(7)
	serves := func(e faultinject.Effect) bool { return e.Call == "sendmsg" } // an answer
	points := n.points(func(kill func(faultinject.Effect) bool) faultinject.Result {
		served, began := false, false
		result, _ := n.tracedKeeper(name, func(e faultinject.Effect) bool {
			served, began = served || serves(e), began || len(n.daemons()) > 0
			return !served && began && kill(e)
		})
		return result
	})
	for _, at := range sample(points, 40) {
		t.Run(strings.ReplaceAll(at.String(), "/", ":"), func(t *testing.T) {
			n := n.again(t)
			hit, served, began := n.reached(at), false, false
			_, ranks := n.tracedKeeper(name, func(e faultinject.Effect) bool {
				// The guard's effects may come later this time. Below a daemon that dies when it has served, a rank may
				// compute without MPS: docs/limits.md.
				served = served || serves(e)
				if began = began || len(n.daemons()) > 0; began && hit(e) && !served {
					kill(n.daemons()...)
				}
				return false
			})
			// Of the ranks that are refused, one prints the reason. A client of a daemon that dies gets CUDA's error.
			refused, said := 0, 0
			for _, p := range ranks {
				code := p.end()
				switch {
				case code == 125 && strings.Contains(p.Text(), "mpirun-wrap: "):
					refused, said = refused+1, said+1
				case code == 125 && p.Text() == "":
					refused++
				case code != 0 && (code != 1 || !strings.Contains(p.Text(), "err=80")):
					t.Errorf("code %d: a rank prints %s", code, p.Text())
				}
			}
			must.Hold(t, refused <= 0 || said == 1, "%d ranks are refused, and %d print why", refused, said)
			n.computes(2)
		})
	}
}

// tracedKeeper runs a keeper under the tracer, in place of the one that a rank starts. When it has its folders, three
// ranks of the step start.
func (n testNode) tracedKeeper(name string, kill func(faultinject.Effect) bool) (result faultinject.Result, ranks []*process) {
	n.T.Helper()
	line := asUser(n.program("keeper", name, n.wrapper(), n.Root))
	result = n.traced(line, inStep(7, 0, 0, 3), func(e faultinject.Effect) bool {
		if ranks == nil && strings.Contains(e.What, "/exchange") {
			started := make(chan struct{}) // the tracer's thread would reap them
			go func() {
				defer close(started)
				ranks = n.step(7, 0, 3, n.spin("0.4")...)
			}()
			<-started
		}
		return kill(e)
	})
	return result, ranks
}

// becomeKeeper becomes the keeper of job 7 that a supervisor would start: NAME WRAPPER ROOT. For two seconds, a process has
// the life of the step.
func becomeKeeper(args []string) error {
	listener, err1 := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	err2 := errors.Join(unix.Bind(listener, &unix.SockaddrUnix{Name: args[0]}), unix.Listen(listener, 8))
	read, write, err3 := os.Pipe()
	state, err4 := unix.MemfdCreate("state", 0)
	dir, err5 := os.MkdirTemp(filepath.Join(args[2], "tmp"), fmt.Sprintf("slurm-mps-%d-", os.Getuid()))
	folder, err6 := unix.Open(dir, unix.O_DIRECTORY, 0)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, unix.Flock(folder, unix.LOCK_EX)); err != nil {
		return err
	}
	first := exec.Command("sleep", "2")
	first.ExtraFiles, first.Env = []*os.File{write}, []string{}
	err := first.Start()
	for i, fd := range []int{listener, int(read.Fd()), state, folder} { // above those of this program first
		moved, failed := unix.FcntlInt(uintptr(fd), unix.F_DUPFD, 50+i)
		err = errors.Join(err, failed, unix.Dup3(moved, 3+i, 0), unix.Close(moved))
	}
	write.Close()
	return errors.Join(err, syscall.Exec(args[1], []string{"mpirun-wrap", "--own-keep", dir, "7", args[2]}, os.Environ()))
}

// asUser is a command line that becomes another one, as the user.
func asUser(line []string) []string {
	return append([]string{"/usr/bin/setpriv", fmt.Sprintf("--reuid=%d", e2e.UID), fmt.Sprintf("--regid=%d", e2e.GID), "--clear-groups"}, line...)
}

// traced runs a command line with the variables of a step, and kills it at an effect.
func (n testNode) traced(line, env []string, kill func(faultinject.Effect) bool) faultinject.Result {
	n.T.Helper()
	result, err := faultinject.Run(n.Ctx, line, append(n.environment(), env...), faultinject.Plan{Kill: kill})
	if err != nil {
		n.T.Fatalf("%v\n%s", err, n.state())
	}
	return result
}

// points are the effects of a run that ends well.
func (n testNode) points(run func(func(faultinject.Effect) bool) faultinject.Result) []e2e.Point {
	n.T.Helper()
	var found e2e.Tally
	seen := map[e2e.Point]bool{}
	var all []e2e.Point
	result := run(func(e faultinject.Effect) bool {
		if n.Changes(e) {
			at := found.Add(n.effect(e))
			if !seen[at] {
				seen[at], all = true, append(all, at)
			}
		}
		return false
	})
	if result.Code != 0 {
		n.T.Fatalf("under the tracer: %+v\n%s", result, n.state())
	}
	n.clean()
	return all
}

// The parts of an effect's name that differ between runs.
var differing = map[*regexp.Regexp]string{
	regexp.MustCompile(`slurm-mps-\d+-\d+`): "slurm-mps-N",
	regexp.MustCompile(`/proc/\d+`):         "/proc/N",
}

func (n testNode) effect(e faultinject.Effect) string {
	name := n.Name(e)
	for _, form := range slices.Collect(maps.Keys(differing)) {
		name = form.ReplaceAllString(name, differing[form])
	}
	return name
}

// reached returns a function that reports whether an effect is a point.
func (n testNode) reached(at e2e.Point) func(faultinject.Effect) bool {
	var found e2e.Tally
	return func(e faultinject.Effect) bool { return n.Changes(e) && found.Add(n.effect(e)) == at }
}

// again is the same node for another point.
func (n testNode) again(t *testing.T) testNode {
	n.Node = n.Node.Again(t)
	return n
}

// computes checks that ranks of the step get a daemon, and that nothing is left after them.
func (n testNode) computes(ranks int) {
	n.T.Helper()
	all := n.step(7, 0, ranks, n.spin("0.2")...)
	ends(0, all...)
	for _, p := range all {
		if !strings.Contains(p.Text(), " done ") {
			n.T.Errorf("a rank prints %s", p.Text())
		}
	}
	n.clean()
}

// nameOf is the name at which the ranks of a job's step 0 meet.
func (n testNode) nameOf(job int) string {
	n.T.Helper()
	p := n.start(inStep(job, 0, 0, 1), n.spin("60")...)
	ready(p)
	name := n.address()
	lives(p)
	n.clean()
	return name
}

// sample is one of each so many points, or all in the sweep.
func sample(points []e2e.Point, every int) []e2e.Point {
	if e2e.Everything {
		return e2e.Tonight(points)
	}
	return e2e.Nth(points, min(every, max(len(points)/2, 1)))
}
