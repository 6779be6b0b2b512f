// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// roomCells are ends while memory, places or time of the GPU are short.
func (k *kit) roomCells() []cell {
	var full []cell
	for delay := range 5 { // between the starts and the end
		full = append(full, cell{name: fmt.Sprintf("full-%d", delay), try: func(ctx context.Context, l *lane) (trial, error) {
			return l.full(ctx, time.Duration(delay)*time.Second)
		}})
	}
	var crowd []cell
	if !k.simulate { // whose work of 40 dead clients takes longer than the guard may pause the others
		crowd = repeated("crowd", 4, crowdEnds)
	}
	shell := repeated("shell", 2, shells)
	for i := range shell { // in --own, a second program has no wrapper that waits for a place
		shell[i].only = byProlog
	}
	return slices.Concat(full, repeated("next", 4, next), repeated("slots", 2, slots), repeated("crashes", 1, crashes),
		crowd, shell)
}

// contexts is a little more than what the contexts of a trial's clients take, in MiB.
const contexts = 3500

// part is a part of the memory that the contexts leave.
func (l *lane) part(percent int) string { return strconv.Itoa(max(l.mib-contexts, 0) * percent / 100) }

// ranks starts n programs, as srun starts the ranks of a step.
func (l *lane) ranks(n int, line ...string) (all []*client, err error) {
	var ids []string
	for i := range n {
		ids = append(ids, strconv.Itoa(i))
	}
	for i := range n {
		env := append(slices.Clone(l.env), fmt.Sprintf("SLURM_LOCALID=%d", i), "SLURM_GTIDS="+strings.Join(ids, ","))
		c, err := l.exec(env, slices.Concat(l.prefix, line))
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
	return all, nil
}

func every(all []*client, is func(*client) bool) bool {
	return !slices.ContainsFunc(all, func(c *client) bool { return !is(c) })
}

func ready(c *client) bool { _, n := c.heard(" ready "); return n > 0 }

// full lets one of seven clients take all memory and end, with work in flight. The others have a part of it each.
func (l *lane) full(ctx context.Context, delay time.Duration) (t trial, err error) {
	l.killAll()
	l.beside, err = l.ranks(6, l.client, "spin", "-ms", "5", "-queue", "10", "-for", "600", "-tell", "0.1", "-mib", l.part(10))
	for _, c := range l.beside {
		err = errors.Join(err, c.await(ctx, "at work"))
	}
	if err != nil {
		return t, err
	}
	wait.Sleep(ctx, delay)
	greedy, err := l.start(nil, "spin", "-ms", "100", "-queue", "9", "-for", "60", "-grow", "1024", "-after", "0.1")
	if err == nil && !watch.Until(ctx, 40*time.Second, greedy.over) {
		err = errors.New("the greedy client does not end")
	}
	if _, failed := greedy.heard(`alloc err=[1-9]`); err == nil && failed == 0 {
		err = fmt.Errorf("the greedy client did not fill the memory: %s", greedy.Text())
	}
	if err != nil {
		return t, err
	}
	wait.Sleep(ctx, 2*time.Second)
	works := l.newClient(ctx)
	t = l.judge(ctx, 0)
	t.Good, t.Values = t.Good && works, map[string]any{"new_client": works}
	l.killAll()
	return t, l.keep(ctx)
}

// keep starts what a lane of --own needs beside its trials, after all of its programs were killed.
func (l *lane) keep(ctx context.Context) error {
	if l.method != byOwn {
		return nil
	}
	if err := l.ownGone(ctx); err != nil {
		return err
	}
	keeps, err := l.run("sh", "-c", "echo keeps; exec sleep 3600") // so that the daemon lives as long as the lane
	if err == nil {
		err = keeps.await(ctx, "^keeps$")
	}
	return err
}

// next kills a client that has half of the memory and 2 s of work in flight. Another that needs as much starts at once.
func next(ctx context.Context, l *lane) (t trial, err error) {
	lost, err := l.accompany(ctx, "-queue", "1")
	if err != nil {
		return t, err
	}
	victim, err := l.start(nil, "spin", "-ms", "400", "-queue", "5", "-blocks", "16", "-for", "60", "-mib", l.part(51))
	if err == nil {
		err = victim.await(ctx, " ready ")
	}
	if err != nil {
		return t, err
	}
	wait.Sleep(ctx, 200*time.Millisecond)
	victim.kill(unix.SIGKILL)
	began := time.Now()
	c, err := l.start(nil, "spin", "-ms", "5", "-queue", "10", "-for", "1", "-mib", l.part(51))
	if err != nil {
		return t, err
	}
	watch.Until(ctx, 40*time.Second, c.over)
	_, done := c.heard(` done kernels=[1-9]`)
	took := time.Since(began).Seconds()
	wait.Sleep(ctx, 2*time.Second)
	t = l.judge(ctx, lost)
	t.Good, t.Values = t.Good && done == 1, map[string]any{"next_works": done == 1, "took": took, "failure": firstWords(c)}
	return t, nil
}

// members runs programs in slots by xargs, as an ensemble. A member's status is printed by a shell around the wrapper,
// because xargs ends if a member is killed.
func (l *lane) members(ctx context.Context, n, slots int, script string) (*client, error) {
	line := slices.Clone(l.prefix)
	if line != nil {
		line = append(line, fmt.Sprintf("--slots=%d", slots))
	}
	line = append(line, "sh", "-c", script, "sh")
	around := `member=$1; shift; "$@" $member; echo "member $member ends with $?"`
	xargs := append([]string{"xargs", fmt.Sprintf("-P%d", slots), "-I{}", "sh", "-c", around, "sh", "{}"}, line...)
	env := slices.DeleteFunc(slices.Clone(l.env), func(entry string) bool { // no launcher numbers the members
		return strings.HasPrefix(entry, "SLURM_") && !strings.HasPrefix(entry, "SLURM_JOB_ID=")
	})
	c, err := l.exec(env, append([]string{"sh", "-c", `seq $0 | "$@"`, strconv.Itoa(n)}, xargs...))
	if err == nil && !watch.Until(ctx, 100*time.Second, c.over) {
		c.kill(unix.SIGKILL)
	}
	return c, err
}

// slots runs members that need almost half of the memory, two at a time. All end well.
func slots(ctx context.Context, l *lane) (t trial, err error) {
	const members = 12
	script := fmt.Sprintf("exec %s spin -ms 20 -queue 5 -blocks %d -for $((1 + $1 %% 2)) -mib %s", l.client, l.sms, l.part(47))
	began := time.Now()
	c, err := l.members(ctx, members, 2, script)
	if err != nil {
		return t, err
	}
	_, done := c.heard(`^member \d+ ends with 0$`)
	rate := float64(done) / time.Since(began).Seconds()
	return trial{Valid: true, Good: done == members, Neighbours: members, Alive: done,
		Values: map[string]any{"members_per_s": rate, "failure": firstWords(c)}}, nil
}

// crashes runs six members at a time. Every third ends with 0.6 s of work in flight. The others end well.
func crashes(ctx context.Context, l *lane) (t trial, err error) {
	const members = 60
	const script = `e=; case $1 in *[02468]) e=signal:9;; *) e=exit:1;; esac
[ $(($1 %% 3)) = 0 ] && set -- -end $e -after 0.1 || set --
exec %s spin -ms 100 -queue 7 -blocks 16 -for 1 -mib %s "$@"`
	c, err := l.members(ctx, members, 6, fmt.Sprintf(script, l.client, l.part(15)))
	if err != nil {
		return t, err
	}
	_, done := c.heard(`^member \d+ ends with 0$`)
	_, crashed := c.heard(`^member \d+ ends with (137|1)$`)
	return trial{Valid: crashed > 0, Good: done == members-members/3, Neighbours: members - members/3, Alive: done,
		Values: map[string]any{"crashed": crashed, "failure": firstWords(c)}}, nil
}

// crowdEnds kills 40 clients with 3 s of work in flight each. Eight clients come at once. Two neighbours compute.
func crowdEnds(ctx context.Context, l *lane) (t trial, err error) {
	lost, err := l.accompany(ctx, "-queue", "1")
	if err != nil {
		return t, err
	}
	const ranks, newcomers = 40, 8
	all, err := l.ranks(ranks, l.client, "spin", "-ms", "100", "-queue", "30", "-blocks", "16", "-for", "60")
	if err != nil {
		return t, err
	}
	if !watch.Until(ctx, 60*time.Second, func() bool { return every(all, ready) }) {
		return t, errors.New("not all of 40 clients start")
	}
	wait.Sleep(ctx, 200*time.Millisecond)
	for _, c := range all {
		c.kill(unix.SIGKILL)
	}
	began := time.Now()
	coming, err := l.ranks(newcomers, l.client, "spin", "-ms", "1", "-for", "0.5")
	if err != nil {
		return t, err
	}
	watch.Until(ctx, 40*time.Second, func() bool { return every(coming, (*client).over) })
	took, worked, failure := time.Since(began).Seconds(), 0, ""
	for _, c := range coming {
		if _, n := c.heard(` done kernels=[1-9]`); n > 0 {
			worked++
		} else {
			failure = firstWords(c)
		}
	}
	wait.Sleep(ctx, 3*time.Second)
	t = l.judge(ctx, lost)
	t.Good = t.Good && worked == newcomers
	t.Values = map[string]any{"worked": worked, "newcomers": newcomers, "took": took, "failure": failure}
	return t, nil
}

// shells starts 40 ranks. Each is a shell script of two short programs.
func shells(ctx context.Context, l *lane) (t trial, err error) {
	const ranks = 40
	const script = `"$1" spin -ms 1 -for 0.5 && "$1" spin -ms 1 -for 0.5; echo "ends with $?"`
	all, err := l.ranks(ranks, "sh", "-c", script, "sh", l.client)
	if err != nil {
		return t, err
	}
	watch.Until(ctx, 80*time.Second, func() bool { return every(all, (*client).over) })
	done, failure := 0, ""
	for _, c := range all {
		if _, n := c.heard(`^ends with 0$`); n > 0 {
			done++
		} else {
			failure = firstWords(c)
		}
	}
	return trial{Valid: true, Good: done == ranks, Neighbours: ranks, Alive: done, Values: map[string]any{"failure": failure}}, nil
}

// rootOfOwn is the --root of the ranks with --own: "" on a real node.
func (k *kit) rootOfOwn() string {
	if k.simulate {
		return k.node.Root
	}
	return ""
}

// daemonsOfOwn returns the daemons of the user's steps and their servers.
func (l *lane) daemonsOfOwn() ([]proc.Process, error) {
	return l.node.Below(l.rootOfOwn() + fmt.Sprintf("/tmp/slurm-mps-%d-", l.uid))
}

// ownGone waits until nothing of --own is left, once all of its ranks have ended.
func (l *lane) ownGone(ctx context.Context) error {
	var left []string
	gone := func() bool {
		left = nil
		for _, folder := range []string{"/tmp", "/dev/shm"} {
			found, _ := filepath.Glob(l.rootOfOwn() + filepath.Join(folder, fmt.Sprintf("slurm-mps-%d*", l.uid)))
			left = append(left, found...)
		}
		daemons, err := l.daemonsOfOwn()
		for _, p := range daemons {
			left = append(left, "a process of MPS, "+p.String())
		}
		return len(left) == 0 && err == nil && !l.keeperRuns()
	}
	if !watch.Until(ctx, 15*time.Second, gone) {
		return fmt.Errorf("left behind by --own: %q", left)
	}
	return nil
}

// keeperRuns reports whether a keeper of --own of this user runs below our root.
func (l *lane) keeperRuns() bool {
	folders, _ := filepath.Glob("/proc/[0-9]*")
	return slices.ContainsFunc(folders, func(folder string) bool {
		line, err := os.ReadFile(filepath.Join(folder, "cmdline"))
		args := bytes.Split(line, []byte{0})
		return err == nil && len(args) > 4 && bytes.HasPrefix(args[1], []byte("--own-")) && string(args[4]) == l.rootOfOwn()
	})
}

// stepSignals sends each signal that Slurm, a launcher or a terminal sends to all processes of a step to the daemon and
// its server. The neighbours and a new client compute on.
func stepSignals(ctx context.Context, l *lane) (t trial, err error) {
	lost, err := l.accompany(ctx)
	if err != nil {
		return t, err
	}
	daemons, err := l.daemonsOfOwn()
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGQUIT} {
		for _, p := range daemons {
			err = errors.Join(err, p.Kill(signal))
		}
	}
	wait.Sleep(ctx, time.Second)
	works := l.newClient(ctx)
	t = l.judge(ctx, lost)
	t.Valid, t.Good = len(daemons) > 1, t.Good && works
	t.Values = map[string]any{"processes": len(daemons), "new_client": works}
	return t, err
}

