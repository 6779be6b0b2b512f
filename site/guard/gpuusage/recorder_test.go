// SPDX-License-Identifier: Apache-2.0

package gpuusage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/clientenv"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/serverlog"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

func nothing(int) clientenv.Environment { return clientenv.Environment{Rank: -1, Unknown: "a test"} }

// event is what the guard reports of a client that begins.
func event(pid int) usage.Event {
	return usage.Event{Proc: proc.Process{PID: pid, Start: 1}, GPUs: 1, Begin: time.Now()}
}

// end is what the guard reports of a client that has ended, when its files are closed.
func end(e usage.Event) usage.Event {
	e.End, e.Ending = time.Now(), usage.Ended
	return e
}

// If a job has many clients, the report keeps the latest clients. The last event of a client that it no longer has
// changes nothing.
func TestClientsAreBounded(t *testing.T) {
	all := clients{read: nothing}
	for pid := 1; pid <= 3*usage.MaxClients; pid++ {
		all.tell(event(pid))
		all.tell(end(event(pid)))
	}
	all.tell(end(event(1)))
	rows := all.rows(anyJob, []lease.TicketDevice{{}}, 0)
	if len(rows) != usage.MaxClients || rows[len(rows)-1].PID != 3*usage.MaxClients {
		t.Errorf("%d rows, the last of client %d", len(rows), rows[len(rows)-1].PID)
	}
	all.tell(usage.Event{Proc: event(3 * usage.MaxClients).Proc, NoClient: true})
	if rows := all.rows(anyJob, []lease.TicketDevice{{}}, 0); len(rows) != usage.MaxClients-1 {
		t.Errorf("a process that is not a client is still in the report: %d rows", len(rows))
	}
}

// A client that ended badly and whose environment names none of the job's daemons was outside of MPS. Of an unknown one,
// that is not known, and one that lives or ended well may have its own copy of the variable.
func TestClientsOutside(t *testing.T) {
	for want, environments := range map[bool][]clientenv.Environment{
		false: {{Pipes: "/a"}, {Pipes: "/b"}, {Unknown: "the process has ended"}}, true: {{}, {Pipes: "/c"}},
	} {
		for _, e := range environments {
			all := clients{
				read: func(int) clientenv.Environment { return e }, daemons: []lease.Daemon{{PipeDir: "/a"}, {PipeDir: "/b"}},
			}
			for exit, accused := range map[string]bool{"": false, usage.InOrder: false, "status 1": want} {
				ev := event(1)
				if ev.Exit = exit; exit != "" {
					ev.End = ev.Begin.Add(time.Second)
				}
				all.tell(ev)
				if rows := all.rows(anyJob, []lease.TicketDevice{{}}, 0); len(rows) != 1 || rows[0].Outside != accused {
					t.Errorf("%+v: %+v, want outside %v", e, rows, accused)
				}
			}
		}
	}
}

// If all clients of the report live, there is no room for another one, and its environment is not read. It gets the
// room of the first that ends.
func TestClientsWithoutRoom(t *testing.T) {
	read := 0
	all := clients{read: func(pid int) clientenv.Environment { read++; return nothing(pid) }}
	const late = usage.MaxClients + 1
	for pid := 1; pid <= late; pid++ {
		all.tell(event(pid))
	}
	if living(all) != usage.MaxClients || read != usage.MaxClients {
		t.Errorf("%d live, %d environments are read", living(all), read)
	}
	all.tell(end(event(1)))
	all.tell(event(late))
	if living(all) != usage.MaxClients || all.find(func(c *client) bool { return c.Proc.PID == late }) == nil {
		t.Errorf("a client does not take the room of one that has ended: %d live", living(all))
	}
}

// The driver's list gives the memory of the clients that the guard has reported. It makes no client: on a shared GPU,
// the driver lists those of other jobs, too.
func TestClientsOnAGPU(t *testing.T) {
	all := clients{read: nothing}
	all.tell(event(7))
	all.tell(event(8))
	all.tell(end(event(8)))
	if n := all.onGPU(2, map[int]int{7: 500, 8: 600, 9: 700}); n != 1 || len(all.all) != 2 {
		t.Errorf("%d clients live on the GPU and %d are known, want 1 and 2", n, len(all.all))
	}
	if c := all.all[0]; c.peaks[2] != 500 || c.gpus() != 1<<2 {
		t.Errorf("%+v", c)
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
	must.OK(t, errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(path, []byte(killed+alone), 0o600)))
	l := &log{dir: dir, uid: uint32(os.Getuid())}
	var pids []int
	for _, f := range l.read() {
		pids = append(pids, f.pid)
	}
	must.Hold(t, len(pids) == 3 && pids[0] == 905 && pids[1] == 957 && pids[2] == 0,
		"the faults were begun by %v, want 905, 957 and 0 (not known)", pids)
	if again := l.read(); len(again) != 0 {
		t.Errorf("the same faults are read twice: %v", again)
	}
}

type broken struct{}

func (broken) Read() (gpu.Activity, error) { return gpu.Activity{}, gpu.ErrHung }

