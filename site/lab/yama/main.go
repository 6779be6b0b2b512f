// SPDX-License-Identifier: Apache-2.0

// Command yama tries mpirun-wrap --own under each ptrace_scope of the security module Yama. Clients are killed with work
// in flight, and the neighbours live if the guard holds the files of the dead client. It needs the root of a kernel with
// Yama, as in the virtual machine of yama.sh, because scope 3 lasts until the next boot. The GPU is simulated.
//
//	yama -built FOLDER [-trials N] [-scopes 0,1,2,3]
//
// Each trial is a line of JSON. The exit status is 1 if one was not as documented.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

const (
	uid       = 2001
	scopeFile = "/proc/sys/kernel/yama/ptrace_scope"
	stepTime  = 60 * time.Second // for a step of a trial. An emulated processor is 20 times slower
	ranks     = 3                // two neighbours and the victim
)

// way is how the victim's client is started. In the commands, $W is the wrapper and $C the client.
type way struct {
	name, what string
	command    string
	guarded    int // the highest scope under which the guard holds the client's files
}

var ways = []way{
	{"rank", "the rank is the client", `$W $C`, 1},
	{"exec", "the rank is a shell that becomes the client", `$W sh -c 'exec "$0" "$@"' $C`, 1},
	{"inside", "the rank is a script that starts the wrapper before its client", `sh -c '"$0" "$@"; true' $W $C`, 1},
	{"child", "the rank is a shell that starts the client", `$W sh -c '"$0" "$@"; true' $C`, 0},
}

// result is a line of the output.
type result struct {
	Scope  int      `json:"scope"`
	Way    string   `json:"way"`
	Trial  int      `json:"trial"`
	Held   bool     `json:"held"`     // the guard has duplicates of the victim's files
	Alive  int      `json:"alive"`    // neighbours, after the victim was killed
	Status int      `json:"status"`   // of a rank that exits with 7
	Served bool     `json:"served"`   // a new rank computes afterwards, under MPS
	Left   []string `json:"left"`     // processes and folders after the end
	Denied int      `json:"denied"`   // lines of the kernel about it
	Said   []string `json:"messages"` // of the wrappers
	Good   bool     `json:"good"`     // all is as documented
	Note   string   `json:"note,omitempty"`
}

type trials struct {
	node testnode.Node
	home string
	env  []string
	job  int
}

func main() {
	built := flag.String("built", "", "folder with bin and sim")
	count := flag.Int("trials", 2, "trials of each way under each scope")
	scopes := flag.String("scopes", "0,1,2,3", "the scopes, rising")
	flag.Parse()
	bad, err := run(*built, *count, strings.Split(*scopes, ","))
	if err != nil {
		fmt.Fprintf(os.Stderr, "yama: %v\n", err)
	}
	if err != nil || bad > 0 {
		os.Exit(1)
	}
}

func run(built string, count int, scopes []string) (bad int, err error) {
	t, err := prepare(built)
	if err != nil {
		return 0, err
	}
	out := json.NewEncoder(os.Stdout)
	for _, text := range scopes {
		scope, err := strconv.Atoi(text)
		if err == nil {
			err = os.WriteFile(scopeFile, []byte(text), 0)
		}
		if err != nil {
			return bad, fmt.Errorf("cannot set ptrace_scope %q: %w", text, err)
		}
		for _, w := range ways {
			for trial := range count {
				r := t.try(scope, w)
				r.Trial = trial
				if !r.Good {
					bad++
				}
				if err := out.Encode(r); err != nil {
					return bad, err
				}
			}
		}
	}
	return bad, nil
}

