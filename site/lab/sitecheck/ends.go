// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
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
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

//go:embed victim.py
var victimProgram []byte

// kind is what a victim computes: kernels of cuda-client, or a program of victim.py.
type kind struct {
	name    string
	client  []string // arguments of cuda-client
	needs   string   // the Python module of victim.py's program
	seconds float64  // of work in flight
}

var kinds = []kind{
	{"client", []string{"-ms", "5", "-queue", "140", "-blocks", "16", "-replay"}, "", 0.7},
	{"one-kernel", []string{"-ms", "400", "-blocks", "16"}, "", 0.4},
	{"two-kernels", []string{"-ms", "400", "-queue", "2"}, "", 0.8},
	{"long-kernel", []string{"-ms", "5000", "-blocks", "16"}, "", 5},
	{"spins", nil, "", 0.7}, {"matmul", nil, "torch", 0.7}, {"matmul3", nil, "torch", 3}, {"graph", nil, "torch", 0.7},
	{"small", nil, "torch", 0.25}, {"conv", nil, "torch", 0.4}, {"h2d", nil, "torch", 0.4}, {"d2h", nil, "torch", 0.4},
	{"churn", nil, "torch", 0.3}, {"managed", nil, "torch", 0.4}, {"cupy", nil, "cupy", 0.7}, {"jax", nil, "jax", 0.6},
}

// The ends of a victim: a signal from outside, at a random moment of its start, or its own. The last ones are options
// of cuda-client. victim.py knows them by name.
var (
	fromOutside = map[string]unix.Signal{"kill": unix.SIGKILL, "term": unix.SIGTERM, "interrupt": unix.SIGINT,
		"hangup": unix.SIGHUP, loading: unix.SIGKILL, "step-kill": unix.SIGKILL, "step-term": unix.SIGTERM}
	itself = map[string]string{"segv": "signal:11", "abort": "signal:6", "kill-self": "signal:9", "exit0": "exit:0",
		"exit1": "exit:1", "_exit0": "_exit:0", "alloc": "alloc", "exception": "", "oom": ""}
	endNames = []string{"kill", "term", "interrupt", "hangup", loading, "step-kill", "step-term", "segv", "abort", "kill-self",
		"exit0", "exit1", "_exit0", "alloc", "exception", "oom"}
)

const loading = "loading"

// How a victim is started: below the wrapper, as srun starts a program without it, in a pid namespace, as a program
// that cannot be read, or by a shell that waits for it.
const (
	wrapped, plain, namespace, unreadable, child = "wrap", "plain", "pidns", "unreadable", "child"
)

// victim is a client to end.
type victim struct {
	how, ending string
	kind        kind
}

func (v victim) String() string { return v.how + "/" + v.kind.name + "/" + v.ending }

// can reports whether there is such a victim here.
func (k *kit) can(v victim) bool {
	client := len(v.kind.client) > 0
	switch {
	case k.absent[v.kind.needs] != "" || !client && k.absent["python"] != "":
	case v.how == namespace && k.absent[namespace] != "":
	case v.how == namespace && (fromOutside[v.ending] != 0 && fromOutside[v.ending] != unix.SIGKILL ||
		v.ending == "oom" || strings.HasPrefix(itself[v.ending], "signal:")): // its first process ignores most signals
	case v.how == unreadable && !client, v.how == plain && k.method != byProlog:
	case client && v.ending == "exception", v.ending == "oom" && (!client || k.absent["oom"] != ""):
	case v.ending == "interrupt" && (!client || v.how == child): // an exception of Python, or what a shell's child ignores
	default:
		return true
	}
	return false
}

