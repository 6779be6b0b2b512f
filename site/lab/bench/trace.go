// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"github.com/slurm-mps/slurm-mps/site/words"
	"golang.org/x/sys/unix"
)

// trace is what happened on the node in a prolog and an epilog. All times are milliseconds since the start of the hook.
type trace struct {
	GPUs  int            `json:"gpus"`
	Hooks map[string]act `json:"hooks"` // by "prolog" and "epilog"
}

// act is one run of a hook.
type act struct {
	Took      float64   `json:"took_ms"`
	Steps     []step    `json:"steps"`
	Processes []process `json:"processes"` // in the order of their first appearance
}

// step is a line of the hook's log.
type step struct {
	Name  string  `json:"name"`
	Begin float64 `json:"begin"`
	End   float64 `json:"end"`
}

// process is a process of a hook, of the job's daemon or of its guard.
type process struct {
	Name    string       `json:"name"`
	Begin   float64      `json:"begin"`
	End     float64      `json:"end"`
	Running [][2]float64 `json:"running"` // when one of its threads had a processor
}

// schedEvents are the kernel's events: which thread a processor runs, and the life of each process. perf records them
// without stopping a process. strace makes the hooks twice as slow.
const schedEvents = "sched:sched_switch,sched:sched_process_exec,sched:sched_process_exit"

