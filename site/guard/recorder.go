// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/json"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"golang.org/x/sys/unix"
)

// recorderWait limits both waits for the recorder at the guard's end: for its last report, and after its kill. It is
// short, because an epilog waits for the guard's end. The recorder writes its last sample earlier, when the epilog
// withdraws the ticket.
const recorderWait = 2 * time.Millisecond

// recorder is the process that records what the job uses. The guard sends it events of clients and never waits for
// it. An event that does not fit into the pipe is lost.
type recorder struct {
	pipe    int           // its stdin
	started chan *started // one element: nil if the start has failed
}

// started is the process, until it is reaped.
type started struct {
	proc   site.Process
	reaped chan struct{}
}

// startRecorder starts the recorder in a new session. On a busy node the start takes time, so another goroutine does
// it.
func (g *Guard) startRecorder() {
	if g.Recorder == "" {
		return
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		g.logOnce("cannot record what the job uses", err)
		return
	}
	_ = unix.SetNonblock(ends[1], true)
	g.recorder = &recorder{ends[1], make(chan *started, 1)}
	go func(r *recorder) {
		process, err := launch(g.Recorder, g.RecorderArgs, os.NewFile(uintptr(ends[0]), "events"), nil)
		if err != nil {
			g.Log.Warn().Err(err).Msg("cannot record what the job uses")
		}
		r.started <- process
	}(g.recorder)
}

// launch starts a program of root in a new session. It takes over the program's input and output; without an output, the
// program writes to /dev/null.
func launch(path string, argv []string, in, out *os.File) (*started, error) {
	defer in.Close()
	defer out.Close() // of nil, this only returns an error
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	if out == nil {
		out = null
	}
	process, err := os.StartProcess(path, append([]string{path}, argv...), &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{in, out, null}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	stat, _ := site.ReadStat(process.Pid) // the pid is not reused, because the child is not reaped
	s := &started{stat.Process, make(chan struct{})}
	go func() {
		_, _ = process.Wait()
		close(s.reaped)
	}()
	return s, nil
}

// tell sends an event of a client to the recorder.
func (r *recorder) tell(e usage.Event) {
	if r == nil || r.pipe < 0 {
		return
	}
	line, err := json.Marshal(e)
	if err != nil {
		return
	}
	if _, err := unix.Write(r.pipe, append(line, '\n')); errors.Is(err, unix.EPIPE) {
		r.close() // the recorder has ended
	}
}

// close tells the recorder that no more events come.
func (r *recorder) close() {
	if r != nil && r.pipe >= 0 {
		unix.Close(r.pipe)
		r.pipe = -1
	}
}

// end ends the recorder. Usually it has ended already, because its stdin is closed.
func (r *recorder) end() {
	if r == nil {
		return
	}
	var s *started
	select {
	case s = <-r.started:
	case <-time.After(recorderWait): // its start hangs; its stdin is at its end
	}
	if s == nil {
		return
	}
	for range 2 {
		select {
		case <-s.reaped:
			return
		case <-time.After(recorderWait):
			_ = s.proc.Kill(unix.SIGKILL)
		}
	}
}

// tellLiving tells the recorder of a client that is new or has opened other GPUs.
func (g *Guard) tellLiving(c *client) {
	if !c.seen || c.told && c.toldGPUs == c.gpus {
		return
	}
	c.told, c.toldGPUs = true, c.gpus
	g.recorder.tell(usage.Event{Proc: c.proc, GPUs: c.gpus, Begin: c.opened})
}

// tellDead tells the recorder of a client that has ended, and later how it ended. A living process whose closed files
// are held is still a client.
func (g *Guard) tellDead(c *client, ending usage.Ending, unharmed int) {
	if c.told {
		g.recorder.tell(usage.Event{Proc: c.proc, GPUs: c.gpus, Begin: c.opened, End: c.died, Exit: c.exit.String(),
			Ending: ending, Unharmed: unharmed})
	}
}

// harmTime is the time in which the end of a client can end its neighbours. The measured time is 0.13 to 0.19 s (on
// an H200).
const harmTime = 500 * time.Millisecond

// tellReleased tells the recorder how a client has ended. The client's files are closed now.
func (g *Guard) tellReleased(c *client, reason string) {
	unharmed := 0
	for _, other := range c.neighbours {
		if other.died.IsZero() || other.died.Sub(c.died) > harmTime {
			unharmed++
		}
	}
	if ending := c.ending(reason, g.usage.workedAfter(c)); ending == usage.InFlight {
		g.tellDead(c, ending, unharmed)
	} else {
		g.tellDead(c, ending, 0)
	}
	c.neighbours = nil
}

// ending returns how a client has ended, from the reason why its files were closed.
func (c *client) ending(reason string, worked bool) usage.Ending {
	if len(c.neighbours) == 0 || reason == workDone && !worked {
		return usage.Ended
	}
	return usage.InFlight
}

// neighboursOf returns the living clients that may use the same GPU as a client.
func (g *Guard) neighboursOf(c *client) (all []*client) {
	for _, other := range g.living {
		if other != c && !other.inherits() && shareGPU(c, other) {
			all = append(all, other)
		}
	}
	return all
}
