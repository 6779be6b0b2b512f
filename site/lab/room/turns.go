// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kinds of ends of one client with work in flight. The first two come from outside; victim.py has the others.
var kindsOfEnd = []string{"kill", "term", "exit0", "exception", "_exit0", "segv", "exit1", "alloc", "abort", "kill-self"}

// endingSeconds is the work that a client has in flight when it ends.
const endingSeconds = "0.7"

// endingAfterwards is the time after an end at which the neighbours are counted. The next trial counts them again.
const endingAfterwards = 2 * time.Second

// tryEnding ends one client beside two neighbours. All three are forked of one process, so that PyTorch is imported
// once, and have the environment of the wrapper.
func tryEnding(ctx context.Context, l *lane, trial int) (record, error) {
	ending := kindsOfEnd[trial%len(kindsOfEnd)]
	if err := l.forkedBeside(ctx, trial); err != nil {
		return record{}, err
	}
	fill := l.r.path(fmt.Sprintf("fill-%s-%d", l.method, trial))
	how := "ending=" + ending
	if ending == "kill" || ending == "term" {
		how = "ending=outside"
	}
	victim, err := l.fork(ctx, fmt.Sprintf("v%d-%s", trial, l.method), "role=victim", "seconds="+endingSeconds, how, "fill="+fill)
	if err != nil {
		return record{}, err
	}
	if err := victim.await(ctx, "ready", 20*time.Second); err != nil {
		return record{}, err
	}
	before := living(ctx, time.Now().Add(-time.Second), l.neighbours)
	if before < len(l.neighbours) { // the client before this one harmed it late
		return record{Valid: true, Note: "a neighbour died after the trial before had counted it",
			Values: map[string]any{"ending": ending, "of": len(l.neighbours), "alive": before}}, nil
	}
	if err := errors.Join(touch(fill), victim.await(ctx, "flies", 20*time.Second)); err != nil {
		return record{}, err
	}
	proc, lives := victim.proc()
	switch ending {
	case "kill":
		err = proc.Kill(unix.SIGKILL)
	case "term":
		err = proc.Kill(unix.SIGTERM)
	}
	if err != nil {
		return record{}, err
	}
	if lives && !watch.Until(ctx, 10*time.Second, func() bool { return !proc.Running() }) {
		return record{}, fmt.Errorf("the victim does not end by %s", ending)
	}
	wait.Sleep(ctx, endingAfterwards)
	if l.coming < 0 {
		l.settledBeside(ctx) // the next trial would count those that are harmed late
	}
	alive := living(ctx, time.Now(), l.neighbours)
	rec := record{Valid: before == 2, Good: alive == before, Values: map[string]any{"ending": ending, "in_flight": endingSeconds,
		"of": before, "alive": alive}}
	return rec, nil
}

// forkedBeside starts two neighbours by the server, unless they work already.
func (l *lane) forkedBeside(ctx context.Context, trial int) error {
	if len(l.neighbours) > 0 {
		return nil // a lane in which one was lost is not used again
	}
	for i := range 2 {
		name := fmt.Sprintf("n%d-%s-%d-%d", i, l.method, l.r.jobs, trial)
		k, err := l.fork(ctx, name, "role=neighbour")
		if err != nil {
			return err
		}
		l.neighbours = append(l.neighbours, k)
	}
	var err error
	for _, k := range l.neighbours {
		err = errors.Join(err, k.await(ctx, "ready", 30*time.Second))
	}
	return err
}

// tryRate measures how long an ensemble takes that ends well. Two members need most of the memory.
func tryRate(ctx context.Context, l *lane, _ int) (record, error) {
	const members = 20
	script := fmt.Sprintf("exec %s spin -ms 20 -queue 5 -blocks %d -for $((1 + $1 %% 2)) -mib %d",
		l.r.client, l.r.sms, l.r.mib(66000))
	p, took, err := l.ensemble(ctx, members, 2, script)
	if err != nil {
		return record{}, err
	}
	done := len(p.heard(`^member \d+ ends with 0$`))
	return record{Valid: true, Good: done == members, Values: map[string]any{"of": members, "alive": done, "took": took,
		"members_per_s": float64(done) / took, "failures": failures(p), "settled": l.settledAlone(ctx)}}, nil
}

