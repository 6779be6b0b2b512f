// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/faultinject"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// errnos are the errors of a full, forbidden or broken file system and of a node with too many open files. The last
// one is not for reading and removing, because no program can detect a false answer that an existing file is missing.
var errnos = []syscall.Errno{syscall.ENOSPC, syscall.EACCES, syscall.EIO, syscall.EMFILE, syscall.ENOENT}

// failure is an effect that fails with an error.
type failure struct {
	e2e.Point
	errno syscall.Errno
}

func (f failure) String() string { return fmt.Sprintf("%v: %v", f.Point, f.errno) }

// refuse is a function that a plan asks about each effect. It returns the error of the effect, or 0 if the effect
// does not fail.
type refuse func(faultinject.Effect) syscall.Errno

// refuse makes the point fail once.
func (f failure) refuse(p testNode, reached *bool) refuse {
	hit := f.Reached(p.Node)
	return func(e faultinject.Effect) syscall.Errno {
		if p.matters(e) && hit(e) {
			*reached = true
			return f.errno
		}
		return 0
	}
}

// matters reports whether the program must handle the failure of an effect. It need not handle the searches of the
// loader and the name service, reads by the simulated driver that only serve tests, and the log's text.
func (p testNode) matters(e faultinject.Effect) bool {
	path, _, _ := strings.Cut(e.What, " ")
	switch {
	case path == p.Paths().Log(), strings.HasPrefix(path, p.Sim.Node.Dir+"/delay_ms/"), e.Call == "connect":
		return false
	case !e.Asks, !strings.HasPrefix(path, "/"), strings.HasPrefix(path, filepath.Dir(p.Root)), strings.HasPrefix(path, "/proc/"):
		return true
	}
	return path == "/etc/passwd" || path == "/etc/group"
}

// failures returns the possible failures of one prolog or epilog. It finds them by tracing one run under a plan that
// may already have a failure.
//
// If each is true, the list has every effect and every question with each fitting error. Otherwise it has every
// effect with one error, in alternation, and a fifth of the questions.
func (p testNode) failures(job testnode.Job, program string, each bool, already refuse) []failure {
	p.T.Helper()
	var found e2e.Tally
	var all []failure
	asked := 0
	p.Trace(job, program, faultinject.Plan{Fail: func(e faultinject.Effect) syscall.Errno {
		if already != nil {
			if errno := already(e); errno != 0 {
				return errno
			}
		}
		if !p.matters(e) {
			return 0
		}
		at := found.Add(p.Name(e))
		if e.Asks {
			asked++
		}
		switch {
		case each:
			for _, errno := range fits(e) {
				all = append(all, failure{at, errno})
			}
		case !e.Asks || asked%5 == 0:
			all = append(all, failure{at, fits(e)[len(all)%len(fits(e))]})
		}
		return 0
	}})
	return slices.DeleteFunc(all, func(f failure) bool { return f.Nth > maxNth })
}

// maxNth is how many effects of one name fail. A program that asks the same question more often asks it in the same
// way.
const maxNth = 8

// fits returns the errors that an effect can return.
func fits(e faultinject.Effect) []syscall.Errno {
	if e.Asks || e.Call == "unlinkat" {
		return errnos[:4]
	}
	return errnos
}

// failing runs a binary under refusals. If once is true, the program runs untraced after its first failure. failing
// checks that the program reports the failure in a line of this project's form.
func (p testNode) failing(job testnode.Job, program string, once bool, refusals ...refuse) faultinject.Result {
	p.T.Helper()
	result := p.Trace(job, program, faultinject.Plan{Once: once, Fail: func(e faultinject.Effect) syscall.Errno {
		for _, refuse := range refusals {
			if errno := refuse(e); errno != 0 {
				return errno
			}
		}
		return 0
	}})
	if result.Code != 0 && result.Code != 1 {
		p.T.Errorf("%s: %+v\n%s", program, result, p.Log())
	}
	must.Hold(p.T, result.Code != 1 || regexp.MustCompile(`^`+program+`: cannot [^\n]+\n$`).MatchString(result.Output),
		"%s prints %q", program, result.Output)
	return result
}

// cleanButLock checks what clean checks. If the failure was at the file of the job's lock, this file may be left,
// because the next program takes it over.
func (p testNode) cleanButLock(f failure) {
	p.T.Helper()
	left := p.Leftovers()
	if strings.Contains(f.Name, "/locks/7") {
		left = slices.DeleteFunc(left, func(what string) bool { return what == "file locks/7" })
	}
	if len(left) > 0 {
		p.T.Errorf("left behind: %q\n%s", left, p.Log())
	}
}

