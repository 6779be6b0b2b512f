// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// own reports whether a lane has a daemon of --own.
func (l *lane) own() bool { return l.method == withOwn || l.method == ownBeside }

// ownWrapper is a copy of mpirun-wrap without other programs beside it, as a user copies it into $HOME, or with
// gpu-usage beside it.
func (l *lane) ownWrapper() (string, error) {
	dir := l.r.path(l.method)
	programs := []string{"mpirun-wrap"}
	if l.method == ownBeside {
		programs = append(programs, "gpu-usage")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, name := range programs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			continue // it may run
		}
		program, err := os.ReadFile(l.r.node.Command(name)[0])
		if err = errors.Join(err, node.WriteProgram(path, program)); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, programs[0]), nil
}

// openOwn starts a rank that only waits, so that the daemon of --own lives as long as the lane.
func (l *lane) openOwn(ctx context.Context) (err error) {
	if l.wrapper, err = l.ownWrapper(); err != nil {
		return err
	}
	holder, err := l.one("sh", "-c", "echo holds; exec sleep 1000")
	if err != nil {
		return err
	}
	holds := func() bool { return len(holder.heard("^holds$")) > 0 || holder.isOver() }
	if !watch.Until(ctx, 60*time.Second, holds) || holder.isOver() {
		return fmt.Errorf("mpirun-wrap --own does not start: %s", holder.text())
	}
	keepers := l.r.ofOwn("--own-keep")
	if len(keepers) != 1 {
		return fmt.Errorf("%d keepers run", len(keepers))
	}
	l.guard = keepers[0].PID
	return nil
}

// placeOwn is place for --own.
func (l *lane) placeOwn(slots int, program []string) (env, line []string) {
	env = []string{fmt.Sprintf("SLURM_JOB_ID=%d", l.r.jobs), "SLURM_LOCALID=0", "SLURM_GTIDS=0"}
	line = []string{l.wrapper, "--own"}
	if root := l.r.rootOfOwn(); root != "" {
		line = append(line, "--root", root)
		env = append(env, "PATH="+filepath.Dir(l.r.control)+":/usr/bin:/bin")
	}
	if slots > 0 {
		line = append(line, fmt.Sprintf("--slots=%d", slots))
	}
	return env, append(line, program...)
}

// closeOwn waits until nothing of --own is left. killAll has ended all ranks.
func (l *lane) closeOwn(ctx context.Context) error {
	var left []string
	gone := func() bool {
		left = nil
		for _, p := range l.r.ofOwn("--own-") {
			left = append(left, p.String())
		}
		for _, folder := range []string{"/tmp", "/dev/shm"} {
			found, _ := filepath.Glob(l.r.rootOfOwn() + filepath.Join(folder, fmt.Sprintf("slurm-mps-%d*", l.r.user.UID)))
			left = append(left, found...)
		}
		daemons, err := l.r.daemonsOfOwn()
		for _, p := range daemons {
			left = append(left, "a process of MPS, "+p.String())
		}
		return len(left) == 0 && err == nil
	}
	if !watch.Until(ctx, 15*time.Second, gone) {
		return fmt.Errorf("left behind by --own: %q", left)
	}
	return nil
}

// daemonsOfOwn returns the daemons of the user's steps and their servers.
func (r *room) daemonsOfOwn() ([]proc.Process, error) {
	return r.node.Below(r.rootOfOwn() + fmt.Sprintf("/tmp/slurm-mps-%d/", r.user.UID))
}

// rootOfOwn is the --root of the ranks: "" on a real node.
func (r *room) rootOfOwn() string {
	if r.node.Sim == nil {
		return ""
	}
	return r.node.Root
}

// ofOwn returns the user's processes that have a mode of --own.
func (r *room) ofOwn(mode string) (found []proc.Process) {
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		line, err := os.ReadFile(filepath.Join(folder, "cmdline"))
		pid, _ := strconv.Atoi(filepath.Base(folder))
		args := bytes.Split(line, []byte{0})
		if err != nil || len(args) < 2 || !strings.HasPrefix(string(args[1]), mode) || len(args) > 4 && string(args[4]) != r.rootOfOwn() {
			continue
		}
		if stat, err := proc.ReadStat(pid); err == nil && stat.Running() {
			found = append(found, stat.Process)
		}
	}
	return found
}