// daemonKilled kills the daemon of two clients with its server. The clients end, and nothing stays.
func daemonKilled(ctx context.Context, l *lane) (t trial, err error) {
	if _, err := l.accompany(ctx); err != nil {
		return t, err
	}
	daemons, err := l.daemonsOfOwn()
	for _, p := range daemons {
		err = errors.Join(err, p.Kill(unix.SIGKILL))
	}
	ended := watch.Until(ctx, 20*time.Second, func() bool { return every(l.beside, (*client).over) })
	l.killAll()
	left := l.ownGone(ctx)
	t = trial{Valid: len(daemons) > 1, Good: ended && left == nil, Values: map[string]any{"clients_ended": ended}}
	if left != nil {
		t.Note = left.Error()
	}
	return t, errors.Join(err, l.keep(ctx))
}

// sharedCells are ends in one of two jobs that share a GPU by gres/mps, half of it each. The jobs of one user may share a
// daemon ("user"); otherwise each has its own ("turns").
func (k *kit) sharedCells() (all []cell) {
	for _, c := range []struct{ name, how string }{{"cancelled", "turns"}, {"cancelled", "user"}, {"fault", "turns"}} {
		all = append(all, repeated(c.name+"-"+c.how, 2, func(ctx context.Context, _ *lane) (trial, error) {
			return k.oneOfTwo(ctx, c.name, c.how)
		})...)
	}
	return append(all, repeated("stranger", 2, k.stranger)...)
}

