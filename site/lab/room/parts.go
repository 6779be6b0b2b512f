// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// afterwards is the time after an end at which the neighbours are counted.
const afterwards = 3 * time.Second

// tryOOM starts seven ranks at once. Six hold memory and compute. The seventh queues work, allocates until that
// fails, and ends by the exception. The time between the starts and the end differs from trial to trial.
func tryOOM(ctx context.Context, l *lane, trial int) (record, error) {
	delay := time.Duration(trial%5) * time.Second
	ranks, err := l.oomRanks(trial)
	if err != nil {
		return record{}, err
	}
	if err := touch(l.r.path(fmt.Sprintf("go%d", trial))); err != nil {
		return record{}, err
	}
	for _, k := range ranks {
		if err := k.await(ctx, "ready", 30*time.Second); err != nil {
			return record{}, err
		}
	}
	if l.coming >= 0 { // the next trial's ranks import PyTorch in this trial's time
		_, err = l.oomRanks(l.coming)
	}
	greedy, others := ranks[0], ranks[1:]
	wait.Sleep(ctx, delay)
	before := living(ctx, time.Now(), others)
	if err := errors.Join(err, touch(l.r.path(fmt.Sprintf("end%d", trial)))); err != nil {
		return record{}, err
	}
	if err := greedy.await(ctx, "full", 20*time.Second); err != nil || !watch.Until(ctx, 20*time.Second, greedy.isOver) {
		return record{}, errors.Join(err, errors.New("the seventh rank does not end"))
	}
	wait.Sleep(ctx, afterwards)
	alive := living(ctx, time.Now(), others)
	works, took := l.newClient(ctx)
	for _, k := range others {
		k.kill()
	}
	rec := record{Valid: before == len(others), Good: alive == before && works, Values: map[string]any{
		"delay": delay.Seconds(), "of": before, "alive": alive, "client_works": works, "client": took,
		"end": greedy.said("full"), "settled": l.settledAlone(ctx)}}
	return rec, nil
}

// oomRanks starts the seven ranks of a trial, unless they have started. They wait for a file before they use the GPU.
func (l *lane) oomRanks(trial int) ([]rank, error) {
	if l.ranks[trial] != nil {
		return l.ranks[trial], nil
	}
	start := fmt.Sprintf("go=%s", l.r.path(fmt.Sprintf("go%d", trial)))
	end := fmt.Sprintf("end=%s", l.r.path(fmt.Sprintf("end%d", trial)))
	_ = os.Remove(strings.TrimPrefix(start, "go="))
	_ = os.Remove(strings.TrimPrefix(end, "end="))
	all := [][]string{{"greedy", start, end, "role=greedy", "seconds=0.9"}}
	for i := range 6 {
		all = append(all, []string{fmt.Sprintf("n%d", i), start, "role=neighbour", fmt.Sprintf("mib=%d", l.r.mib(15<<10))})
	}
	var err error
	l.ranks[trial], err = l.python(all...)
	return l.ranks[trial], err
}

