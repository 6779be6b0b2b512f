// SPDX-License-Identifier: Apache-2.0

package pause

import (
	"bufio"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
)

// Pause is a pause from the view of the guard.
type Pause struct {
	Targets chan Target   // who is to stop
	Answers chan error    // one for each; another one if the pausing process cannot go on
	Over    chan struct{} // closed by the guard: what was stopped continues
	nudge   func()        // is told of an answer
}

// New returns a pause of max processes at most, which waits for Run.
func New(max int, nudge func()) *Pause {
	return &Pause{make(chan Target, max), make(chan error, max+1), make(chan struct{}), nudge}
}

// Run runs the process that pauses, from its command line, until the pause is over. None is stopped for longer than
// limit.
func (p *Pause) Run(line []string, limit time.Duration) {
	defer p.nudge()
	pauser, err := proc.StartPiped(append(slices.Clone(line), limit.String())...)
	if err != nil {
		p.Answers <- err
		return
	}
	defer pauser.In.Close()
	defer pauser.Out.Close()
	go func() {
		<-p.Over
		pauser.End() // its end continues what it has stopped
	}()
	p.talk(pauser)
	<-pauser.Ended
}

// talk passes on each neighbour and waits for the answer, until the pause or the pausing process ends.
func (p *Pause) talk(pauser *proc.Child) {
	answers := bufio.NewReader(pauser.Out)
	for {
		select {
		case <-p.Over:
			return
		case <-pauser.Ended:
			p.Answers <- errors.New("the process that pauses them has ended")
			return
		case neighbour := <-p.Targets:
			_, err := fmt.Fprintln(pauser.In, neighbour.PID, neighbour.Start, neighbour.UID)
			_ = pauser.Out.SetReadDeadline(time.Now().Add(ack + slack))
			line, wrong := answers.ReadString('\n')
			if err = errors.Join(err, wrong); err == nil && strings.TrimSpace(line) != done {
				err = errors.New(strings.TrimSpace(line))
			}
			p.Answers <- err
			p.nudge()
			if err != nil {
				return
			}
		}
	}
}