// opened checks that a job has what its prolog's exit code 0 promises.
func (p testNode) opened(id uint32) {
	p.T.Helper()
	ticket := p.Ticket(id)
	for _, d := range ticket.Daemons {
		if !e2e.Alive(d.Proc) {
			p.T.Errorf("exit 0 without a daemon: %+v\n%s", ticket, p.Log())
		}
	}
	if len(ticket.Daemons) == 0 || strings.Trim(p.Modes(), "3") != "" {
		p.T.Errorf("exit 0 with modes %s and %+v\n%s", p.Modes(), ticket, p.Log())
	}
}

// A prolog that meets an error still opens the lease, or it fails and leaves the node quiet itself.
func TestAPrologWhoseEffectsFail(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	for _, s := range shapesFor(t) {
		t.Run(s.String(), func(t *testing.T) {
			p := s.stand(t)
			job := s.job(p)
			failures := p.failures(job, "prolog", e2e.Everything && s == shapes[0] || e2e.Named(t), nil)
			p.Must(0, job, "epilog")
			sweep(t, s, some(t, s, failures, 20), func(p testNode, f failure) (reached bool) {
				job := s.job(p)
				p.Booted()
				if result := p.failing(job, "prolog", true, f.refuse(p, &reached)); result.Code == 0 {
					p.opened(job.ID)
				} else {
					p.cleanButLock(f)
				}
				p.Must(0, job, "epilog")
				p.Quiet()
				return reached
			})
		})
	}
}

// A prolog that refuses a job writes a ticket, and fails if it cannot write it.
func TestARefusalWhoseEffectsFail(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	s := shapes[0]
	p := s.stand(t)
	none := p.Job(7, "")
	failures := p.failures(none, "prolog", e2e.Everything || e2e.Named(t), nil)
	p.Must(0, none, "epilog")
	sweep(t, s, sample(t, failures, 3), func(p testNode, f failure) (reached bool) {
		none := p.Job(7, "")
		p.Booted()
		if result := p.failing(none, "prolog", true, f.refuse(p, &reached)); result.Code == 1 {
			p.cleanButLock(f)
		} else if p.Ticket(7).RefusalReason == "" {
			p.T.Errorf("exit 0 and %+v", p.Ticket(7))
		}
		p.Must(0, none, "epilog")
		p.Quiet()
		return reached
	})
}

// An epilog that meets an error does the rest, reports the error and keeps the lease. The next epilog finishes.
func TestAnEpilogWhoseEffectsFail(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	for _, s := range shapesFor(t) {
		t.Run(s.String(), func(t *testing.T) {
			p := s.stand(t)
			job := s.job(p)
			p.Must(0, job, "prolog")
			failures := p.failures(job, "epilog", e2e.Everything && s == shapes[0] || e2e.Named(t), nil)
			sweep(t, s, some(t, s, failures, 20), func(p testNode, f failure) (reached bool) {
				job := s.job(p)
				p.Booted()
				p.Must(0, job, "prolog")
				if result := p.failing(job, "epilog", true, f.refuse(p, &reached)); result.Code == 0 {
					p.cleanButLock(f)
				} else {
					p.didTheRest()
				}
				p.Must(0, job, "epilog")
				p.Quiet()
				return reached
			})
		})
	}
}

// didTheRest checks that an epilog that failed in one thing did everything else and kept the lease for what is left.
// Modes and folders stay as long as a process may use them.
func (p testNode) didTheRest() {
	p.T.Helper()
	left := slices.DeleteFunc(p.Leftovers(), func(what string) bool { return what == "file locks/7" })
	kinds := map[string]bool{}
	for _, what := range left {
		kind, _, _ := strings.Cut(strings.TrimPrefix(what, "file "), "/")
		kind, _, _ = strings.Cut(kind, " ")
		kinds[kind] = true
	}
	if len(left) > 0 && !slices.Contains(left, "file leases/7.json") {
		p.T.Errorf("left behind without a lease: %q\n%s", left, p.Log())
	}
	undone := 0
	for _, kind := range []string{"tickets", "jobs", "GPU"} {
		if kinds[kind] {
			undone++
		}
	}
	if !kinds["process"] && undone > 1 {
		p.T.Errorf("the epilog left more than one thing undone: %q\n%s", left, p.Log())
	}
}