// tryCost measures what the wrapper and the guard take.
func tryCost(ctx context.Context, l *lane, _ int) (record, error) {
	values := map[string]any{}
	if err := l.wrapperCost(ctx, values); err != nil {
		return record{}, err
	}
	if err := l.holdCost(ctx, values); err != nil {
		return record{}, err
	}
	l.settledAlone(ctx)
	wait.Sleep(ctx, 6*time.Second) // gpu-usage stays for 5 s
	const idle = 20 * time.Second
	values["wakes_idle_20s"] = switches(ctx, l.guard, idle)
	if _, err := l.beside(ctx); err != nil {
		return record{}, err
	}
	values["wakes_two_clients_10s"] = switches(ctx, l.guard, idle/2)
	return record{Valid: true, Good: true, Values: values}, nil
}

// wrapperCost compares a program below the wrapper with the program alone, in turns.
func (l *lane) wrapperCost(ctx context.Context, values map[string]any) error {
	const pairs = 50
	env, line := l.place(0, 1, 0, "/bin/true")
	var with, alone, difference []float64
	once := func(line ...string) (float64, error) {
		began := time.Now()
		p, err := l.r.start(nil, env, line...)
		if err != nil {
			return 0, err
		}
		<-p.ended
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			return 0, fmt.Errorf("%s ends with %d: %s", line[0], code, p.text())
		}
		return float64(time.Since(began).Microseconds()) / 1e3, nil
	}
	for range pairs {
		wrapped, err := once(line...)
		plain, err2 := once("/bin/true")
		if err = errors.Join(err, err2, ctx.Err()); err != nil {
			return err
		}
		with, alone, difference = append(with, wrapped), append(alone, plain), append(difference, wrapped-plain)
	}
	values["wrapper_ms"], values["alone_ms"], values["difference_ms"] = median(with), median(alone), median(difference)
	return nil
}

func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// memoryFiles counts the open files of the driver's memory device of a process.
func memoryFiles(pid int) (count int) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasSuffix(target, "/nvidia-uvm") {
			count++
		}
	}
	return count
}

// holdCost measures the time from a client's first open memory file to the guard's first duplicate, and to all.
func (l *lane) holdCost(ctx context.Context, values map[string]any) error {
	const clients = 20
	var first, all []float64
	for range clients {
		base := memoryFiles(l.guard)
		p, err := l.one(l.r.client, "stay", "context", "0.3")
		if err != nil {
			return err
		}
		pid := p.cmd.Process.Pid // the wrapper becomes the program
		watch.Until(ctx, 10*time.Second, func() bool { return memoryFiles(pid) > 0 || p.isOver() })
		began := time.Now()
		holds := func(files int) bool {
			more := func() bool { return memoryFiles(l.guard) >= base+files || p.isOver() }
			return watch.Until(ctx, 5*time.Second, more) && !p.isOver()
		}
		if holds(1) {
			first = append(first, float64(time.Since(began).Microseconds())/1e3)
		}
		if holds(2) {
			all = append(all, float64(time.Since(began).Microseconds())/1e3)
		}
		watch.Until(ctx, 10*time.Second, p.isOver)
		l.settledAlone(ctx)
	}
	if len(first) == 0 || len(all) == 0 {
		return errors.New("the guard holds no files of clients")
	}
	values["clients"], values["first_held_ms"], values["first_held_max_ms"] = len(all), median(first), slices.Max(first)
	values["both_held_ms"], values["both_held_max_ms"] = median(all), slices.Max(all)
	return nil
}

// switches counts how often all threads of a process give up their processor in some time.
func switches(ctx context.Context, pid int, some time.Duration) int {
	before, _ := watch.Switches(pid)
	wait.Sleep(ctx, some)
	after, _ := watch.Switches(pid)
	return after - before
}