// If a GPU does not answer, its report has a gap. The recorder ends when the events end.
func TestAGPUThatDoesNotAnswer(t *testing.T) {
	folder := must.Get(os.Open(t.TempDir()))(t)
	defer folder.Close()
	r := newRecorder(options{
		lease:  lease.Lease{Job: lease.Job{ID: 7, GID: uint32(os.Getgid())}, CreatedAt: time.Now()},
		ticket: lease.Ticket{Devices: []lease.TicketDevice{{}}}, folder: folder, interval: time.Second, samplers: []sampler{broken{}}, read: nothing,
	})
	events := make(chan usage.Event, 1)
	self := must.Get(proc.Current())(t)
	events <- usage.Event{Proc: self, GPUs: 1, Begin: time.Now(), Counts: lease.Counts{ClientsSeen: 1}}
	r.sample(time.Now())
	close(events)
	r.withdrawn = func() bool { return false }
	if r.run(events, nil); !r.report.End.IsZero() {
		t.Error("the guard has ended, and the report says that the job has")
	}
	if os.Getuid() != 0 {
		t.Skip("reports must be owned by root: run as root")
	}
	got, err := usage.Read(filepath.Join(folder.Name(), usage.Running))
	if err != nil || len(got.GPUs[0].Samples) != 0 || got.ClientsSeen != 1 || len(got.Clients) != 1 || got.Clients[0].SMs != -1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// The guard ends before the recorder has noticed that the ticket is withdrawn, as on a busy node. The energy after the
// latest sample is counted, not reckoned by the power until then.
func TestAnEndThatTheWatchHasMissed(t *testing.T) {
	folder := must.Get(os.Open(t.TempDir()))(t)
	defer folder.Close()
	r := newRecorder(options{
		lease:  lease.Lease{Job: lease.Job{ID: 7, GID: uint32(os.Getgid())}, CreatedAt: time.Now().Add(-time.Hour)},
		ticket: lease.Ticket{Devices: []lease.TicketDevice{{}}}, folder: folder, interval: time.Hour,
		samplers: []sampler{counting{new(int)}}, read: nothing,
	})
	r.withdrawn = func() bool { return true }
	r.sample(time.Now().Add(-time.Minute))
	events := make(chan usage.Event)
	close(events)
	r.run(events, nil)
	if r.report.End.IsZero() || len(r.report.GPUs[0].Samples) != 2 || r.report.GPUs[0].EnergyJ != 200 {
		t.Errorf("ended %v, %+v", r.report.End, r.report.GPUs[0])
	}
}

// counting is a GPU that has used 100 J more at each sample.
type counting struct{ joules *int }

func (c counting) Read() (gpu.Activity, error) {
	*c.joules += 100
	return gpu.Activity{EnergyJ: *c.joules}, nil
}

// Each event has the guard's counts. An event without a process is about no client.
func TestCountsAreTheGuards(t *testing.T) {
	r := newRecorder(options{read: nothing, interval: time.Second})
	counts := lease.Counts{ClientsSeen: 9, ClientsPeak: 4, Pauses: 2, PausedMillis: 800}
	e := event(7)
	e.Counts = lease.Counts{ClientsSeen: 9, ClientsPeak: 4}
	r.tell(e)
	r.tell(usage.Event{Counts: counts})
	if r.report.Counts != counts || len(r.clients.all) != 1 {
		t.Errorf("%+v, %d clients", r.report.Totals, len(r.clients.all))
	}
}

// A bad end counts once, also after the client has made room for others. A client that outlived the job does not count.
func TestBadEndsAreCounted(t *testing.T) {
	all := clients{read: nothing}
	now := time.Now()
	end := func(pid int, exit string) {
		e := event(pid)
		e.GPUs = 3
		all.tell(e)
		e.End, e.Exit = now, exit
		all.tell(e)
		e.Ending = usage.Ended
		all.tell(e)
	}
	for pid, exit := range map[int]string{1: "signal 9", 2: "status 1", 3: usage.InOrder, 4: ""} {
		end(pid, exit)
	}
	if _, n := all.count(anyJob); n != 2 {
		t.Errorf("%d bad ends, want 2", n)
	}
	for pid := 5; pid < 5+usage.MaxClients; pid++ {
		end(pid, usage.InOrder)
	}
	stillBad := all.find(func(c *client) bool { return c.bad() })
	if _, n := all.count(anyJob); n != 2 || len(all.all) != usage.MaxClients || stillBad != nil {
		t.Errorf("after %d other clients: %d bad ends, want 2", usage.MaxClients, n)
	}
	late := event(1000)
	all.tell(late)
	all.stay()
	late.End, late.Exit = now, "signal 9"
	all.tell(late)
	if _, n := all.count(anyJob); n != 2 {
		t.Errorf("with a client that outlived the job: %d bad ends, want 2", n)
	}
	if n := strings.Count(fmt.Sprint(all.rows(anyJob, []lease.TicketDevice{{}, {}}, 0)), "signal 9"); n != 1 {
		t.Errorf("%d rows have the exit of the last client, want 1", n)
	}
}

// A client whose GPU no one knows is in the report, without a GPU or with the job's only one.
func TestAClientWithoutAKnownGPU(t *testing.T) {
	all := clients{read: nothing}
	e := usage.Event{Proc: proc.Process{PID: 7, Start: 1}, Begin: time.Now(), End: time.Now(), Exit: "signal 9"}
	all.tell(e)
	for gpus, want := range map[int]int{1: 0, 2: -1} {
		rows := all.rows(anyJob, make([]lease.TicketDevice, gpus), 0)
		must.Hold(t, len(rows) == 1 && rows[0].GPU == want && rows[0].Exit == "signal 9",
			"of %d GPUs: %+v, want GPU %d", gpus, rows, want)
	}
}

func living(all clients) (n int) {
	for _, c := range all.all {
		if c.lives() {
			n++
		}
	}
	return n
}
