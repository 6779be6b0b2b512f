// SPDX-License-Identifier: Apache-2.0

package gpuusage

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/clientenv"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/serverlog"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"golang.org/x/sys/unix"
)

// ticking is a GPU that uses 100 J at each sample, and has a client of 700 MiB for each pid.
type ticking struct {
	pids   []int
	joules int
}

func (g *ticking) Read() (gpu.Activity, error) {
	g.joules += 100
	a := gpu.Activity{Source: gpu.FromGPM, EnergyJ: g.joules, Memory: map[int]int{}}
	a.SMActive, a.UsedMiB = 43, 9000
	for _, pid := range g.pids {
		a.Memory[pid] = 700
	}
	return a, nil
}

const sharedID = 0xf0000000

// partOf is a recorder of a lease with a part of a GPU. The clients' pids are their jobs' numbers, and each has shards.
func partOf(t *testing.T, id uint32, part lease.Part, shards int, g *ticking) *recorder {
	t.Helper()
	folder := must.Get(os.Open(t.TempDir()))(t)
	t.Cleanup(func() { folder.Close() })
	return newRecorder(options{
		lease:  lease.Lease{Job: lease.Job{ID: id}, Part: part, CreatedAt: time.Now()},
		ticket: lease.Ticket{Devices: []lease.TicketDevice{{Device: site.Device{MemoryMiB: 80000}}}},
		folder: folder, interval: time.Second, samplers: []sampler{g},
		read: func(pid int) clientenv.Environment {
			return clientenv.Environment{Rank: -1, Job: uint32(pid / 10), Shards: shards}
		},
		others: func(site.UUID, uint32) int { return 3 },
	})
}

// client tells a recorder of a client that began at a time. It never ends by itself, because the process is this one.
func (r *recorder) client(pid int, begin time.Time) usage.Event {
	e := usage.Event{Proc: proc.Process{PID: pid, Start: 1}, GPUs: 1, Begin: begin}
	e.Counts = lease.Counts{ClientsSeen: 9, ClientsPeak: 9}
	r.tell(e)
	return e
}

// A part has the memory of its own clients, its part of the energy, and no percentage. A job on such a node whose
// client has no shards has whole GPUs, and all their figures if it was alone.
func TestReportOfAPart(t *testing.T) {
	shards := func(n int) lease.Part { return lease.Part{Gres: lease.GresShard, Units: n, Count: 4} }
	shard, half := shards(0), lease.Part{Gres: lease.GresMPS, Units: 50, Count: 100}
	for name, c := range map[string]struct {
		part      lease.Part
		shards    int
		others    int
		want      lease.Part
		joules    int
		used      int
		sm        float64
		noClients bool
	}{
		"shards":         {part: shard, shards: 1, others: 3, want: shards(1), joules: 50, used: 700, sm: -1},
		"percent":        {part: half, others: 1, want: half, joules: 100, used: 700, sm: -1},
		"alone":          {part: shard, shards: 2, want: shards(2), joules: 100, used: 700, sm: -1},
		"without shards": {part: shard, joules: 200, used: 9000, sm: 43},
		"beside":         {part: shard, others: 1, joules: 200, used: 700, sm: -1},
		"no client":      {part: shard, want: shard, sm: -1, noClients: true},
	} {
		r := partOf(t, 7, c.part, c.shards, &ticking{pids: []int{70, 80}}) // 80 is another job's
		r.others = func(site.UUID, uint32) int { return c.others }
		if !c.noClients {
			r.client(70, time.Now())
		}
		for n := range 2 {
			r.sampleAll(r.began.Add(time.Duration(n+1) * time.Second))
		}
		got := r.reportOf(r.own, anyJob)
		mean := got.Mean()
		g := got.GPUs[0]
		must.Hold(t, got.Part == c.want && got.EnergyJ == c.joules && g.EnergyJ == c.joules && g.Others == c.others,
			"%s: %+v, %d J, %d others", name, got.Part, got.EnergyJ, g.Others)
		must.Hold(t, mean.UsedMiB == float64(c.used) && mean.SMActive == c.sm, "%s: mean %+v", name, mean)
	}
}

