// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/clientenv"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/serverlog"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

func nothing(int) clientenv.Environment { return clientenv.Environment{Rank: -1, Unknown: "a test"} }

// If a job has many clients, the report keeps the latest clients and counts all.
func TestClientsAreBounded(t *testing.T) {
	all := clients{read: nothing}
	now := time.Now()
	for pid := 1; pid <= 3*usage.MaxClients; pid++ {
		e := usage.Event{Proc: site.Process{PID: pid, Start: 1}, GPUs: 1, Begin: now}
		all.tell(e)
		e.End, e.Ending = now, usage.Ended
		all.tell(e)
	}
	rows := all.rows([]lease.TicketDevice{{}}, 0)
	if all.seen != 3*usage.MaxClients || all.peak != 1 || len(rows) != usage.MaxClients || rows[len(rows)-1].PID != 3*usage.MaxClients {
		t.Errorf("%d seen, peak %d, %d rows", all.seen, all.peak, len(rows))
	}
	all.tell(usage.Event{Proc: site.Process{PID: 3 * usage.MaxClients, Start: 1}, NoClient: true})
	if rows := all.rows([]lease.TicketDevice{{}}, 0); len(rows) != usage.MaxClients-1 || all.seen != 3*usage.MaxClients-1 {
		t.Errorf("a process that is no client is still in the report: %d rows", len(rows))
	}
}

// Clients for which there is no room are counted once, however many events name them, and their environment is not
// read.
func TestClientsWithoutRoom(t *testing.T) {
	read := 0
	all := clients{read: func(pid int) clientenv.Environment { read++; return nothing(pid) }}
	const living = usage.MaxClients + 8
	event := func(pid int) usage.Event {
		return usage.Event{Proc: site.Process{PID: pid, Start: 1}, GPUs: 1, Begin: time.Now()}
	}
	for pid := 1; pid <= living; pid++ {
		all.tell(event(pid))
	}
	for range 10 {
		for pid := usage.MaxClients + 1; pid <= living; pid++ {
			all.tell(event(pid))
		}
	}
	if all.seen != living || all.peak != living || read != usage.MaxClients || len(all.all) != usage.MaxClients {
		t.Errorf("%d clients live: %d seen, peak %d, %d environments read, %d kept", living, all.seen, all.peak, read, len(all.all))
	}
	ended := event(living)
	ended.End, ended.Ending = time.Now(), usage.Ended
	all.tell(ended)
	all.tell(usage.Event{Proc: event(living - 1).Proc, NoClient: true})
	if all.seen != living-1 || all.living() != living-2 {
		t.Errorf("one has ended and one is no client: %d seen, %d live", all.seen, all.living())
	}
	first := event(1)
	first.End, first.Ending = time.Now(), usage.Ended
	all.tell(first)
	all.tell(event(living - 2))
	if all.seen != living-1 || all.living() != living-3 || all.find(func(c *client) bool { return c.Proc == event(living-2).Proc }) == nil {
		t.Errorf("a client takes the room of one that has ended: %d seen, %d live", all.seen, all.living())
	}
}

// A client that has just ended began the fault, not the neighbour that the server names (recorded on an H200).
func TestWhoBeganAFault(t *testing.T) {
	const killed = `[2026-11-21 05:26:27.674 Server   829] Client process 905 disconnected
[2026-11-21 05:26:27.805 Server   829] Client {PID: 906, Context: 1} encountered a fatal GPU error.
[2026-11-21 05:26:27.805 Server   829] Server is handling a fatal GPU error.
`
	const alone = `[2026-11-21 05:26:29.822 Server   829] Client {PID: 957, Context: 1} encountered a fatal GPU error.
[2026-11-21 05:26:29.822 Server   829] Server is handling a fatal GPU error.
[2026-11-21 05:26:40.822 Server   829] Server is handling a fatal GPU error.
[2026-11-21 05:26:41.822 Server   829] Server is hand`
	dir := filepath.Join(t.TempDir(), "log")
	path := filepath.Join(dir, serverlog.Name)
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(path, []byte(killed+alone), 0o600)); err != nil {
		t.Fatal(err)
	}
	l := &log{dir: dir, uid: uint32(os.Getuid())}
	var pids []int
	for _, f := range l.read() {
		pids = append(pids, f.pid)
	}
	if len(pids) != 3 || pids[0] != 905 || pids[1] != 957 || pids[2] != 0 {
		t.Errorf("the faults were begun by %v, want 905, 957 and 0 (not known)", pids)
	}
	if again := l.read(); len(again) != 0 {
		t.Errorf("the same faults are read twice: %v", again)
	}
}

