// SPDX-License-Identifier: Apache-2.0

// Command room tries what programs meet on a GPU with little room: memory, places and time that dead clients still
// have. The production prolog, guard, wrapper and epilog run below a root folder, without Slurm. Some parts also run
// on a plain MPS daemon of the same user. Each trial adds a line to RESULTS/room.jsonl at once, so that a part of a
// run is useful. A later run continues after the last line.
//
// On a machine with GPUs the compute modes stay unchanged. Without GPUs, or with -simulated, the GPU is a simulated
// H200, and the ranks use libcuda in place of PyTorch.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// settings are the flags of the command.
type settings struct {
	results, earlier, policy string
	parts                    *regexp.Regexp
	trials                   int // maximum of each part; 0 for all
	minutes                  float64
	simulated, real          bool
}

// part is a kind of trial. Each trial has a record for each method.
type part struct {
	name    string
	what    string
	trials  int
	methods []string
	block   int           // trials of a method before the next method's turn; 0 for all
	limit   time.Duration // of one trial
	try     func(context.Context, *lane, int) (record, error)
}

// The methods. With guard the product runs, with own the product without a prolog, and with
// bare a plain daemon of the same user.
const (
	withGuard = "guard"
	withOwn   = "own"   // mpirun-wrap --own, by a user without a prolog
	ownBeside = "own-2" // the same, with gpu-usage beside mpirun-wrap
	bare      = "bare"
)

func allParts() []part {
	guarded := []string{withGuard}
	both := []string{withGuard, bare}
	return []part{
		{"oom", "seven ranks start, one ends by an allocation that fails", 12, guarded, 0, 50 * time.Second, tryOOM},
		{"next", "a member of half the memory is killed, the next starts at once", 6, guarded, 0, 50 * time.Second, tryNext},
		{"shell", "40 ranks run two programs one after the other", 4, guarded, 0, 60 * time.Second, tryShell},
		{"slots", "12 members of 46 % of the memory in 2 slots", 3, guarded, 0, 70 * time.Second, trySlots},
		{"crashes", "60 members of 15 % of memory in 6 slots, every third crashes", 1, guarded, 0, 120 * time.Second, tryCrashes},
		{"crowd", "40 clients are killed, 8 come at once", 4, guarded, 0, 60 * time.Second, tryCrowd},
		{"endings", "one client ends with work in flight beside two", 30, both, 5, 40 * time.Second, tryEnding},
		{"rate", "20 members of 1 and 2 s, 46 % of the memory each, in 2 slots", 3, both, 1, 80 * time.Second, tryRate},
		{"own-ends", "one client ends with work in flight beside two", 30, []string{withOwn}, 0, 40 * time.Second, tryEnding},
		{"own-speed", "kernels of four clients beside each other", 7, []string{withGuard, withOwn}, 1, 60 * time.Second, trySpeed},
		{"own-rate", "20 members of 1 and 2 s, 46 % of the memory each, in 2 slots", 2, []string{withGuard, withOwn, ownBeside, bare}, 1, 80 * time.Second, tryRate},
		{"own-next", "a member of half the memory is killed, the next starts at once", 3, []string{withOwn, ownBeside}, 0, 50 * time.Second, tryNext},
		{"own-slots", "12 members of 46 % of the memory in 2 slots", 1, []string{withOwn, ownBeside}, 0, 70 * time.Second, trySlots},
		{"own-signals", "daemon and server get the signals of a step", 1, []string{withOwn}, 0, 60 * time.Second, trySignals},
		{"own-daemon", "the daemon is killed, and its four clients end", 8, []string{withOwn}, 0, 60 * time.Second, tryDaemonKilled},
		{"own-cost", "times of the wrapper", 1, []string{withGuard, withOwn}, 0, 90 * time.Second, tryOwnCost},
		{"cost", "times of the wrapper and the guard", 1, guarded, 0, 90 * time.Second, tryCost},
	}
}

func main() {
	var s settings
	pattern := flag.String("parts", "", "pattern for the names of parts")
	flag.StringVar(&s.results, "results", "", "folder of the results")
	flag.StringVar(&s.earlier, "earlier", "", "room.jsonl of an earlier run, to continue it in another folder")
	flag.StringVar(&s.policy, "policy", "", "attributes to add to the policy's grant, divided by ;")
	flag.IntVar(&s.trials, "trials", 0, "maximum number of trials of each part")
	flag.Float64Var(&s.minutes, "minutes", 9, "time of the run")
	flag.BoolVar(&s.simulated, "simulated", false, "use a simulated GPU")
	flag.BoolVar(&s.real, "real", false, "fail on a machine without a GPU")
	list := flag.Bool("list", false, "print the parts")
	build := flag.Bool("build", false, "build the programs and the simulation, and end")
	flag.Parse()
	if *list {
		for _, p := range allParts() {
			fmt.Printf("%-8s %3d × %-10s %s\n", p.name, p.trials, strings.Join(p.methods, ", "), p.what)
		}
		return
	}
	var err error
	if *build {
		_, err = testnode.Built()
	} else if s.parts, err = regexp.Compile(*pattern); err == nil {
		err = run(s)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "room: %v\n", err)
		os.Exit(1)
	}
}

