// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bufio"
	"encoding/json"
	"os"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// Usage is what a GPU has left and how busy it was, as the program gpu-usage prints it. The guard links no NVML, so it starts
// that program while it holds files of the dead.
type Usage struct {
	Known      bool     `json:"known"`
	Hung       bool     `json:"hung,omitempty"` // NVML does not answer
	TotalMiB   int      `json:"total_mib"`
	FreeMiB    int      `json:"free_mib"`
	LargestMiB int      `json:"largest_mib"` // what the largest client has; a dead one counts while its files are held
	Samples    []Sample `json:"samples"`     // since the line before
}

// Sample is how busy the SMs were in the 200 ms up to a time (measured on an H200).
type Sample struct {
	Micros  uint64 `json:"micros"` // since 1970
	Percent int    `json:"percent"`
}

const (
	// sampleTime is what one sample covers, and a little more.
	sampleTime = 250 * time.Millisecond
	// sampleGap is the time between two samples, and a little less. Beside neighbours it takes two samples of 0 to say that no
	// work is in flight; one is enough when the last client has ended.
	sampleGap = 150 * time.Millisecond
	// usageAge is the age at which what gpu-usage has printed counts no more.
	usageAge = 2 * time.Second
	// usageStart is what gpu-usage may take to print its first line: NVML starts in 10 ms where a GPU is in use.
	usageStart = time.Second
	// usageStays is how long gpu-usage goes on after the last file was closed.
	usageStays = 5 * time.Second
	// shortGPU is the part of a GPU's memory that is to be left for a newer client, at least.
	shortGPU = 8
	maxLine  = 256 << 10
)

// gauge is gpu-usage at work.
type gauge struct {
	process *os.Process
	proc    site.Process
	ask     *os.File // its stdin: it ends when this closes
	lines   chan []Usage
}

// startGauge starts gpu-usage, a process of root in a session of its own that dies with the guard's stdin for it.
func startGauge(path string, argv []string, nudge func()) (*gauge, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	in, ask, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	answer, out, err := os.Pipe()
	if err != nil {
		ask.Close()
		return nil, err
	}
	defer out.Close()
	process, err := os.StartProcess(path, append([]string{path}, argv...), &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{in, out, null}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		ask.Close()
		answer.Close()
		return nil, err
	}
	stat, _ := site.ReadStat(process.Pid) // it is our child and not waited for, so the pid is its own
	g := &gauge{process, stat.Process, ask, make(chan []Usage, 4)}
	go g.read(answer, nudge)
	return g, nil
}

// read passes on what gpu-usage prints, until it ends, and waits for it.
func (g *gauge) read(answer *os.File, nudge func()) {
	defer nudge()
	defer close(g.lines)
	defer g.process.Wait()
	defer answer.Close()
	lines := bufio.NewScanner(answer)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		var usage []Usage
		if json.Unmarshal(lines.Bytes(), &usage) != nil {
			continue
		}
		select {
		case g.lines <- usage:
		default: // the guard is busy: the next line comes soon
		}
		nudge()
	}
}

// stop ends gpu-usage: it ends by itself when its stdin does, unless the driver holds it.
func (g *gauge) stop() {
	g.ask.Close()
	_ = g.proc.Kill(unix.SIGKILL)
}

// usages is what is known of the job's GPUs.
type usages struct {
	gauge  *gauge
	coming chan *gauge // one that is being started; nil for none
	asked  time.Time   // when it was last asked for
	failed time.Time   // when gpu-usage last could not be had
	at     time.Time   // when the last line came
	gpus   []Usage
	idle   []span // by GPU
}

// span is the time from the first to the last of the latest samples, all of which are 0, in microseconds since 1970; zero when
// the latest sample is not 0.
type span struct{ first, last uint64 }

// want has gpu-usage run while files of the dead are held, and a little longer.
func (g *Guard) wantUsage(now time.Time) {
	u := &g.usage
	switch {
	case u.coming != nil:
		g.takeGauge(now)
	case u.gauge == nil && len(g.dead) > 0 && g.Usage != "" && now.Sub(u.failed) > rareLook:
		u.coming, u.asked = make(chan *gauge, 1), now
		go func(coming chan<- *gauge) { // on a busy node it takes its time
			started, err := startGauge(g.Usage, g.UsageArgs, g.events.nudge)
			if err != nil {
				g.Log.Warn().Err(err).Msg("cannot start gpu-usage: how much memory the GPUs have left is not known")
			}
			coming <- started
			g.events.nudge()
		}(u.coming)
	case u.gauge != nil && len(g.dead) == 0 && now.Sub(g.lastDead) > usageStays:
		u.gauge.stop()
		u.gauge = nil
	}
}

// takeGauge takes a gpu-usage that has been started, or notes that there is none.
func (g *Guard) takeGauge(now time.Time) {
	u := &g.usage
	select {
	case u.gauge = <-u.coming:
		u.coming, u.at = nil, time.Time{}
		if u.gauge == nil {
			u.failed = now
		}
	default:
	}
}

// readUsage takes what gpu-usage has printed.
func (g *Guard) readUsage(now time.Time) {
	u := &g.usage
	for u.gauge != nil {
		select {
		case line, ok := <-u.gauge.lines:
			if !ok {
				g.logOnce("gpu-usage has ended: how much memory the GPUs have left is not known", nil)
				u.gauge.ask.Close()
				u.gauge, u.failed = nil, now
				return
			}
			u.take(line, now)
		default:
			return
		}
	}
}

func (u *usages) take(line []Usage, now time.Time) {
	u.at, u.gpus = now, line
	if len(u.idle) != len(line) {
		u.idle = make([]span, len(line))
	}
	for i, usage := range line {
		for _, s := range usage.Samples {
			switch {
			case s.Percent > 0:
				u.idle[i] = span{}
			case u.idle[i].first == 0:
				u.idle[i] = span{s.Micros, s.Micros}
			default:
				u.idle[i].last = s.Micros
			}
		}
	}
}

// pending reports whether gpu-usage is about to print its first line.
func (u *usages) pending(now time.Time) bool {
	return (u.coming != nil || u.gauge != nil && u.at.IsZero()) && now.Sub(u.asked) < usageStart
}

// about adds to a situation what is known of the GPUs of a dead client.
func (u *usages) about(c *client, s *situation, now time.Time) {
	if u.gauge == nil || u.at.IsZero() || now.Sub(u.at) > usageAge {
		return
	}
	s.gpuKnown, s.idle = true, true
	for i, usage := range u.gpus {
		if c.gpus != 0 && c.gpus&(1<<i) == 0 {
			continue
		}
		s.gpuKnown = s.gpuKnown && usage.Known
		s.gpuShort = s.gpuShort || usage.FreeMiB < max(usage.LargestMiB, usage.TotalMiB/shortGPU)
		// A sample covers the time before it, so the first one that counts begins after the death.
		from := max(uint64(c.died.Add(sampleTime).UnixMicro()), u.idle[i].first)
		if s.neighbours {
			from += uint64(sampleGap.Microseconds())
		}
		s.idle = s.idle && u.idle[i].last >= from
	}
	s.idle = s.idle && s.gpuKnown
}