// tryNext kills a member that has half of the memory and 2 s of work in flight. The next member of this size starts
// at once. Two neighbours compute.
func tryNext(ctx context.Context, l *lane, trial int) (record, error) {
	lost, err := l.beside(ctx)
	if err != nil {
		return record{}, err
	}
	size := l.r.mib(70 << 10)
	name := fmt.Sprintf("big%d-%d", l.r.jobs, trial)
	victim, err := l.fork(ctx, name, "role=victim", "seconds=2", "ending=outside", fmt.Sprintf("mib=%d", size))
	if err != nil {
		return record{}, err
	}
	if err := victim.await(ctx, "flies", 40*time.Second); err != nil {
		return record{}, err
	}
	before := living(ctx, time.Now().Add(-time.Second), l.neighbours)
	proc, lives := victim.proc()
	if !lives || proc.Kill(unix.SIGKILL) != nil {
		return record{}, errors.New("the victim has ended")
	}
	began := time.Now()
	next, err := l.one(l.r.client, "spin", "-ms", "5", "-queue", "10", "-for", "1", "-mib", fmt.Sprint(size))
	if err != nil {
		return record{}, err
	}
	watch.Until(ctx, 30*time.Second, func() bool { return len(next.heard(" ready ")) > 0 || next.isOver() })
	started := time.Since(began).Seconds()
	watch.Until(ctx, 30*time.Second, next.isOver)
	wait.Sleep(ctx, afterwards-time.Since(began))
	alive, works := living(ctx, time.Now(), l.neighbours), len(next.heard(` done kernels=[1-9]`)) == 1
	return record{Valid: before == 2, Good: alive == before && works && lost == 0, Values: map[string]any{
		"mib": size, "of": before, "alive": alive, "lost_before": lost, "next_works": works, "next_started": started, "next": lastLine(next),
		"settled": l.settledBeside(ctx)}}, nil
}

func lastLine(p *process) string {
	lines := strings.Split(strings.TrimSpace(p.text()), "\n")
	return lines[len(lines)-1]
}

// ensemble runs members in slots by xargs. The program gets the member's number as its last argument. The result is
// the number of each exit status.
func (l *lane) ensemble(ctx context.Context, members, slots int, script string) (*process, float64, error) {
	env, line := l.place(0, 1, slots, "sh", "-c", script, "sh")
	// A member's status is printed by a shell around the wrapper, because xargs ends if a member is killed.
	around := `member=$1; shift; "$@" $member; echo "member $member ends with $?"`
	one := append([]string{"xargs", fmt.Sprintf("-P%d", slots), "-I{}", "sh", "-c", around, "sh", "{}"}, line...)
	began := time.Now()
	p, err := l.start(env, append([]string{"sh", "-c", `seq $0 | "$@"`, fmt.Sprint(members)}, one...)...)
	if err != nil {
		return nil, 0, err
	}
	if !watch.Until(ctx, 100*time.Second, p.isOver) {
		p.kill()
	}
	return p, time.Since(began).Seconds(), nil
}

// failures are the lines about members that failed, at most four.
func failures(p *process) []string {
	var lines []string
	for _, m := range p.heard(`.*(err=[1-9]|cannot ).*`) {
		lines = append(lines, m[0])
	}
	return lines[:min(4, len(lines))]
}

// trySlots runs members that need almost half of the memory, two at a time. All end well.
func trySlots(ctx context.Context, l *lane, _ int) (record, error) {
	const members = 12
	script := fmt.Sprintf("exec %s spin -ms 20 -queue 5 -blocks %d -for 1 -mib %d", l.r.client, l.r.sms, l.r.mib(66000))
	p, took, err := l.ensemble(ctx, members, 2, script)
	if err != nil {
		return record{}, err
	}
	done := len(p.heard(`^member \d+ ends with 0$`))
	return record{Valid: true, Good: done == members, Values: map[string]any{"of": members, "alive": done, "took": took,
		"failures": failures(p), "settled": l.settledAlone(ctx)}}, nil
}

// tryCrashes runs six members at a time. Every third ends with 0.6 s of work in flight, by SIGKILL or exit 1. The
// others must end well.
func tryCrashes(ctx context.Context, l *lane, _ int) (record, error) {
	const members = 60
	const script = `e=; case $1 in *[02468]) e=signal:9;; *) e=exit:1;; esac
[ $(($1 %% 3)) = 0 ] && set -- -end $e -after 0.1 || set --
exec %s spin -ms 100 -queue 7 -blocks 16 -for 1 -mib %d "$@"`
	p, took, err := l.ensemble(ctx, members, 6, fmt.Sprintf(script, l.r.client, l.r.mib(22000)))
	if err != nil {
		return record{}, err
	}
	done, asked := 0, 0
	for _, m := range p.heard(`^member (\d+) ends with (\d+)$`) {
		var number int
		_, _ = fmt.Sscan(m[1], &number)
		switch {
		case number%3 == 0 && (m[2] == "137" || m[2] == "1"):
			asked++
		case number%3 != 0 && m[2] == "0":
			done++
		}
	}
	const of = members - members/3
	return record{Valid: true, Good: done == of, Values: map[string]any{
		"of": of, "alive": done, "crashed": asked, "took": took, "failures": failures(p), "settled": l.settledAlone(ctx)}}, nil
}