// endCells are all victims, each alone, in random order.
func (k *kit) endCells(random *rand.Rand) (all []cell) {
	for _, how := range []string{wrapped, plain, namespace, unreadable, child} {
		for _, kind := range kinds {
			for _, ending := range endNames {
				if v := (victim{how, ending, kind}); k.can(v) {
					c := cell{name: v.String(), try: func(ctx context.Context, l *lane) (trial, error) {
						return l.endBeside(ctx, []victim{v})
					}}
					switch how {
					case plain: // our task-prolog starts it
						c.only = byProlog
					case unreadable: // a user's guard cannot read it either
						c.unsafe = byOwn
					}
					all = append(all, c)
				}
			}
		}
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// waveCells are victims that end together: eight of all kinds, and forty small ones.
func (k *kit) waveCells(random *rand.Rand) (all []cell) {
	for i := range 12 {
		n, some := 8, kinds
		if i%3 == 2 {
			n, some = 40, kinds[:2]
		}
		var wave []victim
		for len(wave) < n {
			v := victim{wrapped, endNames[random.IntN(len(endNames))], some[random.IntN(len(some))]}
			if k.can(v) && v.ending != loading {
				wave = append(wave, v)
			}
		}
		all = append(all, cell{name: fmt.Sprintf("%d-%d", n, i), try: func(ctx context.Context, l *lane) (trial, error) {
			return l.endBeside(ctx, wave)
		}})
	}
	return all
}

// findPrograms writes victim.py, and finds out what this machine cannot do as the jobs' user.
func (k *kit) findPrograms(ctx context.Context) error {
	k.absent = map[string]string{}
	if err := os.WriteFile(k.script(), victimProgram, 0o644); err != nil {
		return err
	}
	hidden, err := os.ReadFile(k.client)
	if err = errors.Join(err, node.WriteProgram(k.hidden(), hidden)); err == nil {
		err = os.Chmod(k.hidden(), 0o711)
	}
	if err != nil {
		return err
	}
	python, found := k.findPython(ctx)
	if python == "" {
		k.absent["python"] = "no python3 on PATH that the user can run"
	}
	k.python = python
	for _, module := range []string{"torch", "cupy", "jax"} {
		if !slices.Contains(found, module) {
			k.absent[module] = "python3 has none"
		}
	}
	if k.namespace, err = k.findNamespace(ctx); err != nil {
		k.absent[namespace] = err.Error()
	}
	if group, err := k.memoryGroup(); err != nil {
		k.absent["oom"] = err.Error()
	} else {
		_ = unix.Rmdir(group)
	}
	for what, why := range k.absent {
		fmt.Printf("left out: %s: %s\n", what, why)
	}
	return nil
}

func (k *kit) script() string { return filepath.Join(k.folder, "victim.py") }
func (k *kit) hidden() string { return filepath.Join(k.folder, "hidden-client") }

// findNamespace returns the command that gives a client a pid namespace. A driver may need its /proc (error 304 without).
func (k *kit) findNamespace(ctx context.Context) (line []string, err error) {
	for _, flags := range [][]string{{"--map-current-user", "--mount-proc"}, {"--map-current-user"}, {"--map-root-user"}} {
		line = append([]string{"unshare", "--user", "--pid", "--fork", "--kill-child"}, flags...)
		if _, err = k.asUser(ctx, append(slices.Clone(line), "true")...); err == nil {
			return line, nil
		}
	}
	return nil, err
}

// findPython returns the python3 on PATH with most of the modules. The first may be readable by root alone.
func (k *kit) findPython(ctx context.Context) (python string, modules []string) {
	const look = `import importlib.util as u; print(*[m for m in ("torch", "cupy", "jax") if u.find_spec(m)])`
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, "python3")
		out, err := k.asUser(ctx, path, "-c", look)
		if found := strings.Fields(string(out)); err == nil && (python == "" || len(found) > len(modules)) {
			python, modules = path, found
		}
	}
	return python, modules
}

func (k *kit) asUser(ctx context.Context, line ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/bin", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1"}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: k.uid, Gid: k.gid, Groups: []uint32{k.gid}}}
	}
	out, err := cmd.Output()
	return out, err
}

// memoryGroup makes a control group for a little memory. What a process has before it joins does not count.
func (k *kit) memoryGroup() (dir string, err error) {
	for _, try := range [][2]string{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}} {
		if dir, err = os.MkdirTemp(try[0], "site-check-"); err != nil {
			continue
		}
		if err = os.WriteFile(filepath.Join(dir, try[1]), []byte(strconv.Itoa(64<<20)), 0); err == nil {
			return dir, nil
		}
		_ = unix.Rmdir(dir)
	}
	return "", fmt.Errorf("no control group for memory: %w", err)
}

