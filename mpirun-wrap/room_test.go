// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// hold is the policy's hold in the tests of this file.
const hold = 30 * time.Second

// on is a rank on GPUs.
func on(minors ...int) *Placement {
	var p Placement
	p.Device, p.Ticket.Grant.Hold = site.Device{Minor: minors[0]}, hold
	for _, minor := range minors[1:] {
		p.OtherGPUs = append(p.OtherGPUs, gpuShare{Device: site.Device{Minor: minor}})
	}
	return &p
}

// A rank waits while dead clients take room on one of its GPUs, and not longer than the guard holds them.
//
// Contract: G2
func TestHowLongARankWaitsForRoom(t *testing.T) {
	const until = 5 * time.Second
	for _, c := range []struct {
		name   string
		rank   *Placement
		minor  int           // the GPU that has no room
		freed  time.Duration // when it has room again, 0 for never
		err    error
		cancel time.Duration // when the rank is told to end, 0 for never
		want   time.Duration
		lines  int
		back   time.Duration // how far the clock was set back since the guard has published its time
	}{
		{name: "another GPU", rank: on(3), minor: 2},
		{name: "its GPU", rank: on(3), minor: 3, want: until, lines: 1},
		{name: "its second GPU", rank: on(1, 3), minor: 3, want: until, lines: 1},
		{name: "until there is room", rank: on(3), minor: 3, freed: 3 * time.Second, want: 3 * time.Second, lines: 1},
		{name: "for less than a second", rank: on(3), minor: 3, freed: 900 * time.Millisecond, want: 900 * time.Millisecond},
		{name: "the clock was set back, and the guard has died", rank: on(3), minor: 3, back: 24 * time.Hour,
			want: hold, lines: 1},
		{name: "the room is not known", rank: on(3), minor: 3, err: errors.New("torn")},
		{name: "it is told to end", rank: on(3), minor: 3, cancel: 2 * time.Second, want: 2 * time.Second, lines: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, reads := time.Now(), 0
			read := func() (lease.Room, error) {
				if reads++; reads > 100_000 {
					t.Fatalf("%s: it waits without end", c.name)
				}
				if c.freed > 0 && time.Since(began) >= c.freed {
					return lease.Room{}, nil
				}
				return lease.Room{GPUs: []lease.FullGPU{{Minor: c.minor, Dead: 2, Until: began.Add(until + c.back)}}}, c.err
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.cancel > 0 {
				time.AfterFunc(c.cancel, cancel)
			}
			var lines []string
			waited := c.rank.waitRoom(ctx, read, func(what string) { lines = append(lines, what) })
			if took := time.Since(began); waited != took || took < c.want || took > c.want+roomPause {
				t.Errorf("%s: %v, and it says %v, want %v", c.name, took, waited, c.want)
			}
			must.Equal(t, fmt.Sprintf("%s: %q", c.name, lines), len(lines), c.lines)
			more := (min(until+c.back, hold) - tellRoom).Round(time.Second)
			want := fmt.Sprintf("waiting for GPU 3: 2 ranks that ended may have work there (%v more at most)", more)
			must.Hold(t, c.lines <= 0 || len(lines) <= 0 || lines[0] == want, "%s: %q", c.name, lines)
			must.Hold(t, c.want != 0 || reads == 1, "%s: %d reads", c.name, reads)
		})
	}
}

// A rank waits for the policy's hold at most, also if clients die again and again.
//
// Contract: G2
func TestARankWaitsNoLongerThanHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		read := func() (lease.Room, error) {
			must.Have(t, time.Since(began) <= time.Hour, "it waits without end")
			return lease.Room{GPUs: []lease.FullGPU{{Minor: 3, Dead: 1, Until: time.Now().Add(hold)}}}, nil
		}
		if waited := on(3).waitRoom(t.Context(), read, nil); waited < hold || waited > hold+roomPause {
			t.Errorf("waited %v", waited)
		}
	})
}

// Without a function for the line, a rank waits as well.
func TestAWaitForRoomWithoutALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		until := time.Now().Add(3 * time.Second)
		read := func() (lease.Room, error) {
			return lease.Room{GPUs: []lease.FullGPU{{Minor: 3, Dead: 1, Until: until}}}, nil
		}
		defer func() {
			if wrong := recover(); wrong != nil {
				t.Error(wrong)
			}
		}()
		if waited := on(3).waitRoom(t.Context(), read, nil); waited < 3*time.Second {
			t.Errorf("waited %v", waited)
		}
	})
}

// A rank waits 30 s for a server that recovers, and not longer. The daemon or the log says that the server has
// recovered.
//
// Contract: K2
func TestHowLongARankWaitsForAServer(t *testing.T) {
	const over = stamp + "Client process 957 disconnected\n" + stamp + "Client process 962 disconnected\n"
	for _, c := range []struct {
		name     string
		recovers time.Duration
		byLog    bool
		want     time.Duration
	}{
		{"the daemon says it", 3 * time.Second, false, 3 * time.Second},
		{"the log says it", 3 * time.Second, true, 3 * time.Second},
		{"never", time.Hour, false, 30 * time.Second},
	} {
		placement, log := placementHere(t)
		log.write(faulted)
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := placement.waitReady(t.Context(), asked{answer: func(context.Context, int) (string, error) {
				recovered := time.Since(began) >= c.recovers
				if recovered && c.byLog {
					log.write(over)
				}
				if recovered && !c.byLog {
					return "ACTIVE", nil
				}
				return "FAULT", nil
			}}, func(string) {}, nil)
			took, longest := time.Since(began), min(c.want+3*longestPause, 30*time.Second)
			must.Hold(t, (err == nil) == (c.want < recovery) && took >= c.want && took <= longest,
				"%s: %v after %v", c.name, err, took)
		})
	}
}