// every reports whether all processes are in a state.
func every(all []*process, is func(*process) bool) bool {
	return !slices.ContainsFunc(all, func(p *process) bool { return !is(p) })
}

// tryShell starts 40 ranks. Each is a shell script of two short programs.
func tryShell(ctx context.Context, l *lane, _ int) (record, error) {
	const ranks = 40
	script := `"$1" spin -ms 1 -for 0.5; echo "first ends with $?"; "$1" spin -ms 1 -for 0.5; echo "second ends with $?"`
	all, err := l.step(ranks, func(int) []string { return []string{"sh", "-c", script, "sh", l.r.client} })
	if err != nil {
		return record{}, err
	}
	watch.Until(ctx, 50*time.Second, func() bool { return every(all, (*process).isOver) })
	first, second := 0, 0
	var failed []string
	for _, p := range all {
		first += len(p.heard(`^first ends with 0$`))
		second += len(p.heard(`^second ends with 0$`))
		failed = append(failed, failures(p)...)
		p.kill()
	}
	return record{Valid: first > 0, Good: first == ranks && second == ranks, Values: map[string]any{
		"of": ranks, "alive": second, "first": first, "failures": failed[:min(4, len(failed))], "settled": l.settledAlone(ctx)}}, nil
}

// tryCrowd kills 40 clients with 3 s of work in flight each. Eight clients come at once. Two neighbours compute.
func tryCrowd(ctx context.Context, l *lane, trial int) (record, error) {
	lost, err := l.beside(ctx)
	if err != nil {
		return record{}, err
	}
	const ranks, newcomers = 40, 8
	all, err := l.step(ranks, func(int) []string {
		return []string{l.r.client, "spin", "-ms", "100", "-queue", "30", "-blocks", "16", "-for", "60"}
	})
	if err != nil {
		return record{}, err
	}
	ready := func(p *process) bool { return len(p.heard(" ready ")) > 0 }
	watch.Until(ctx, 30*time.Second, func() bool { return every(all, ready) })
	wait.Sleep(ctx, 200*time.Millisecond)
	killed := 0
	before := living(ctx, time.Now().Add(-time.Second), l.neighbours)
	for _, p := range all {
		if ready(p) && !p.isOver() {
			killed++
		}
		p.kill()
	}
	began := time.Now()
	coming, err := l.step(newcomers, func(int) []string { return []string{l.r.client, "spin", "-ms", "1", "-for", "0.5"} })
	if err != nil {
		return record{}, err
	}
	watch.Until(ctx, 30*time.Second, func() bool { return every(coming, (*process).isOver) })
	took, worked := time.Since(began).Seconds(), 0
	var failed []string
	for _, p := range coming {
		worked += len(p.heard(` done kernels=[1-9]`))
		failed = append(failed, failures(p)...)
		p.kill()
	}
	wait.Sleep(ctx, afterwards-time.Since(began))
	alive := living(ctx, time.Now(), l.neighbours)
	good := alive == before && worked == newcomers && lost == 0
	return record{Valid: before == 2 && killed > ranks/2, Good: good, Values: map[string]any{
		"killed": killed, "of": before, "alive": alive, "lost_before": lost, "newcomers": newcomers, "worked": worked,
		"took": took, "failures": failed[:min(4, len(failed))], "settled": l.settledBeside(ctx)}}, nil
}