// share makes a site whose GPU is shared, and opens two jobs.
func (k *kit) share(ctx context.Context, how string, others *user.User, attributes ...string) (job, other *lane, err error) {
	folder := filepath.Join(k.folder, "shared")
	gres := fmt.Sprintf("Name=gpu File=/dev/nvidia%d\nName=mps Count=100\n", k.gpu.Minor)
	policy := k.policy(append(attributes, fmt.Sprintf("share_gpu = %q", how))...)
	err = errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, "gres.conf"), []byte(gres), 0o644),
		os.WriteFile(filepath.Join(folder, "slurm.conf"), []byte("NodeName=n1 Gres=gpu:1,mps:100\n"), 0o644),
		os.WriteFile(k.node.Paths().Policy(), []byte(policy), 0o644))
	if err != nil {
		return nil, nil, err
	}
	if job, err = k.openFor(ctx, byProlog, tenant{k.who, 50}); err != nil {
		return nil, nil, errors.Join(err, job.shut())
	}
	if other, err = k.openFor(ctx, byProlog, tenant{others, 50}); err != nil {
		return nil, nil, errors.Join(err, job.shut(), other.shut())
	}
	if k.mib == 0 {
		err = k.measure(ctx, other)
	}
	return job, other, err
}

// unshare closes both jobs and restores the policy.
func (k *kit) unshare(jobs ...*lane) (err error) {
	for _, l := range jobs {
		if l != nil {
			err = errors.Join(err, l.shut())
		}
	}
	return errors.Join(err, os.WriteFile(k.node.Paths().Policy(), []byte(k.policy()), 0o644))
}

