// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

const (
	// reportWait limits the wait for the recorder's last report at the guard's end, which an epilog awaits. Usually it is
	// written by then: the recorder begins when the epilog withdraws the ticket. recorderWait limits all other waits.
	reportWait   = 200 * time.Millisecond
	recorderWait = 2 * time.Millisecond
)

// maxEvents limits the events that wait for the recorder.
const maxEvents = 1024

// recorder is the process that records the job's use of its GPUs. The guard sends it events of clients and never
// waits for it. An event that the recorder is too slow for is lost.
type recorder struct {
	events  chan usage.Event
	started chan *proc.Child // one element: nil if the start has failed
	wait    time.Duration    // for the last report
}

// ticketCheck is the time between two looks for the job's ticket.
const ticketCheck = 10 * time.Millisecond

// startRecorder starts the recorder when the job has its ticket, because the prolog needs the processors and the
// driver until then. That is in another goroutine, because on a busy node the start takes time.
func (g *Guard) startRecorder() {
	if len(g.Recorder) == 0 {
		return
	}
	r := &recorder{make(chan usage.Event, maxEvents), make(chan *proc.Child, 1), reportWait}
	g.recorder = r
	go func() {
		for !g.Record.Published() {
			wait.Sleep(context.Background(), ticketCheck)
		}
		p, err := proc.StartPiped(g.Recorder...)
		if r.started <- p; err != nil {
			g.warn("cannot record what the job uses", err)
			return
		}
		r.send(p.In)
	}()
}

// send writes the events to the recorder's stdin, each as a line of JSON, until there are no more.
func (r *recorder) send(stdin io.WriteCloser) {
	defer stdin.Close()
	lines := json.NewEncoder(stdin)
	for e := range r.events {
		if lines.Encode(e) != nil {
			return // the recorder has ended
		}
	}
}

// record sends an event to the recorder, with the counts until now.
func (g *Guard) record(e usage.Event) {
	if g.recorder == nil {
		return
	}
	e.Counts = g.state.Counts
	select {
	case g.recorder.events <- e:
	default:
	}
}

// close tells the recorder that no more events come.
func (r *recorder) close() {
	if r != nil {
		close(r.events)
	}
}

// end ends the recorder, which closes its stdout after its last report.
func (r *recorder) end() {
	if r == nil {
		return
	}
	var p *proc.Child
	select {
	case p = <-r.started:
	case <-time.After(recorderWait): // its start hangs; its stdin is at its end
	}
	if p == nil {
		return
	}
	_ = p.Out.SetReadDeadline(time.Now().Add(r.wait))
	_, _ = io.Copy(io.Discard, p.Out)
	p.End()
	select {
	case <-p.Ended:
	case <-time.After(recorderWait):
	}
}

// tellLiving tells the recorder of a client that is new or has opened other GPUs.
func (g *Guard) tellLiving(c *client) {
	if !c.seen || c.told && c.toldGPUs == c.gpus {
		return
	}
	c.told, c.toldGPUs = true, c.gpus
	g.record(usage.Event{Proc: c.proc, GPUs: c.gpus, Begin: c.opened})
}

// tellDead tells the recorder of a client that has ended, and later how it ended. A living process whose closed files
// are held is still a client.
func (g *Guard) tellDead(c *client, ending usage.Ending, unharmed int) {
	if c.told {
		g.record(usage.Event{Proc: c.proc, GPUs: c.gpus, Begin: c.opened, End: c.died, Exit: c.exit.String(),
			Ending: ending, Unharmed: unharmed})
	}
}

// tellReleased tells the recorder how a client has ended. The client's files are closed now.
func (g *Guard) tellReleased(c *client, reason string) {
	if ending := c.ending(reason, g.usage.workedAfter(c)); ending == usage.InFlight {
		g.tellDead(c, ending, max(0, c.neighbours-c.harmed))
	} else {
		g.tellDead(c, ending, 0)
	}
}

// ending returns how a client has ended, from the reason why its files were closed.
func (c *client) ending(reason string, worked bool) usage.Ending {
	if c.neighbours == 0 || reason == workDone && !worked {
		return usage.Ended
	}
	return usage.InFlight
}

// neighboursOf counts the living clients that may use the same GPU as a client.
func (g *Guard) neighboursOf(c *client) (count int) {
	for _, other := range g.living {
		if other != c && !other.inherits() && shareGPU(c, other) {
			count++
		}
	}
	return count
}

// noteHarm counts the end of a client for the neighbours that have ended a short time before.
func (g *Guard) noteHarm(c *client, now time.Time) {
	for _, earlier := range slices.Backward(g.dead) {
		if now.Sub(earlier.died) > usage.HarmTime || c.inherits() {
			return
		}
		if c.opened.Before(earlier.died) && shareGPU(c, earlier) {
			earlier.harmed++
		}
	}
}