// Each job of a shared daemon has its own clients, time and energy. One that has left has no report any more.
func TestReportsOfJoinedJobs(t *testing.T) {
	g := &ticking{pids: []int{70, 80, 81}}
	part := lease.Part{Gres: lease.GresMPS, Units: 25, Count: 100}
	r := partOf(t, sharedID, part, 0, g)
	second := func(n float64) time.Time { return r.began.Add(time.Duration(n * float64(time.Second))) }
	leases := []lease.Lease{{Job: lease.Job{ID: 7}, Part: part, CreatedAt: second(-1)}}
	r.members = func() ([]lease.Lease, error) { return leases, nil }
	shares := map[uint32]string{7: "even", 8: "overlap:2"}
	r.share = func(job uint32) string { return shares[job] }
	r.client(70, second(0))
	r.sampleAll(second(1))
	half := lease.Part{Gres: lease.GresMPS, Units: 50, Count: 100}
	leases = append(leases, lease.Lease{Job: lease.Job{ID: 8}, Part: half, CreatedAt: second(1.5)})
	first := r.client(80, second(1.6))
	first.End, first.Exit, first.Ending = second(1.7), "signal 9", usage.Ended
	r.tell(first)
	r.client(81, second(1.8))
	r.sampleAll(second(2))
	for n, want := range []struct {
		joules, seen, peak, bad, used int
		with                          uint32
	}{{50, 1, 1, 0, 700, 8}, {25, 2, 1, 1, 700, 7}} {
		got := r.reportOfJoined(r.joined[n])
		counts := got.ClientsSeen == want.seen && got.ClientsPeak == want.peak && got.BadEnds == want.bad
		with := len(got.SharedWith) == 1 && got.Share == shares[got.Job] && got.SharedWith[0] == want.with && got.Begin.Equal(leases[n].CreatedAt)
		if got.EnergyJ != want.joules || got.Mean().UsedMiB != float64(want.used) || !counts || !with {
			t.Errorf("job %d: %+v, used %v MiB, shared with %v", got.Job, got.Totals, got.Mean().UsedMiB, got.SharedWith)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("reports must be owned by root: run as root")
	}
	r.write()
	path := filepath.Join(r.folder.Name(), usage.RunningOf(8, sharedID))
	if got, err := usage.Read(path); err != nil || got.Job != 8 {
		t.Errorf("%+v, %v", got, err)
	}
	leases = leases[:1]
	r.sample(second(3))
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) || len(r.joined) != 1 {
		t.Errorf("job 8 has left: %v, %d are served", err, len(r.joined))
	}
}

// The clients of a job count when they have made room for others, too.
func TestCountsOfAJobsClients(t *testing.T) {
	all := clients{read: func(pid int) clientenv.Environment { return clientenv.Environment{Job: uint32(7 + pid%2)} }}
	for pid := 1; pid <= 2*usage.MaxClients; pid++ {
		e := event(pid)
		all.tell(e)
		e = end(e)
		e.Exit = "signal 9"
		all.tell(e)
	}
	for job, want := range map[uint32]int{7: usage.MaxClients, 8: usage.MaxClients, anyJob: 2 * usage.MaxClients} {
		if seen, bad := all.count(job); seen != want || bad != want {
			t.Errorf("job %d: %d clients, %d bad ends, want %d", job, seen, bad, want)
		}
	}
	for job := range uint32(2 * maxTallies) { // as a user can write them
		all.all = append(all.all, &client{environment: clientenv.Environment{Job: 100 + job}})
		all.drop(len(all.all) - 1)
	}
	must.Hold(t, len(all.gone) == maxTallies, "%d jobs are told apart", len(all.gone))
}

// serverLog makes the folder of a daemon's log.
func serverLog(t *testing.T, content []byte) *log {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "log")
	path := filepath.Join(dir, serverlog.Name)
	must.OK(t, errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(path, content, 0o600)))
	return &log{dir: dir, uid: uint32(os.Getuid())}
}

// A report has at most 64 faults, because the job's user can write the server's log.
//
// Contract: U2
func TestFaultsAreBounded(t *testing.T) {
	const line = "[2026-11-21 05:26:29.822 Server   829] Server is handling a fatal GPU error.\n"
	ticket := lease.Ticket{Devices: []lease.TicketDevice{{Device: site.Device{UUID: "GPU-1"}}}}
	r := newRecorder(options{ticket: ticket, read: nothing, interval: time.Second})
	r.logs = []*log{serverLog(t, bytes.Repeat([]byte(line), 3*usage.MaxFaults))}
	r.readLogs()
	if len(r.report.Faults) != usage.MaxFaults || usage.MaxFaults != 64 {
		t.Errorf("%d faults, want %d", len(r.report.Faults), usage.MaxFaults)
	}
}

// A sample reads a piece of the log, also if the job's user has filled the log with one line.
//
// Contract: U1
func TestAPieceOfTheLog(t *testing.T) {
	lines := serverLog(t, bytes.Repeat([]byte("a line\n"), 3<<20/7))
	one := serverLog(t, bytes.Repeat([]byte{'x'}, 3<<20))
	for range 2 {
		for name, l := range map[string]*log{"lines": lines, "one line": one} {
			before := l.offset
			if l.read(); l.offset-before > 1<<20 || l.offset == before {
				t.Errorf("%s: %d bytes are read at once", name, l.offset-before)
			}
		}
	}
}

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
