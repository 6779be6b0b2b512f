// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site/sim/faultinject"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// Control replaces the control program with a script. $REAL is the simulated control program.
func (p Node) Control(script string) {
	p.T.Helper()
	path := filepath.Join(filepath.Dir(p.Root), "nvidia-cuda-mps-control")
	p.Write(path, "#!/bin/sh\nREAL="+p.Sim.Program("nvidia-cuda-mps-control")+"\n"+script+"\n")
	must.OK(p.T, os.Chmod(path, 0o755))
	p.Write(p.Paths().ConfigFile(), strings.Replace(Read(p.T, p.Paths().ConfigFile()), p.Sim.Program("nvidia-cuda-mps-control"), path, 1))
}

// Point is one effect of a prolog or an epilog: the effect's name, and its number among the effects of this name. The
// order of effects of parallel threads differs between runs; their names do not.
type Point struct {
	Name string
	Nth  int
}

func (at Point) String() string { return fmt.Sprintf("%s (%d)", at.Name, at.Nth) }

// Reached returns a function that counts the effects of a run and reports whether an effect is this point.
func (at Point) Reached(p Node) func(faultinject.Effect) bool {
	count := 0
	return func(e faultinject.Effect) bool {
		if p.Name(e) != at.Name {
			return false
		}
		count++
		return count == at.Nth
	}
}

var (
	processes = regexp.MustCompile(`/(proc|task)/[0-9]+`)
	drafts    = regexp.MustCompile(`(/\.draft-[^/ ]+-)[0-9]+`)
)

// Name returns an effect's name without the parts that differ between runs.
func (p Node) Name(e faultinject.Effect) string {
	folder := filepath.Dir(p.Root)
	name := strings.ReplaceAll(e.String(), folder, "")
	// The folder is also in the name of a control group.
	name = strings.ReplaceAll(name, strings.ReplaceAll(strings.Trim(folder, "/"), "/", "-"), "")
	name = processes.ReplaceAllString(name, "/$1/N")
	return drafts.ReplaceAllString(name, "${1}N")
}

// Changes reports whether an effect stays when the program is killed. Lines of the log do not count.
func (p Node) Changes(e faultinject.Effect) bool {
	return !e.Asks && !(e.Call == "write" && e.What == p.Paths().Log())
}

// Trace runs a binary for a job under a plan.
func (p Node) Trace(job testnode.Job, program string, plan faultinject.Plan) faultinject.Result {
	p.T.Helper()
	result, err := faultinject.Run(p.Ctx, p.Command(program), job.Environment(program+"_slurmd"), plan)
	if err != nil {
		p.T.Fatalf("%v\n%s", err, p.Log())
	}
	return result
}

// Points traces one run of a program and returns its effects. It leaves out effects that fail by themselves, because
// they change nothing. On a busy machine, a prolog under the tracer may miss the deadline of a daemon's answer. Then it
// starts again, of three.
func (p Node) Points(job testnode.Job, program string) []Point {
	p.T.Helper()
	for tries := 1; ; tries++ {
		var found Tally
		result := p.Trace(job, program, faultinject.Plan{Kill: func(e faultinject.Effect) bool {
			if p.Changes(e) {
				found.Add(p.Name(e))
			}
			return false
		}})
		if result.Code == 0 {
			return found.points
		}
		if program != "prolog" || tries == 3 {
			p.T.Fatalf("%s under the tracer: %+v\n%s", program, result, p.Log())
		}
		p.T.Logf("%s under the tracer: %+v", program, result)
		p.Must(0, job, "epilog")
	}
}

// Tally numbers the effects of each name.
type Tally struct {
	points []Point
	seen   map[string]int
}

// Add notes an effect, and returns it as a point.
func (l *Tally) Add(name string) Point {
	if l.seen == nil {
		l.seen = map[string]int{}
	}
	l.seen[name]++
	l.points = append(l.points, Point{name, l.seen[name]})
	return l.points[len(l.points)-1]
}

// Killed runs a binary and kills it at a point. A run may take another way, for example ask a daemon twice, or fail on a
// busy machine, and end without reaching the point. Then it starts again from the start, of three.
func (p Node) Killed(job testnode.Job, program string, at Point, start func()) bool {
	p.T.Helper()
	for tries := 1; tries <= 3; tries++ {
		start()
		hit := at.Reached(p)
		result := p.Trace(job, program, faultinject.Plan{Kill: func(e faultinject.Effect) bool { return p.Changes(e) && hit(e) }})
		if result.Signal == syscall.SIGKILL {
			return true
		}
		if result.Code != 0 && tries == 3 {
			p.T.Fatalf("%s: %+v\n%s", program, result, p.Log())
		}
		p.Must(0, job, "epilog")
	}
	return false
}