// attacked is a victim that runs.
type attacked struct {
	victim
	*client
	folder string // of victim.py's signals
	group  string // for memory
}

// launch starts a victim.
func (l *lane) launch(v victim, name string) (a *attacked, err error) {
	a = &attacked{victim: v, folder: filepath.Join(l.folder, name)}
	if err := errors.Join(os.Mkdir(a.folder, 0o755), os.Chown(a.folder, int(l.uid), int(l.gid))); err != nil {
		return a, err
	}
	line := []string{l.client, "spin", "-for", "120"}
	if v.how == unreadable {
		line[0] = l.hidden()
	}
	switch {
	case v.kind.client == nil:
		ending := v.ending
		if fromOutside[ending] != 0 && ending != loading {
			ending = "outside"
		}
		line = []string{l.python, l.script(), "run", a.folder, fmt.Sprintf("%s:%s:%g", v.kind.name, ending, v.kind.seconds)}
	case v.ending == "oom":
		line = append(line, "-grow-host", "16", "-after", "0.5")
	case itself[v.ending] != "":
		line = append(line, "-end", itself[v.ending], "-after", "0.2")
	}
	line = append(line, v.kind.client...)
	switch v.how {
	case namespace:
		line = append(slices.Clone(l.namespace), line...)
	case child:
		line = append([]string{"sh", "-c", `"$@" & wait $!`, "sh"}, line...)
	case plain:
		env, err := l.taskEnvironment()
		if err == nil {
			a.client, err = l.exec(env, line)
		}
		return a, err
	}
	a.client, err = l.run(line...)
	return a, err
}

var exported = regexp.MustCompile(`(?m)^export (.*)$`)

// taskEnvironment is what a task has without the wrapper: what our task-prolog prints.
func (l *lane) taskEnvironment() ([]string, error) {
	line := l.node.Command("task-prolog")
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir, cmd.Env = "/", l.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: l.uid, Gid: l.gid, Groups: []uint32{l.gid}}}
	out, err := cmd.Output()
	env := slices.Clone(l.env)
	for _, m := range exported.FindAllSubmatch(out, -1) {
		env = append(env, string(m[1]))
	}
	if err == nil && len(env) == len(l.env) {
		err = errors.New("task-prolog exports nothing")
	}
	return env, err
}

// fly waits until a victim has work in flight.
func (a *attacked) fly(ctx context.Context) error {
	if a.ending == loading {
		within := 500 * time.Millisecond
		if a.kind.needs != "" { // the module, cuInit and the first kernels
			within = 4 * time.Second
		}
		wait.Sleep(ctx, rand.N(within))
		return nil
	}
	if a.kind.client == nil {
		if err := errors.Join(a.await(ctx, " warm "), os.WriteFile(filepath.Join(a.folder, "fill"), nil, 0o644)); err != nil {
			return err
		}
	}
	return a.await(ctx, `pid=\d+ ready `)
}