// A prolog that fails, and whose undo also fails, leaves a lease. With that lease, the epilog makes the node quiet.
func TestAPrologWhoseUndoFails(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	s := shapes[0]
	p := s.stand(t)
	noTicket := func(p testNode) refuse {
		return func(e faultinject.Effect) syscall.Errno {
			if e.Call == "renameat" && strings.Contains(e.What, p.Paths().Run()+"/tickets/") {
				return syscall.EIO
			}
			return 0
		}
	}
	job := s.job(p)
	failures := p.failures(job, "prolog", e2e.Everything || e2e.Named(t), noTicket(p))
	p.Must(0, job, "epilog")
	begun := slices.IndexFunc(failures, func(f failure) bool { return strings.Contains(f.Name, "/tickets/") })
	sweep(t, s, sample(t, failures[begun:], 8), func(p testNode, f failure) (reached bool) {
		job := s.job(p)
		p.Booted()
		if result := p.failing(job, "prolog", false, noTicket(p), f.refuse(p, &reached)); result.Code == 0 {
			p.T.Errorf("exit 0 without a ticket\n%s", p.Log())
		}
		p.didTheRest()
		p.Must(0, job, "epilog")
		p.Quiet()
		return reached
	})
}

// From some effect on, the disk is full or the program has no free descriptor. The next epilog on a healthy node
// cleans up after any program, and a full disk does not prevent an undo.
//
// Contract: R3
func TestANodeThatIsFullFromSomePointOn(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	s := shapes[0]
	for _, end := range []struct {
		name    string
		errno   syscall.Errno
		refuses func(testNode, faultinject.Effect) bool
	}{
		{"disk", syscall.ENOSPC, func(p testNode, e faultinject.Effect) bool {
			_, err := os.Lstat(e.What) // an existing file can be opened
			makes := err != nil && slices.Contains([]string{"openat", "mkdirat", "linkat"}, e.Call)
			return !e.Asks && strings.Contains(e.What, p.Root) && (makes || e.Call == "write" || e.Call == "pwrite64")
		}},
		{"descriptors", syscall.EMFILE, func(p testNode, e faultinject.Effect) bool {
			return slices.Contains([]string{"openat", "pipe2", "pidfd_open"}, e.Call) && p.matters(e)
		}},
	} {
		for _, program := range []string{"prolog", "epilog"} {
			t.Run(end.name+" "+program, func(t *testing.T) {
				p := s.stand(t)
				job := s.job(p)
				open := func(p testNode, job testnode.Job) {
					if p.Booted(); program == "epilog" {
						p.Must(0, job, "prolog")
					}
				}
				open(p, job)
				points := p.Points(job, program)
				p.Must(0, job, "epilog")
				sweep(t, s, sample(t, points, 18), func(p testNode, at e2e.Point) bool {
					job := s.job(p)
					open(p, job)
					hit, full := at.Reached(p.Node), false
					result := p.failing(job, program, false, func(e faultinject.Effect) syscall.Errno {
						if full = full || p.Changes(e) && hit(e); full && end.refuses(p, e) {
							return end.errno
						}
						return 0
					})
					switch {
					case program == "prolog" && result.Code == 0:
						p.opened(job.ID)
					case end.name == "disk":
						p.Quiet()
					}
					p.Must(0, job, "epilog")
					p.Quiet()
					return full
				})
			})
		}
	}
}

// nvmlCall is a call of NVML that returns an error. The test sees that a call begins when the simulated driver opens
// the file of its delay.
type nvmlCall struct {
	e2e.Point
	code int
}

func (c nvmlCall) String() string { return fmt.Sprintf("%v: code %d", c.Point, c.code) }

// codes are errors that a driver returns: not supported, no permission, GPU lost, unknown.
var codes = []int{3, 4, 15, 999}

func (p testNode) nvmlFunction(e faultinject.Effect) (name string, ok bool) {
	return strings.CutPrefix(e.What, p.Sim.Node.Dir+"/delay_ms/")
}

func (p testNode) nvmlCalls(job testnode.Job, program string) []nvmlCall {
	p.T.Helper()
	var found e2e.Tally
	var all []nvmlCall
	p.Trace(job, program, faultinject.Plan{Fail: func(e faultinject.Effect) syscall.Errno {
		if name, ok := p.nvmlFunction(e); ok {
			at := found.Add(name)
			for i, code := range codes {
				if e2e.Everything || e2e.Named(p.T) || i == len(all)%len(codes) {
					all = append(all, nvmlCall{at, code})
				}
			}
		}
		return 0
	}})
	return all
}

