// SPDX-License-Identifier: Apache-2.0

package gpuusage

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
)

// gaugeTimeout bounds one call of the driver.
const gaugeTimeout = 10 * time.Second

// readQuestions sends on the lines of a reader. A question that comes while another one waits has the same answer. At
// the end it calls ended.
func readQuestions(input io.Reader, ended func()) <-chan bool {
	questions := make(chan bool, 1)
	go func() {
		for lines := bufio.NewScanner(input); lines.Scan(); {
			select {
			case questions <- true:
			default:
			}
		}
		ended()
	}()
	return questions
}

// runGauge prints a line of JSON for each question, with the usage of each device.
func runGauge(driver *gpu.NVML, devices []string, questions <-chan bool, out io.Writer) error {
	seen := make([]gpu.Seen, len(devices))
	clock := wallClock{began: time.Now()}
	lines := json.NewEncoder(out)
	for range questions {
		answer := make([]gauge.Usage, len(devices))
		now := time.Now()
		stepped := clock.stepped(now.UnixNano(), now.Sub(clock.began))
		for i, device := range devices {
			if stepped {
				seen[i] = gpu.Seen{Activity: uint64(now.UnixMicro()), Work: uint64(now.UnixMicro())}
			}
			answer[i] = usageOf(driver, site.UUID(device), &seen[i])
			if stepped {
				forget(&answer[i], now)
			}
		}
		if err := lines.Encode(answer); err != nil {
			return err
		}
	}
	return nil
}

// usageOf returns the usage of one GPU. Known is false if the usage cannot be read. With MIG, the driver reports no
// usage.
func usageOf(driver *gpu.NVML, uuid site.UUID, seen *gpu.Seen) gauge.Usage {
	u, err := driver.Usage(uuid, *seen)
	if err != nil {
		return gauge.Usage{Hung: errors.Is(err, gpu.ErrHung)}
	}
	usage := gauge.Usage{
		Known: true, TotalMiB: u.TotalMiB, FreeMiB: u.FreeMiB, Clients: u.Clients,
		Processes: u.Processes, WorkKnown: u.WorkKnown,
	}
	for _, s := range u.Activity {
		usage.Samples = append(usage.Samples, gauge.Sample{Micros: s.Micros, Percent: s.Percent})
		seen.Activity = max(seen.Activity, s.Micros)
	}
	for _, s := range u.Work {
		usage.Work = append(usage.Work, gauge.Work{PID: s.PID, Micros: s.Micros, Percent: s.Percent})
		seen.Work = max(seen.Work, s.Micros)
	}
	return usage
}

// wallClock notices when the wall clock is set. The driver's samples have its times.
type wallClock struct {
	began  time.Time
	offset int64 // what the wall clock was ahead of the monotonic one at the last call, in nanoseconds
}

// maxSlew is more than NTP turns the clock by between two questions.
const maxSlew = 50 * time.Millisecond

// stepped reports whether the wall clock was set since the last call. It takes nanoseconds since 1970, and the time
// since the beginning by the monotonic clock.
func (c *wallClock) stepped(wall int64, elapsed time.Duration) bool {
	before := c.offset
	c.offset = wall - int64(elapsed)
	return before != 0 && time.Duration(c.offset-before).Abs() > maxSlew
}

// forget makes the guard forget the samples from before the clock was set, because their times would be after a death
// that comes later. A sample that is not 0 and samples of processes that are not known do that.
func forget(u *gauge.Usage, now time.Time) {
	u.Samples = []gauge.Sample{{Micros: uint64(now.UnixMicro()), Percent: 100}}
	u.Work, u.WorkKnown = nil, false
}
