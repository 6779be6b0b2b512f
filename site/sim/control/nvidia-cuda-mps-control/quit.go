// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"strings"
	"time"
)

// firstWait is the first pause between two tries to shut down a busy server. Each further pause is twice as long.
const firstWait = 200 * time.Millisecond

// quitting is the state of a quit that has begun.
type quitting struct {
	on       bool
	asked    arrival
	wait     time.Duration
	next     time.Time
	deadline time.Time // zero if quit has no -t
	tries    int
}

// again returns a channel that fires when the next try is due. It is nil if no quit has begun.
func (q quitting) again() <-chan time.Time {
	if !q.on {
		return nil
	}
	return time.After(time.Until(q.next))
}

// quit begins the end of the daemon. The answer is sent when the last server is gone, so the control program waits
// until then.
func (d *daemon) quit(words []string, a arrival) answer {
	if d.knobs.On("ignore_quit") {
		return answer{}
	}
	d.quitting = quitting{on: true, asked: a, wait: firstWait}
	if len(words) == 2 && words[0] == "-t" {
		seconds, err := strconv.Atoi(words[1])
		if err == nil && seconds >= 0 {
			d.logf("quit command issued with timeout of %d", seconds)
			d.quitting.deadline = time.Now().Add(time.Duration(seconds) * time.Second)
		}
	}
	d.tryQuit()
	return answer{later: true}
}

// tryQuit ends the server if it is idle or if the deadline has passed. Then it ends the daemon.
func (d *daemon) tryQuit() {
	q := &d.quitting
	if d.server == nil {
		d.leave()
		return
	}
	late := !q.deadline.IsZero() && !time.Now().Before(q.deadline)
	backoff := "enabled"
	if q.tries == 0 || late {
		backoff = "disabled"
	}
	q.tries++
	d.logf("Try shutting down server %d, backoff is %s", d.server.pid, backoff)
	workers, idle := d.server.shutdown()
	switch {
	case idle:
		d.reap(d.server)
		d.leave()
	case late:
		d.logf("Server %d has %d active worker threads. Server will not shutdown.", d.server.pid, workers)
		d.logf("Force shutting down server %d", d.server.pid)
		d.server.request("force")
		d.reap(d.server)
		d.leave()
	default:
		d.logf("Server %d has %d active worker threads. Server will not shutdown.", d.server.pid, workers)
		d.logf("Control will try shutting down server %d again in at most %dms", d.server.pid, q.wait.Milliseconds())
		d.postpone()
	}
}

func (d *daemon) postpone() {
	q := &d.quitting
	q.next = time.Now().Add(q.wait)
	q.wait *= 2
	if !q.deadline.IsZero() && q.next.After(q.deadline) {
		q.next = q.deadline
	}
}

// leave ends the daemon. Its sockets and its lock file stay. The fifo and the pid file are removed before the answer
// is sent. The daemon accepts no connection by then.
func (d *daemon) leave() {
	d.over = true
	if text, ok := d.knobs.Text("quit_status"); ok {
		d.status, _ = strconv.Atoi(strings.TrimSpace(text))
	}
	d.listener.Close()
	d.tidy()
	d.logf("Exit with status %d", d.status)
	if d.quitting.asked.text != "" { // not by a signal
		d.reply(d.quitting.asked.conn, nil, d.status)
	}
}