// refuse makes the call fail once.
func (c nvmlCall) refuse(p testNode, reached *bool) refuse {
	seen := 0
	return func(e faultinject.Effect) syscall.Errno {
		if name, ok := p.nvmlFunction(e); ok && name == c.Name {
			if seen++; seen == c.Nth {
				*reached = p.Sim.Node.Fail(c.Name, c.code, 1) == nil
			}
		}
		return 0
	}
}

// Whatever error a call of NVML returns, the prolog opens the lease or leaves the node quiet. The epilog does the
// rest.
func TestNVMLCallsThatFail(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	s := shapes[0]
	p := s.stand(t)
	job := s.job(p)
	prologs := p.nvmlCalls(job, "prolog")
	epilogs := p.nvmlCalls(job, "epilog")
	t.Run("prolog", func(t *testing.T) {
		sweep(t, s, sample(t, prologs, 4), func(p testNode, c nvmlCall) (reached bool) {
			job := s.job(p)
			if result := p.failing(job, "prolog", false, c.refuse(p, &reached)); result.Code == 0 {
				p.opened(job.ID)
			} else {
				p.Clean()
			}
			p.Must(0, job, "epilog")
			p.Quiet()
			return reached
		})
	})
	t.Run("epilog", func(t *testing.T) {
		sweep(t, s, sample(t, epilogs, 4), func(p testNode, c nvmlCall) (reached bool) {
			job := s.job(p)
			p.Must(0, job, "prolog")
			if result := p.failing(job, "epilog", false, c.refuse(p, &reached)); result.Code == 0 {
				p.Clean()
			} else {
				p.didTheRest()
			}
			p.Must(0, job, "epilog")
			p.Quiet()
			return reached
		})
	})
}

// wrongAnswer is what the control program answers to one question, or to that question and all later ones.
type wrongAnswer struct {
	name, answer string
	number       int // the question's number; the prolog asks the first one
	always       bool
}

func (w wrongAnswer) String() string {
	if w.always {
		return fmt.Sprintf("%s from question %d on", w.name, w.number)
	}
	return fmt.Sprintf("%s to question %d", w.name, w.number)
}

// The control program may answer anything to any question, once or from then on. The prolog opens the lease or leaves
// the node quiet, and the epilog ends the daemon without the control program's help.
func TestAnswersOfEveryWrongKind(t *testing.T) {
	e2e.JoinSweep(t, "points")
	var all []wrongAnswer
	for number := 1; number <= 3; number++ {
		for name, answer := range map[string]string{
			"nothing": `:`, "no word and a failure": `exit 3`, "killed": `kill -9 $$`,
			"rubbish": `printf '\001\377 rubbish\n\n\n'`, "a number": `echo 50.0`, "many numbers": `echo 100.0; echo 100.0; echo 100.0`,
			"no daemon":             `echo Cannot find MPS control daemon process; exit 1`,
			"dropped":               `echo Cannot send command to MPS control daemon process`,
			"a client that is none": `printf 'PID ID SERVER DEVICE NAMESPACE COMMAND\n1 2 1 GPU-0 1 init\n100.0\n'`,
			"no table":              `printf 'PID\nx y z\n100.0\n'`,
			"without an end":        `exec yes`, "silence": `exec sleep 900`,
		} {
			all = append(all, wrongAnswer{name, answer, number, false}, wrongAnswer{name, answer, number, true})
		}
	}
	slices.SortFunc(all, func(a, b wrongAnswer) int { return strings.Compare(a.name, b.name) })
	s := shapes[0]
	t.Parallel()
	sweep(t, s, sample(t, all, 7), func(p testNode, w wrongAnswer) bool {
		test := map[bool]string{false: "-eq", true: "-ge"}[w.always]
		asked := filepath.Join(filepath.Dir(p.Root), "asked")
		p.Write(asked, "")
		must.OK(p.T, os.Chmod(asked, 0o666))
		p.Control(fmt.Sprintf(`[ "$1" = -d ] && exec $REAL "$@"
echo >>%[1]s
[ $(wc -l <%[1]s) %[2]s %[3]d ] || exec $REAL "$@"
cat >/dev/null
%[4]s`, asked, test, w.number, w.answer))
		job := s.job(p)
		result, err := p.Run(p.Ctx, job.Environment("prolog_slurmd"), "prolog")
		switch {
		case err != nil || result.Code > 1:
			p.T.Errorf("prolog: %+v, %v", result, err)
		case result.Code == 0:
			p.opened(job.ID)
		default:
			p.Clean()
		}
		p.Must(0, job, "epilog")
		p.Quiet()
		return strings.Count(e2e.Read(p.T, asked), "\n") >= w.number
	})
}
