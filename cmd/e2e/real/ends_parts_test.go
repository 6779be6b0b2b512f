// SPDX-License-Identifier: Apache-2.0

package real_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

const (
	endsClients = 2000 // clients of one server, one after the other
	endsAtATime = 16
)

// runClients starts many short clients of one server beside the neighbours, several at a time. No client may fail.
func (l *endsLane) runClients(until time.Time) {
	l.t.Helper()
	l.accompany()
	began := time.Now()
	loop := fmt.Sprintf(`i=0; while [ $i -lt %d ]; do "$@" || echo "a client ends with $?"; i=$((i+1)); done`, endsClients/endsAtATime)
	s := l.srun(endsAtATime, l.wrapped("sh", "-c", loop, "sh", l.client, "first")...)
	l.wait(time.Until(until)-5*time.Second, s.over)
	took := time.Since(began)
	if !s.over() {
		_ = l.scancel(s)
	}
	l.wait(20*time.Second, s.over)
	_, worked := s.heard(endsFirst)
	_, all := s.heard(regexp.MustCompile(`^first kernel `))
	_, failed := s.heard(regexp.MustCompile(`a client ends with|err=[^0]|\b401\b`))
	line := fmt.Sprintf("%s: %d clients of one server, %d at a time, in %s s: %d worked, %d failed, %d neighbours live",
		l.method, len(all), endsAtATime, endsSeconds(took), len(worked), len(failed), l.alive(time.Time{}))
	l.record.tell(l.gpu, line, fmt.Sprintln(failed)+l.testimony())
	if len(failed) > 0 || len(worked) != len(all) || len(worked) == 0 || l.alive(time.Time{}) != 2 {
		l.t.Errorf("%s: %v", line, failed[:min(5, len(failed))])
	}
}

// runRates measures how fast endsRanks transformers train side by side. The rate is the sum of their steps in each
// of endsWindows periods of endsWindow.
const (
	endsRanks   = 8
	endsWindows = 3
	endsWindow  = 3 * time.Second
	endsWarm    = 20 * time.Second // the time until all of them compute
)

var endsSteps = regexp.MustCompile(`^rate window=(\d) steps=(\d+)$`)

// runRates measures how much the clients compute while no client ends, with a guard and without.
func (l *endsLane) runRates(time.Time) {
	l.t.Helper()
	if why := l.planner.absent["torch"]; why != "" {
		l.t.Skip("needs PyTorch: " + why)
	}
	begin := time.Now().Add(endsWarm)
	line := []string{l.python, l.victim, "rate", fmt.Sprint(begin.Unix()), fmt.Sprint(endsWindows), fmt.Sprint(endsWindow.Seconds())}
	s := l.srun(endsRanks, l.wrapped(line...)...)
	if !l.wait(endsWarm+(endsWindows+5)*endsWindow, s.over) {
		_ = l.scancel(s)
		l.t.Fatalf("the ranks do not end:\n%s", s.text())
	}
	_, found := s.heard(endsSteps)
	var sums [endsWindows]int
	for _, m := range found {
		window, _ := strconv.Atoi(m[1])
		steps, _ := strconv.Atoi(m[2])
		sums[window] += steps
	}
	l.record.tell(l.gpu, fmt.Sprintf("%s: %d transformers: %d steps in windows of %v", l.method, endsRanks, sums, endsWindow), s.text())
	if len(found) != endsRanks*endsWindows {
		l.t.Errorf("%d answers, want %d:\n%s", len(found), endsRanks*endsWindows, s.text())
	}
}

// runKnown measures two times. The first is until a dead client's memory is free, if there is no other client. The
// second is until its crash is known.
func (l *endsLane) runKnown(until time.Time) {
	l.t.Helper()
	table, err := os.Create(filepath.Join(l.record.dir, "ends-known.csv"))
	if err != nil {
		l.t.Fatal(err)
	}
	defer table.Close()
	fmt.Fprintln(table, "victim,ending,what,ms")
	for range 2 {
		for _, kind := range []string{"spins", "matmul"} {
			if kind == "matmul" && l.planner.absent["torch"] != "" {
				continue
			}
			if time.Until(until) < endsMin {
				return
			}
			l.accompany()
			for _, ending := range []string{"kill-self", "segv", "abort"} {
				l.crash(table, kind, ending)
			}
			l.dismiss()
			l.freed(table, kind)
		}
	}
}