// oneOfTwo cancels a job with work in flight, or lets a rank of it write to a wrong address. The other job's ranks
// compute on.
func (k *kit) oneOfTwo(ctx context.Context, end, how string) (t trial, err error) {
	others := k.other
	if how == "user" {
		others = k.who
	}
	job, other, err := k.share(ctx, how, others)
	defer func() { err = errors.Join(err, k.unshare(job, other)) }()
	if err != nil {
		return t, err
	}
	if _, err := other.accompany(ctx); err != nil {
		return t, err
	}
	busy, err := job.start(nil, "spin", "-ms", "5", "-queue", "100", "-blocks", "16", "-for", "60", "-replay")
	if err == nil {
		err = busy.await(ctx, " ready ")
	}
	if err != nil {
		return t, err
	}
	wait.Sleep(ctx, 500*time.Millisecond)
	if end == "cancelled" {
		err = job.shut()
		job = nil
	} else {
		var fault *client
		if fault, err = job.start(nil, "fault"); err == nil && !watch.Until(ctx, 30*time.Second, fault.over) {
			err = errors.New("a client with a fault does not end")
		}
	}
	wait.Sleep(ctx, 2*time.Second)
	works := other.newClient(ctx)
	t = other.judge(ctx, 0)
	t.Good, t.Values = t.Good && works, map[string]any{"new_client": works}
	return t, err
}

