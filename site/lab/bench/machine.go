// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ticks are the times that all processors of the machine have spent since its start, from the line "cpu" of /proc/stat.
// A tick is 10 ms.
type ticks struct{ work, idle, waiting, steal uint64 }

// parseTicks reads the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
func parseTicks(stat string) (t ticks, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return t, fmt.Errorf("cannot read /proc/stat: the first line is %q", line)
	}
	var all [8]uint64
	for i := range all {
		if all[i], err = strconv.ParseUint(fields[i+1], 10, 64); err != nil {
			return t, fmt.Errorf("cannot read /proc/stat: %w", err)
		}
	}
	return ticks{work: all[0] + all[1] + all[2] + all[5] + all[6], idle: all[3], waiting: all[4], steal: all[7]}, nil
}

// moment is the state of the machine at a time.
type moment struct {
	ticks
	load string // of the last minute
}

func now() (m moment, err error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return m, err
	}
	if m.ticks, err = parseTicks(string(stat)); err != nil {
		return m, err
	}
	load, err := os.ReadFile("/proc/loadavg")
	m.load, _, _ = strings.Cut(string(load), " ")
	return m, err
}

// activity is what the machine did while something was measured. Steal is the time that the host took from the
// processors of a virtual machine.
type activity struct {
	Busy  uint64 `json:"busy_percent"` // of all processors
	Wait  uint64 `json:"iowait_ms"`
	Steal uint64 `json:"steal_ms"`
	Load  string `json:"load"`
}

func (m moment) since(began moment) activity {
	const tick = 10
	work, idle := m.work-began.work, m.idle-began.idle
	wait, steal := m.waiting-began.waiting, m.steal-began.steal
	busy := 100 * (work + steal) / max(work+idle+wait+steal, 1)
	return activity{busy, wait * tick, steal * tick, m.load}
}

func (a activity) String() string {
	return fmt.Sprintf("processors %d %% busy, %d ms stolen, %d ms waited for disks, load %s",
		a.Busy, a.Steal, a.Wait, a.Load)
}

// startLoad starts processes that load the machine: for each processor one that computes, and one that starts programs
// without end. stop ends them.
func startLoad(ctx context.Context) (stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "load")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot load the machine: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return func() error {
		select {
		case err := <-ended:
			return fmt.Errorf("the load ended before the measurement: %w", err)
		default:
		}
		if err := cmd.Process.Kill(); err != nil {
			return err
		}
		<-ended
		return nil
	}, nil
}

// loadMain is the main function of that process. It ends when it is killed.
func loadMain() {
	runtime.GOMAXPROCS(2 * runtime.NumCPU())
	for range runtime.NumCPU() {
		go func() {
			for {
				_ = time.Now()
			}
		}()
		go func() {
			for {
				if err := exec.Command("/bin/true").Run(); err != nil {
					fmt.Fprintf(os.Stderr, "bench load: %v\n", err)
					os.Exit(1)
				}
			}
		}()
	}
	select {}
}
