// SPDX-License-Identifier: Apache-2.0

package gpuusage

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// The recorder gives up the guard's priority, in all of its threads, and the protection when memory runs out.
func TestTheRecorderIsModest(t *testing.T) {
	must.Root(t)
	must.OK(t, os.WriteFile("/proc/self/oom_score_adj", []byte("10"), 0))
	beModest()
	if score, err := os.ReadFile("/proc/self/oom_score_adj"); err != nil || string(score) != "0\n" {
		t.Errorf("oom_score_adj is %s, %v", score, err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil || len(threads) == 0 {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		if nice, err := unix.Getpriority(unix.PRIO_PROCESS, id); err == nil && 20-nice != 10 { // some thread may have ended
			t.Errorf("thread %d has priority %d", id, 20-nice)
		}
	}
}

// The times of the driver's samples are a wall clock's. When that clock is set, also by a little, the samples before it
// prove nothing about a death after it. A clock that NTP turns slowly is not set.
func TestAClockThatIsSet(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	clock := wallClock{began: began}
	wall, elapsed := began, time.Duration(0)
	for _, c := range []struct {
		name          string
		passes, added time.Duration // by the monotonic clock, and what the wall clock is set ahead
		want          bool
	}{
		{"the first question", 0, 0, false},
		{"100 ms later", 100 * time.Millisecond, 0, false},
		{"NTP turns it", 100 * time.Millisecond, 50 * time.Microsecond, false},
		{"a long pause", time.Hour, 0, false},
		{"it is set back", 100 * time.Millisecond, -time.Hour, true},
		{"after that", 100 * time.Millisecond, 0, false},
		{"it is set ahead", 100 * time.Millisecond, 300 * time.Millisecond, true},
		{"it is set back by a little", 100 * time.Millisecond, -100 * time.Millisecond, true},
	} {
		elapsed += c.passes
		wall = wall.Add(c.passes + c.added)
		must.Equal(t, c.name, clock.stepped(wall.UnixNano(), elapsed), c.want)
	}
	u := gauge.Usage{Work: []gauge.Work{{PID: 7, Percent: 99}}, WorkKnown: true}
	forget(&u, wall)
	must.Hold(t, len(u.Samples) == 1 && u.Samples[0].Percent != 0 && u.Samples[0].Micros == uint64(wall.UnixMicro()),
		"%+v does not end the time without work", u.Samples)
	must.Hold(t, !u.WorkKnown && u.Work == nil, "%+v does not end the time without work", u)
}