// prepare makes a simulated node, on which a user has a copy of mpirun-wrap.
func prepare(built string) (t *trials, err error) {
	dir, err := os.MkdirTemp("/tmp", "yama")
	if err != nil {
		return nil, err
	}
	t = &trials{home: filepath.Join(dir, "home")}
	if t.node, err = testnode.New(filepath.Join(dir, "n"), built, "", node.H200); err != nil {
		return nil, err
	}
	program, err := os.ReadFile(filepath.Join(built, "bin", "mpirun-wrap"))
	err = errors.Join(err, os.Chmod(dir, 0o755), os.Mkdir(t.home, 0o755))
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(t.home, "mpirun-wrap"), program, 0o755), os.Chown(t.home, uid, uid))
	}
	t.env = []string{"PATH=" + filepath.Dir(t.node.Sim.Program("x")) + ":/usr/bin:/bin", "LD_LIBRARY_PATH=" + t.node.Sim.Libraries(),
		"W=" + filepath.Join(t.home, "mpirun-wrap"), "C=" + t.node.Sim.Program("cuda-client"), "ROOT=" + t.node.Root}
	return t, err
}

// process is a process of the user, with what it has printed.
type process struct {
	watch.Output
	cmd  *exec.Cmd
	done chan struct{}
}

func (p *process) over() bool { return watch.Closed(p.done) }

// start starts rank i. Each place of $W and $C in a command is a path of the environment.
func (t *trials) start(i int, command string) (*process, error) {
	line := strings.ReplaceAll(command, "$W", `"$W" --own --root "$ROOT"`)
	p := &process{cmd: exec.Command("/bin/sh", "-c", "exec "+strings.ReplaceAll(line, "$C", `"$C"`)), done: make(chan struct{})}
	p.cmd.Env = append(slices.Clone(t.env), fmt.Sprintf("SLURM_JOB_ID=%d", t.job), "SLURM_STEP_ID=0", "SLURM_NODEID=0",
		fmt.Sprintf("SLURM_PROCID=%d", i), fmt.Sprintf("SLURM_LOCALID=%d", i), "SLURM_GTIDS=0,1,2,3,4")
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr, p.cmd.WaitDelay = t.home, p, p, time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// try is one trial. Three ranks compute, and the client of the last is killed.
func (t *trials) try(scope int, w way) (r result) {
	t.job++
	r = result{Scope: scope, Way: w.name}
	var all []*process
	err := t.kill(w, &r, &all)
	if err == nil {
		err = t.after(&r, &all)
	}
	for _, p := range all {
		_ = node.SignalGroup(p.cmd, unix.SIGKILL)
		until(p.over)
		r.Said = append(r.Said, messages.FindAllString(p.Text(), -1)...)
	}
	if !within(20*time.Second, func() bool { r.Left = t.left(); return len(r.Left) == 0 }) {
		t.clear()
	}
	if err != nil {
		r.Note = err.Error()
	}
	r.Denied = denials()
	guarded := scope <= w.guarded
	r.Good = err == nil && r.Held == guarded && (r.Alive == ranks-1 || !guarded) && r.Status == 7 && r.Served && len(r.Left) == 0 &&
		r.Denied <= ranks+1 && says(scope, guarded, r.Said)
	return r
}

// denials counts the lines of the kernel since the last call about files that the guard may not take. The guard must
// not fill the kernel's log, so there may be one for each client.
func denials() int {
	const readClear = 4
	log := make([]byte, 1<<20)
	n, _ := unix.Klogctl(readClear, log)
	return bytes.Count(log[:max(n, 0)], []byte("ptrace attach of"))
}

var (
	messages = regexp.MustCompile(`(?m)^mpirun-wrap: .*$`)
	readyPID = regexp.MustCompile(`pid=(\d+) ready `)
)

// says reports whether one rank of the step has said what the guard cannot do. If no neighbour lives, the ranks that come
// afterwards are a new step, and one of these has said it, too.
func says(scope int, guarded bool, said []string) bool {
	if scope == 0 {
		return len(said) == 0
	}
	wrong := func(line string) bool { return !strings.Contains(line, scopeFile+" is "+strconv.Itoa(scope)) }
	return (len(said) == 1 || len(said) == 2 && !guarded) && !slices.ContainsFunc(said, wrong)
}

// kill starts the ranks and kills the victim, with 2 s of work in flight.
func (t *trials) kill(w way, r *result, all *[]*process) error {
	for i := range ranks - 1 {
		if _, err := t.ready(i, "$W $C spin -ms 2 -queue 4 -for 600", all); err != nil {
			return err
		}
	}
	keepers := t.of("--own-keep")
	if len(keepers) != 1 {
		return fmt.Errorf("%d keepers run", len(keepers))
	}
	within(3*time.Second, func() bool { return t.held(keepers[0]) >= ranks-1 }) // under scope 2 there are none
	before := t.held(keepers[0])
	victim, err := t.ready(ranks-1, w.command+" spin -ms 500 -queue 4 -for 600", all)
	if err != nil {
		return err
	}
	r.Held = within(3*time.Second, func() bool { return t.held(keepers[0]) > before })
	if err := unix.Kill(victim, unix.SIGKILL); err != nil {
		return err
	}
	time.Sleep(3 * time.Second)
	for _, p := range (*all)[:ranks-1] {
		if !p.over() {
			r.Alive++
		}
	}
	return nil
}

// after checks that the rest of --own works.
func (t *trials) after(r *result, all *[]*process) error {
	status, err1 := t.start(ranks, "$W sh -c 'exit 7'")
	late, err2 := t.start(ranks+1, "$W $C spin -ms 1 -for 0.2")
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	*all = append(*all, status, late)
	until(status.over)
	until(late.over)
	bare, err := os.ReadFile(filepath.Join(t.node.Sim.Node.Dir, "without_mps"))
	r.Status = status.cmd.ProcessState.ExitCode()
	r.Served = strings.Contains(late.Text(), " done ") && (errors.Is(err, os.ErrNotExist) || len(bytes.TrimSpace(bare)) == 0)
	return nil
}

// ready starts a rank and waits until its client computes. It returns the client's pid.
func (t *trials) ready(i int, command string, all *[]*process) (int, error) {
	p, err := t.start(i, command)
	if err != nil {
		return 0, err
	}
	*all = append(*all, p)
	var found []string
	until(func() bool { found = readyPID.FindStringSubmatch(p.Text()); return found != nil || p.over() })
	if found == nil {
		return 0, fmt.Errorf("rank %d does not compute: %s", i, p.Text())
	}
	return strconv.Atoi(found[1])
}

// held counts the memory device's files that a keeper has open.
func (t *trials) held(keeper int) (count int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", keeper))
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil && filepath.Base(target) == "nvidia-uvm" {
			count++
		}
	}
	return count
}