// tryOwnCost compares the start of a rank below the wrapper, whose daemon runs, with the program alone. With --own it also
// measures the first start, with the daemon.
func tryOwnCost(ctx context.Context, l *lane, _ int) (record, error) {
	values := map[string]any{}
	if err := l.wrapperCost(ctx, values); err != nil || l.method == withGuard {
		return record{Valid: err == nil, Good: true, Values: values}, err
	}
	l.killAll()
	if err := l.closeOwn(ctx); err != nil {
		return record{}, err
	}
	var first []float64
	for range 3 {
		began := time.Now()
		p, err := l.one("true")
		if err != nil {
			return record{}, err
		}
		watch.Until(ctx, 60*time.Second, p.isOver)
		first = append(first, time.Since(began).Seconds())
		if err := l.closeOwn(ctx); err != nil {
			return record{}, err
		}
	}
	values["first_s"] = first
	return record{Valid: true, Good: true, Values: values}, l.openOwn(ctx)
}

// tryDaemonKilled kills the daemon of four clients with its server. The clients end, the keeper starts the daemon again
// while they end, and nothing stays.
func tryDaemonKilled(ctx context.Context, l *lane, trial int) (record, error) {
	l.killAll()
	if err := l.closeOwn(ctx); err != nil {
		return record{}, err
	}
	var options [][]string
	for i := range 4 {
		options = append(options, []string{fmt.Sprintf("d%d-%d", i, trial), "role=neighbour"})
	}
	all, err := l.python(options...)
	for _, k := range all {
		err = errors.Join(err, k.await(ctx, "ready", 30*time.Second))
	}
	if err != nil {
		return record{}, err
	}
	daemons, err := l.r.daemonsOfOwn()
	for _, p := range daemons {
		err = errors.Join(err, p.Kill(unix.SIGKILL))
	}
	began := time.Now()
	ended := watch.Until(ctx, 20*time.Second, func() bool {
		return !slices.ContainsFunc(all, func(k rank) bool { _, lives := k.proc(); return lives })
	})
	took := time.Since(began).Seconds()
	l.killAll()
	left := l.closeOwn(ctx)
	values := map[string]any{"processes": len(daemons), "clients_ended": ended, "ended_s": took, "closed_s": time.Since(began).Seconds()}
	if left != nil {
		values["left"] = left.Error()
	}
	return record{Valid: len(daemons) > 1, Good: ended && left == nil, Values: values}, errors.Join(err, l.openOwn(ctx))
}

// speedTime is the time in which the kernels of clients are counted.
const speedTime = 5 * time.Second

// trySpeed counts what four clients compute beside each other. With guard and with own, they have the whole GPU under
// MPS, so the rates should be equal.
func trySpeed(ctx context.Context, l *lane, trial int) (record, error) {
	const clients = 4
	var all []rank
	for i := range clients {
		k, err := l.fork(ctx, fmt.Sprintf("s%d-%s-%d-%d", i, l.method, l.r.jobs, trial), "role=neighbour")
		if err != nil {
			return record{}, err
		}
		all = append(all, k)
	}
	for _, k := range all {
		if err := k.await(ctx, "ready", 30*time.Second); err != nil {
			return record{}, err
		}
	}
	wait.Sleep(ctx, time.Second)
	var before []count
	for _, k := range all {
		before = append(before, k.counted(k.name))
	}
	wait.Sleep(ctx, speedTime)
	rate, alive := 0.0, living(ctx, time.Now(), all)
	for i, k := range all {
		now := k.counted(k.name)
		rate += float64(now.kernels-before[i].kernels) / (now.clock - before[i].clock)
		if p, lives := k.proc(); lives {
			_ = p.Kill(unix.SIGKILL)
		}
	}
	return record{Valid: before[0].clock > 0, Good: alive == clients, Values: map[string]any{"of": clients, "alive": alive,
		"kernels_per_s": rate, "settled": l.settledAlone(ctx)}}, nil
}

// trySignals sends each signal that Slurm or a terminal sends to all processes of a step to the daemon and its server,
// and looks whether a client lives on.
func trySignals(ctx context.Context, l *lane, _ int) (record, error) {
	before, err := l.beside(ctx)
	if err != nil {
		return record{}, err
	}
	values := map[string]any{"lost_before": before}
	daemons, err := l.r.daemonsOfOwn()
	for _, signal := range stepSignals {
		for _, p := range daemons {
			err = errors.Join(err, p.Kill(signal))
		}
	}
	since := time.Now()
	wait.Sleep(ctx, time.Second)
	alive := living(ctx, since.Add(500*time.Millisecond), l.neighbours)
	works, _ := l.newClient(ctx)
	values["processes"], values["of"], values["alive"], values["new_client"] = len(daemons), len(l.neighbours), alive, works
	return record{Valid: true, Good: alive == len(l.neighbours) && works && len(daemons) > 1, Values: values}, err
}

// stepSignals are the signals that Slurm, a launcher or a terminal sends to all processes of a step.
var stepSignals = []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGQUIT}