type broken struct{}

func (broken) Read() (gpu.Activity, error) { return gpu.Activity{}, gpu.ErrHung }

// If a GPU does not answer, its report has a gap. The recorder ends when the events end.
func TestAGPUThatDoesNotAnswer(t *testing.T) {
	folder, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	r := New(Options{
		Lease:  lease.Lease{Job: lease.Job{ID: 7, GID: uint32(os.Getgid())}, CreatedAt: time.Now()},
		Ticket: lease.Ticket{Devices: []lease.TicketDevice{{}}}, Folder: folder, Interval: time.Second, Samplers: []Sampler{broken{}}, Read: nothing,
	})
	events := make(chan usage.Event, 1)
	self, err := site.CurrentProcess()
	if err != nil {
		t.Fatal(err)
	}
	events <- usage.Event{Proc: self, GPUs: 1, Begin: time.Now()}
	r.sample(time.Now())
	close(events)
	r.Run(events, nil)
	if os.Getuid() != 0 {
		t.Skip("reports must be owned by root: run as root")
	}
	got, err := usage.Read(filepath.Join(folder.Name(), usage.Running))
	if err != nil || len(got.GPUs[0].Samples) != 0 || got.ClientsSeen != 1 || len(got.Clients) != 1 || got.Clients[0].SMs != -1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// An event about pauses has the totals, and is about no client.
func TestPausesAreRecorded(t *testing.T) {
	r := New(Options{Read: nothing, Interval: time.Second})
	for n := range 3 {
		r.tell(usage.Event{Pauses: n + 1, PausedMillis: int64(n+1) * 400})
	}
	if r.report.Pauses != 3 || r.report.PausedMillis != 1200 || r.clients.seen != 0 {
		t.Errorf("%+v, %d clients", r.report.Totals, r.clients.seen)
	}
}

// A bad end counts once, also after the client has made room for others. A client that outlived the job does not count.
func TestBadEndsAreCounted(t *testing.T) {
	all := clients{read: nothing}
	now := time.Now()
	end := func(pid int, exit string) {
		e := usage.Event{Proc: site.Process{PID: pid, Start: 1}, GPUs: 3, Begin: now}
		all.tell(e)
		e.End, e.Exit = now, exit
		all.tell(e)
		e.Ending = usage.Ended
		all.tell(e)
	}
	for pid, exit := range map[int]string{1: "signal 9", 2: "status 1", 3: usage.InOrder, 4: ""} {
		end(pid, exit)
	}
	if n := all.badEnds(); n != 2 {
		t.Errorf("%d bad ends, want 2", n)
	}
	for pid := 5; pid < 5+usage.MaxClients; pid++ {
		end(pid, usage.InOrder)
	}
	if n := all.badEnds(); n != 2 || len(all.all) != usage.MaxClients || all.find(func(c *client) bool { return c.bad() }) != nil {
		t.Errorf("after %d other clients: %d bad ends, want 2", usage.MaxClients, n)
	}
	late := usage.Event{Proc: site.Process{PID: 1000, Start: 1}, GPUs: 1, Begin: now}
	all.tell(late)
	all.stay()
	late.End, late.Exit = now, "signal 9"
	all.tell(late)
	if n := all.badEnds(); n != 2 {
		t.Errorf("with a client that outlived the job: %d bad ends, want 2", n)
	}
	if n := strings.Count(fmt.Sprint(all.rows([]lease.TicketDevice{{}, {}}, 0)), "signal 9"); n != 1 {
		t.Errorf("%d rows have the exit of the last client, want 1", n)
	}
}

// A client whose GPU no one knows is in the report, without a GPU or with the job's only one.
func TestAClientWithoutAKnownGPU(t *testing.T) {
	all := clients{read: nothing}
	e := usage.Event{Proc: site.Process{PID: 7, Start: 1}, Begin: time.Now(), End: time.Now(), Exit: "signal 9"}
	all.tell(e)
	for gpus, want := range map[int]int{1: 0, 2: -1} {
		rows := all.rows(make([]lease.TicketDevice, gpus), 0)
		if len(rows) != 1 || rows[0].GPU != want || rows[0].Exit != "signal 9" {
			t.Errorf("of %d GPUs: %+v, want GPU %d", gpus, rows, want)
		}
	}
}