// one starts one victim below a parent and waits until its work is in flight.
func (l *endsLane) one(kind, ending string) (s *endsStream, name, dir string, started bool) {
	l.t.Helper()
	l.waves++
	name = fmt.Sprintf("%s%d-%d", l.method, l.gpu, l.waves)
	dir = filepath.Join(l.home, name)
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, int(l.user.UID), int(l.user.GID))); err != nil {
		l.t.Fatal(err)
	}
	line := append([]string{l.python, l.victim, "parent"}, l.wrapped(l.python, l.victim, "run", dir, l.client, kind+":"+ending+":0.7")...)
	s = l.srun(1, line...)
	w := endsWave{how: "wrap", victims: []endsVictim{{}}}
	started = l.ready(w, s, name, dir, "warm") && l.ready(w, s, name, dir, "ready")
	if !started {
		l.record.tell(l.gpu, fmt.Sprintf("%s: a victim %s does not start", l.method, kind), s.text()+l.testimony())
		l.abandon(w, s, name)
	}
	return s, name, dir, started
}

var endsClock = regexp.MustCompile(`clock=(\d+)\.(\d{6})`)

func endsTime(line string) time.Time {
	m := endsClock.FindStringSubmatch(line)
	if m == nil {
		return time.Time{}
	}
	seconds, _ := strconv.ParseInt(m[1], 10, 64)
	micros, _ := strconv.ParseInt(m[2], 10, 64)
	return time.Unix(seconds, micros*1000)
}

// crash makes a victim die by itself. It measures when its parent knows of the death, and when srun does.
func (l *endsLane) crash(table *os.File, kind, ending string) {
	l.t.Helper()
	s, name, dir, started := l.one(kind, ending)
	if !started {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, "end"), nil, 0o644); err != nil {
		l.t.Fatal(err)
	}
	l.wait(20*time.Second, s.over)
	died := endsTime(l.lines(s, name, "ends")[0])
	_, found := s.heard(regexp.MustCompile(`^known .*`))
	if died.IsZero() || len(found) == 0 || !s.over() {
		l.t.Errorf("no one knows of the end of %s by %s:\n%s", kind, ending, s.text())
		return
	}
	known := endsTime(found[0][0]).Sub(died)
	s.mutex.Lock()
	ended := s.over_.Sub(died)
	s.mutex.Unlock()
	for what, took := range map[string]time.Duration{"its parent knows": known, "srun has ended": ended} {
		fmt.Fprintf(table, "%s,%s,%s,%.1f\n", kind, ending, what, float64(took.Microseconds())/1e3)
	}
	l.record.tell(l.gpu, fmt.Sprintf("%s: %s ends by %s: its parent knows after %v, srun has ended after %v", l.method,
		kind, ending, known.Round(time.Millisecond), ended.Round(time.Millisecond)), "")
	if endsReal() && known > 50*time.Millisecond {
		l.t.Errorf("the end of %s by %s is known after %v", kind, ending, known)
	}
}

// used is the GPU's used memory in MiB, as nvidia-smi prints it. On a simulated node it is -1.
func (l *endsLane) used() int {
	if !endsReal() {
		return -1
	}
	out, err := exec.CommandContext(l.ctx, "nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", strconv.Itoa(l.gpu)).CombinedOutput()
	mib, wrong := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil || wrong != nil {
		l.t.Fatalf("nvidia-smi: %v: %s", err, out)
	}
	return mib
}

// freedWithin is the limit until the memory is free. The limit is 1 s after the end of the work, plus the time of
// nvidia-smi. A victim of these kinds has 0.7 s of work.
const freedWithin = 2 * time.Second