// traceHooks writes a trace and a picture of one prolog and one epilog into a folder, for jobs with one and with
// eight GPUs.
func traceHooks(built, folder string) error {
	for _, gpus := range []int{1, 8} {
		name := filepath.Join(folder, fmt.Sprintf("trace-%d", gpus))
		err := onNode(built, false, set{GPUs: gpus, Scope: "job"}, time.Minute, func(ctx context.Context, b bench) error {
			for id := uint32(7); id < 9; id++ { // these fill the caches
				if _, err := b.traceJob(ctx, gpus, id); err != nil {
					return err
				}
			}
			t, err := b.traceJob(ctx, gpus, 9)
			if err != nil {
				return err
			}
			content, err := json.Marshal(t)
			if err == nil {
				err = os.WriteFile(name+".json", append(content, '\n'), 0o644)
			}
			if err == nil {
				err = os.WriteFile(name+".svg", t.draw(), 0o644)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// onNode makes a node, and calls use there with a limit.
func onNode(built string, real bool, s set, limit time.Duration, use func(context.Context, bench) error) error {
	b, err := newBench(built, real, s)
	defer b.remove()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return use(ctx, b)
}

// traceJob runs the hooks of a job beside perf.
func (b bench) traceJob(ctx context.Context, gpus int, id uint32) (trace, error) {
	t := trace{GPUs: gpus, Hooks: map[string]act{}}
	job := b.job(id, gpus)
	for _, hook := range []string{"prolog", "epilog"} {
		a, err := b.traceHook(ctx, job, hook)
		if err != nil {
			return t, err
		}
		t.Hooks[hook] = a
		if hook == "prolog" {
			if err := b.serverReady(ctx, id); err != nil {
				return t, err
			}
			wait.Sleep(ctx, 300*time.Millisecond) // the recorder opens NVML
		}
	}
	return t, nil
}

func (b bench) traceHook(ctx context.Context, job testnode.Job, hook string) (a act, err error) {
	data := filepath.Join(b.dir, "perf.data")
	perf := exec.CommandContext(ctx, "perf", "record", "-a", "-q", "-k", "CLOCK_MONOTONIC", "-o", data, "-e", schedEvents)
	if err := perf.Start(); err != nil {
		return a, fmt.Errorf("cannot trace %s: %w: it needs perf and root", hook, err)
	}
	wait.Sleep(ctx, time.Second) // perf attaches to the processors
	if err := os.Truncate(b.node.Paths().Log(), 0); err != nil && !os.IsNotExist(err) {
		return a, err
	}
	began, wall := monotonic(), time.Now()
	if a.Took, err = b.timed(ctx, job, hook); err != nil {
		return a, err
	}
	wait.Sleep(ctx, 50*time.Millisecond)
	if err := perf.Process.Signal(os.Interrupt); err != nil {
		return a, err
	}
	_ = perf.Wait() // it ends by the signal
	text, err := exec.CommandContext(ctx, "perf", "script", "-i", data, "-F", "comm,pid,tid,cpu,time,event,trace").Output()
	if err != nil {
		return a, fmt.Errorf("cannot read trace: %w", err)
	}
	a.Processes = processesOf(string(text), began, a.Took)
	if len(a.Processes) == 0 {
		return a, errors.New("cannot trace: perf has recorded nothing: is the node busy?")
	}
	a.Steps, err = b.stepsOf(hook, wall)
	return a, err
}

// monotonic returns the milliseconds of perf's clock.
func monotonic() float64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return float64(now.Nano()) / 1e6
}

// stepsOf reads the steps of a hook from the log. The log has the end of each in whole milliseconds.
func (b bench) stepsOf(hook string, began time.Time) (all []step, err error) {
	content, err := os.ReadFile(b.node.Paths().Log())
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(content)) {
		var entry struct {
			Program, Step string
			MS            float64
			Time          time.Time
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			return nil, err
		}
		if entry.Program == hook && entry.Step != "" && entry.Step != "closed" && entry.MS > 0 {
			end := float64(entry.Time.Sub(began).Microseconds())/1000 + 0.5
			all = append(all, step{entry.Step, max(end-entry.MS, 0), end})
		}
	}
	return all, nil
}

// The lines of perf script look like these:
//
//	prolog 12664/12666 [000] 34996.844298: sched:sched_switch: prev_comm=prolog prev_pid=12666 ... ==> next_comm=guard next_pid=12673 next_prio=100
//	guard 12673/12673 [000] 34996.844973: sched:sched_process_exec: filename=/usr/libexec/slurm-mps/guard pid=12673 old_pid=12673
var (
	perfLine   = regexp.MustCompile(`^\s*(.+?)\s+(\d+)/(\d+)\s+\[(\d+)\]\s+([\d.]+):\s+sched:(\w+):\s+(.*)$`)
	execedFile = regexp.MustCompile(`filename=(\S+)`)
	nextThread = regexp.MustCompile(`next_pid=(\d+)`)
)

// shown are the programs of a picture, by the names of their files, and what they are called there.
var shown = map[string]string{
	"prolog": "prolog", "epilog": "epilog", "guard": "guard", "exe": "guard's helper", "gpu-usage": "gpu-usage", "sh": "sh",
	"nvidia-cuda-mps-control": "mps-control", "nvidia-cuda-mps-server": "mps-server",
	"nvidia-cuda-mps": "mps daemon or server", // started before the trace
}

// processesOf reads the processes of a hook that began at a time of perf's clock and took a time.
func processesOf(text string, began, took float64) (all []process) {
	group := map[string]string{} // pid by thread
	file := map[string]string{}  // by pid
	lines := perfLines(text)
	for _, l := range lines {
		group[l[3]] = l[2]
		if l[6] == "sched_process_exec" {
			file[l[2]] = filepath.Base(execedFile.FindStringSubmatch(l[7])[1])
		} else if _, known := file[l[2]]; !known {
			file[l[2]] = l[1]
		}
	}
	at := map[string]int{} // index in all by pid
	since := map[string]struct {
		pid   string
		began float64
	}{} // what each processor runs
	for _, l := range lines {
		seconds, _ := strconv.ParseFloat(l[5], 64)
		now := seconds*1000 - began
		if now > took+5 {
			break
		}
		if run, runs := since[l[4]]; runs && l[6] == "sched_switch" {
			i, known := at[run.pid]
			if name := shown[file[run.pid]]; !known && name != "" && now > 0 {
				i = len(all)
				at[run.pid], all = i, append(all, process{Name: name, Begin: max(run.began, 0)})
			}
			if _, known := at[run.pid]; known && now > 0 {
				all[i].End = now
				all[i].runs(max(run.began, 0), now)
			}
		}
		if l[6] == "sched_switch" {
			next := nextThread.FindStringSubmatch(l[7])[1]
			since[l[4]] = struct {
				pid   string
				began float64
			}{group[next], now}
		}
	}
	return all
}

// runs adds a time in which the process runs. A gap that no picture shows is left out.
func (p *process) runs(begin, end float64) {
	begin, end = math.Round(begin*100)/100, math.Round(end*100)/100
	if last := len(p.Running) - 1; last >= 0 && begin-p.Running[last][1] < 0.05 {
		p.Running[last][1] = max(p.Running[last][1], end)
		return
	}
	p.Running = append(p.Running, [2]float64{begin, end})
}

func perfLines(text string) (all [][]string) {
	for line := range strings.Lines(text) {
		if fields := perfLine.FindStringSubmatch(strings.TrimRight(line, "\n")); fields != nil {
			all = append(all, fields)
		}
	}
	return all
}

// The measures of a picture, in pixels.
const (
	pictureWidth, labelWidth = 960, 150
	rowHeight, barHeight     = 16, 9
	headHeight               = 40
)

// draw draws both hooks, one below the other. Each row is a process: a thin line while it lives, a bar while it runs.
func (t trace) draw() []byte {
	var body bytes.Buffer
	y := 0
	for _, hook := range []string{"prolog", "epilog"} {
		y = t.Hooks[hook].draw(&body, fmt.Sprintf("%s, %s: %.0f ms", hook, words.Count(t.GPUs, "GPU"), t.Hooks[hook].Took), y)
	}
	var svg bytes.Buffer
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="10">`+"\n", pictureWidth, y)
	fmt.Fprintf(&svg, `<rect width="%d" height="%d" fill="white"/>`+"\n", pictureWidth, y)
	svg.Write(body.Bytes())
	svg.WriteString("</svg>\n")
	return svg.Bytes()
}

func (a act) draw(to *bytes.Buffer, title string, y int) (below int) {
	scale := float64(pictureWidth-labelWidth-10) / (a.Took + 2)
	x := func(ms float64) float64 { return labelWidth + ms*scale }
	fmt.Fprintf(to, `<text x="4" y="%d" font-size="13" font-weight="bold">%s</text>`+"\n", y+16, title)
	y += headHeight
	for ms := 0.0; ms <= a.Took; ms += 10 {
		fmt.Fprintf(to, `<text x="%.1f" y="%d" fill="#888">%.0f</text><line x1="%[1]f" y1="%d" x2="%[1]f" y2="%d" stroke="#eee"/>`+"\n",
			x(ms), y-6, ms, y-4, y+rowHeight*(len(a.Steps)+len(a.Processes)))
	}
	row := func(name, color string, begin, end float64, bars [][2]float64) {
		fmt.Fprintf(to, `<text x="4" y="%d">%s</text><line x1="%.1f" y1="%d" x2="%.1f" y2="%[4]d" stroke="#bbb"/>`+"\n",
			y+barHeight, name, x(begin), y+barHeight/2, x(end))
		for _, bar := range bars {
			fmt.Fprintf(to, `<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"/>`, x(bar[0]), y, max((bar[1]-bar[0])*scale, 0.4), barHeight, color)
		}
		to.WriteString("\n")
		y += rowHeight
	}
	slices.SortStableFunc(a.Steps, func(s, other step) int { return int((s.Begin - other.Begin) * 1000) })
	for _, s := range a.Steps {
		row("step: "+s.Name, "#4477aa", s.Begin, s.End, [][2]float64{{s.Begin, s.End}})
	}
	for _, p := range a.Processes {
		row(p.Name, "#cc6633", p.Begin, min(p.End, a.Took+2), p.Running)
	}
	return y + rowHeight
}