func run(s settings) (err error) {
	if s.results == "" || flag.NArg() > 0 {
		return errors.New("cannot try: give -results FOLDER, and no other arguments")
	}
	if os.Geteuid() != 0 {
		return errors.New("cannot try: prologs are root's: run this as root")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(s.minutes*float64(time.Minute)))
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, unix.SIGTERM)
	defer stop()
	r, err := newRoom(ctx, s)
	if r != nil {
		defer func() { err = errors.Join(err, r.end()) }()
	}
	if err != nil {
		return err
	}
	for _, p := range allParts() {
		if s.parts.MatchString(p.name) {
			err = errors.Join(err, r.tryPart(ctx, p))
		}
	}
	return errors.Join(err, r.records.summary(os.Stdout, filepath.Join(s.results, "room-summary.txt")))
}

// tryPart runs the trials of a part that have no record yet, the methods in turns.
func (r *room) tryPart(ctx context.Context, p part) (err error) {
	if r.settings.trials > 0 {
		p.trials = min(p.trials, r.settings.trials)
	}
	block := p.block
	if block == 0 {
		block = p.trials
	}
	for first := 0; first < p.trials; first += block {
		for _, method := range p.methods {
			var todo []int
			for trial := first; trial < min(first+block, p.trials); trial++ {
				if !r.records.has(p.name, method, trial) {
					todo = append(todo, trial)
				}
			}
			if len(todo) > 0 && ctx.Err() == nil {
				err = errors.Join(err, r.tryBlock(ctx, p, method, todo))
			}
		}
	}
	return err
}

// tryBlock runs some trials of one method. The lane is opened again after a trial that harmed it.
func (r *room) tryBlock(ctx context.Context, p part, method string, todo []int) (err error) {
	var l *lane
	for i, trial := range todo {
		if left, _ := ctx.Deadline(); time.Until(left) < p.limit/2 {
			fmt.Printf("no time for %s %s %d\n", p.name, method, trial)
			break
		}
		if l == nil {
			if l, err = r.open(ctx, method); err != nil {
				return errors.Join(err, r.closeLane(l))
			}
		}
		l.coming = -1
		if i+1 < len(todo) {
			l.coming = todo[i+1]
		}
		if !r.tryOne(ctx, p, l, trial) {
			if err = r.closeLane(l); err != nil {
				return err
			}
			l = nil
		}
	}
	return errors.Join(err, r.closeLane(l))
}

// tryOne runs one trial and records it. It reports whether the lane may be used again.
func (r *room) tryOne(ctx context.Context, p part, l *lane, trial int) bool {
	bound, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	began := time.Now()
	rec, err := p.try(bound, l, trial)
	switch {
	case ctx.Err() != nil:
		err = errors.Join(err, errors.New("the run's time is over"))
	case bound.Err() != nil: // what hangs is a fault of the product
		rec.Good, rec.Note = false, "the trial's time was over"
	}
	if err != nil {
		rec.Valid, rec.Note = false, err.Error()
		r.complain(p.name, trial, err, l)
	}
	rec.Part, rec.Method, rec.Trial, rec.Policy = p.name, l.method, trial, r.settings.policy
	rec.Ranks = r.kind
	rec.Time, rec.Seconds = began.UTC(), time.Since(began).Seconds()
	rec.Released, rec.Pauses = r.copyLog(r.node.Paths().Log(), p.name, trial)
	fmt.Printf("%s %s %d: %s\n", rec.Part, rec.Method, rec.Trial, rec.text())
	if err := r.records.add(rec); err != nil {
		fmt.Fprintf(os.Stderr, "room: %v\n", err)
	}
	return err == nil && rec.Valid && rec.Good
}

// complain writes what the processes of a lane printed, so that a trial that could not be made can be explained.
func (r *room) complain(name string, trial int, err error, l *lane) {
	fmt.Fprintf(r.log, "== %s %s %d: %v\n", name, l.method, trial, err)
	for _, p := range l.processes {
		fmt.Fprintf(r.log, "-- %s\n%s", strings.Join(slices.Clone(p.cmd.Args), " "), p.text())
	}
}