// of returns the living processes with a mode of --own.
func (t *trials) of(mode string) (pids []int) {
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		line, _ := os.ReadFile(folder + "/cmdline")
		args := strings.Split(string(line), "\x00")
		pid, _ := strconv.Atoi(filepath.Base(folder))
		if stat, err := proc.ReadStat(pid); err == nil && stat.Running() && len(args) > 1 && strings.HasPrefix(args[1], mode) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// left names what the step has left behind.
func (t *trials) left() (found []string) {
	for _, pid := range t.of("--own-") {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		wchan, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
		found = append(found, fmt.Sprintf("%d %.60q %s", pid, line, wchan))
	}
	for _, folder := range []string{"/tmp", "/dev/shm"} {
		folders, _ := filepath.Glob(t.node.Root + filepath.Join(folder, fmt.Sprintf("slurm-mps-%d*", uid)))
		found = append(found, folders...)
	}
	return found
}

// clear ends what a step has left, so that the next trial does not see it.
func (t *trials) clear() {
	within(5*time.Second, func() bool {
		pids := t.of("--own-")
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return len(pids) == 0
	})
	folders, _ := filepath.Glob(t.node.Root + fmt.Sprintf("/tmp/slurm-mps-%d", uid))
	for _, folder := range folders {
		_ = os.RemoveAll(folder)
	}
}

func until(is func() bool) bool { return within(stepTime, is) }

func within(limit time.Duration, is func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		if is() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}