// end ends a victim that does not end itself, and tells the others.
func (a *attacked) end(k *kit) (err error) {
	pid := a.cmd.Process.Pid
	if m, n := a.heard(`pid=(\d+) ready `); n > 0 && a.how != namespace {
		pid, _ = strconv.Atoi(m[1])
	}
	if a.ending == "oom" {
		if a.group, err = k.memoryGroup(); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(a.group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	}
	err = os.WriteFile(filepath.Join(a.folder, "end"), nil, 0o644)
	signal := fromOutside[a.ending]
	switch {
	case signal == 0:
	case a.how == namespace || strings.HasPrefix(a.ending, "step-"):
		a.kill(signal)
	default:
		stat, wrong := proc.ReadStat(pid)
		if wrong == nil {
			wrong = stat.Kill(signal)
		}
		err = errors.Join(err, wrong)
	}
	return err
}

// endBeside ends victims beside two neighbours. After their work is done, both must compute, and so must a new client.
func (l *lane) endBeside(ctx context.Context, all []victim) (t trial, err error) {
	lost, err := l.accompany(ctx)
	if err != nil {
		return t, err
	}
	var started []*attacked
	work, beside := 0.0, 0.0 // kernels of few blocks run beside each other
	for i, v := range all {
		l.started++
		a, err := l.launch(v, fmt.Sprintf("v%d-%d-%d", l.lanes, l.started, i))
		if err != nil {
			return t, err
		}
		started = append(started, a)
		if v.kind.needs == "" {
			beside = max(beside, v.kind.seconds)
		} else {
			work += v.kind.seconds
		}
	}
	for _, a := range started {
		if err := a.fly(ctx); err != nil {
			return t, fmt.Errorf("%s: %w", a.victim, err)
		}
	}
	wait.Sleep(ctx, 100*time.Millisecond)
	for _, a := range started {
		err = errors.Join(err, a.end(l.kit))
	}
	for _, a := range started {
		if !watch.Until(ctx, 20*time.Second, a.over) {
			err = errors.Join(err, fmt.Errorf("%s does not end: %s", a.victim, strings.TrimSpace(a.Text())))
			a.kill(unix.SIGKILL)
		}
		if a.group != "" {
			watch.Until(ctx, 5*time.Second, func() bool { return unix.Rmdir(a.group) == nil })
		}
	}
	if err != nil {
		return t, err
	}
	works := l.newClient(ctx)
	wait.Sleep(ctx, time.Duration((work+beside+0.4)*float64(time.Second)))
	t = l.judge(ctx, lost)
	t.Good = t.Good && works
	t.Values = map[string]any{"new_client": works, "at_once": len(all)}
	return t, nil
}

// judge counts the neighbours that compute. Those that an earlier trial killed after it had counted them are harm, too.
func (l *lane) judge(ctx context.Context, lost int) trial {
	t := trial{Valid: true, Neighbours: len(l.beside), Alive: l.alive(ctx)}
	t.Good = t.Alive == t.Neighbours && lost == 0
	if lost > 0 {
		t.Note = fmt.Sprintf("%d died after the trial before had counted them", lost)
	}
	return t
}

// accompany makes sure that two neighbours compute, and returns how many the trial before has killed late.
func (l *lane) accompany(ctx context.Context, more ...string) (lost int, err error) {
	if lost = len(l.beside) - l.alive(ctx); lost == 0 && len(l.beside) > 0 {
		return 0, nil
	}
	for _, c := range l.beside {
		c.kill(unix.SIGKILL)
	}
	l.beside = nil
	lines := [][]string{append([]string{l.client, "spin", "-ms", "1", "-for", "3600", "-tell", "0.1"}, more...)}
	lines = append(lines, lines[0])
	if l.python != "" && l.absent["torch"] == "" && len(more) == 0 {
		lines[1] = []string{l.python, l.script(), "neighbour"}
	}
	for _, line := range lines {
		c, err := l.run(line...)
		if err != nil {
			return lost, err
		}
		l.beside = append(l.beside, c)
	}
	for _, c := range l.beside {
		err = errors.Join(err, c.await(ctx, "at work"))
	}
	return lost, err
}

// alive counts the neighbours that compute more kernels now, and have seen no error.
func (l *lane) alive(ctx context.Context) (count int) {
	for _, c := range l.beside {
		done := func() int {
			m, n := c.heard(`at work kernels=(\d+)`)
			if n == 0 {
				return 0
			}
			kernels, _ := strconv.Atoi(m[1])
			return kernels
		}
		before, began := done(), time.Now()
		watch.Until(ctx, 15*time.Second, func() bool { return c.over() || done() > before && time.Since(began) > 200*time.Millisecond })
		if _, failed := c.heard(`err=[^0]`); failed == 0 && !c.over() && done() > before {
			count++
		}
	}
	return count
}

// newClient reports whether a client that comes now computes.
func (l *lane) newClient(ctx context.Context) bool {
	c, err := l.start(nil, "first")
	if err != nil {
		return false
	}
	watch.Until(ctx, 30*time.Second, c.over)
	_, works := c.heard(`first kernel pid=\d+ err=0 `)
	return works > 0
}

// firstWords are the words of a program that failed, for a note.
func firstWords(c *client) string {
	m, _ := c.heard(`.*(err=[1-9]|cannot ).*`)
	return cmp.Or(strings.Join(m[:min(1, len(m))], ""), "nothing")
}