// freed kills the only client of the GPU and measures when its memory is free.
func (l *endsLane) freed(table *os.File, kind string) {
	l.t.Helper()
	if !endsReal() {
		return
	}
	wait.Sleep(l.ctx, 2*time.Second)
	idle := l.used()
	s, name, _, started := l.one(kind, "outside")
	if !started {
		return
	}
	busy := l.used()
	m := endsPID.FindStringSubmatch(l.lines(s, name, "started")[0])
	began := time.Now()
	if m == nil || endsProc(m[1]).Kill(unix.SIGKILL) != nil {
		l.t.Errorf("no victim to kill:\n%s", s.text())
		return
	}
	var took time.Duration
	back := l.wait(30*time.Second, func() bool { used := l.used(); took = time.Since(began); return used <= idle+16 })
	fmt.Fprintf(table, "%s,kill,memory of %d MiB is free,%.1f\n", kind, busy-idle, float64(took.Microseconds())/1e3)
	l.record.tell(l.gpu, fmt.Sprintf("%s: the only client (%s) is killed: %d MiB of memory are free after %s s: %v",
		l.method, kind, busy-idle, endsSeconds(took), back), "")
	if !back || took > freedWithin {
		l.t.Errorf("the memory of the only client is free after %v: %v", took, back)
	}
	l.wait(20*time.Second, s.over)
}

// endsMemory makes control groups with a limit of memory.
type endsMemory struct {
	dir   string // where groups are made; "" if groups cannot be made
	file  string // name of the file with a group's limit
	why   string // the reason if groups cannot be made
	mutex sync.Mutex
	count int
}

// endsLimit is the memory limit of a group, in bytes. The memory that a process has before it joins the group does
// not count.
const endsLimit = "67108864"

// newEndsMemory finds a hierarchy of control groups, or mounts one for the test.
func newEndsMemory(t *testing.T) *endsMemory {
	t.Helper()
	m := &endsMemory{}
	var whys []string
	for _, try := range []struct{ dir, file string }{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
		{"/sys/fs/cgroup", "memory.max"}, {"/sys/fs/cgroup/unified", "memory.max"}} {
		err := m.use(t, try.dir, try.file)
		if err == nil {
			return m
		}
		whys = append(whys, err.Error())
	}
	for _, try := range []struct{ kind, data, file string }{{"cgroup2", "", "memory.max"}, {"cgroup", "memory", "memory.limit_in_bytes"}} {
		dir := e2e.PublicDir(t)
		if err := unix.Mount("none", dir, try.kind, 0, try.data); err != nil {
			whys = append(whys, fmt.Sprintf("cannot mount %s: %v", try.kind, err))
			continue
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		err := m.use(t, dir, try.file)
		if err == nil {
			return m
		}
		whys = append(whys, err.Error())
	}
	m.why = strings.Join(whys, "; ")
	return m
}

// use takes a hierarchy if a group in it can have a limit.
func (m *endsMemory) use(t *testing.T, root, file string) error {
	dir := filepath.Join(root, fmt.Sprintf("ends-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	remove := func() {
		groups, _ := filepath.Glob(filepath.Join(dir, "[0-9]*"))
		for _, group := range append(groups, dir) {
			for try := 0; unix.Rmdir(group) == unix.EBUSY && try < 200; try++ { // until its last process is reaped
				time.Sleep(10 * time.Millisecond)
			}
		}
	}
	undo := func() {}
	if file == "memory.max" {
		for _, parent := range []string{root, dir} {
			control := filepath.Join(parent, "cgroup.subtree_control")
			before, err := os.ReadFile(control)
			if err != nil {
				remove()
				return err
			}
			if strings.Contains(" "+strings.TrimSpace(string(before))+" ", " memory ") {
				continue
			}
			if err := os.WriteFile(control, []byte("+memory"), 0); err != nil {
				remove()
				undo()
				return err
			}
			if parent == root {
				undo = func() { _ = os.WriteFile(control, []byte("-memory"), 0) }
			}
		}
	}
	m.dir, m.file = dir, file
	group, err := m.group()
	if err != nil {
		m.dir = ""
		remove()
		undo()
		return err
	}
	_ = unix.Rmdir(group)
	t.Cleanup(func() { remove(); undo() })
	return nil
}

// group makes a group with the limit.
func (m *endsMemory) group() (string, error) {
	m.mutex.Lock()
	m.count++
	count := m.count
	m.mutex.Unlock()
	group := filepath.Join(m.dir, strconv.Itoa(count))
	if err := os.Mkdir(group, 0o755); err != nil {
		return "", err
	}
	return group, os.WriteFile(filepath.Join(group, m.file), []byte(endsLimit), 0)
}

// limit moves a process into its own group.
func (m *endsMemory) limit(p proc.Process) error {
	group, err := m.group()
	if err != nil {
		return err
	}
	if !p.Running() {
		return fmt.Errorf("cannot limit the memory of pid %d: it has gone", p.PID)
	}
	return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(p.PID)), 0)
}