// stranger kills a rank with 1 s of work in flight, whose successor needs the memory that it holds, while a job of
// another user computes all the time. The guard may pause the job's own neighbours.
func (k *kit) stranger(ctx context.Context, _ *lane) (t trial, err error) {
	job, other, err := k.share(ctx, "turns", k.other, `hold = "30s"`, `pause = "12s"`)
	defer func() { err = errors.Join(err, k.unshare(job, other)) }()
	if err != nil {
		return t, err
	}
	large := other.part(40)
	busy, err := other.start(nil, "spin", "-ms", "5", "-queue", "10", "-blocks", "16", "-for", "120", "-mib", large)
	if err == nil {
		err = busy.await(ctx, " ready ")
	}
	if err == nil {
		_, err = job.accompany(ctx, "-mib", "1000")
	}
	if err != nil {
		return t, err
	}
	victim, err := job.start(nil, "spin", "-ms", "5", "-queue", "200", "-replay", "-blocks", "16", "-for", "60", "-mib", large)
	if err == nil {
		err = victim.await(ctx, " ready ")
	}
	if err != nil {
		return t, err
	}
	wait.Sleep(ctx, time.Second)
	before := k.pauses()
	victim.kill(unix.SIGKILL)
	began := time.Now()
	next, err := job.start(nil, "spin", "-ms", "5", "-for", "1", "-mib", large)
	if err != nil {
		return t, err
	}
	watch.Until(ctx, 50*time.Second, next.over)
	_, done := next.heard(` done kernels=[1-9]`)
	t = job.judge(ctx, 0)
	t.Good = t.Good && done == 1 && !busy.over()
	t.Values = map[string]any{"next_works": done == 1, "took": time.Since(began).Seconds(), "pauses": k.pauses() - before,
		"stranger_lives": !busy.over(), "failure": firstWords(next)}
	return t, nil
}

// pauses counts the pauses that guards have logged.
func (k *kit) pauses() int {
	log, _ := os.ReadFile(k.node.Paths().Log())
	return strings.Count(string(log), `"paused_ms"`)
}
