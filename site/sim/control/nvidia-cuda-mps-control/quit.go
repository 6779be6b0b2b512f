// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"strings"
	"time"
)

// firstWait is the first pause between two tries to shut a busy server down; each further one is twice as long.
const firstWait = 200 * time.Millisecond

// quitting is a quit under way.
type quitting struct {
	on       bool
	asked    arrival
	wait     time.Duration
	next     time.Time
	deadline time.Time // zero where quit has no -t
	tries    int
}

// again is when the next try is due; never while no quit is under way.
func (q quitting) again() <-chan time.Time {
	if !q.on {
		return nil
	}
	return time.After(time.Until(q.next))
}

// quit begins the end. The answer comes when the last server is gone, so a control program waits as long.
func (d *daemon) quit(words []string, a arrival) answer {
	if d.knobs.On("ignore_quit") {
		return answer{}
	}
	d.quitting = quitting{on: true, asked: a, wait: firstWait}
	if len(words) == 2 && words[0] == "-t" {
		seconds, err := strconv.Atoi(words[1])
		if err == nil && seconds >= 0 {
			d.say("quit command issued with timeout of %d", seconds)
			d.quitting.deadline = time.Now().Add(time.Duration(seconds) * time.Second)
		}
	}
	d.tryQuit()
	return answer{later: true}
}

// tryQuit ends the server if it is idle, or once the deadline has passed, and the daemon after it.
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
	d.say("Try shutting down server %d, backoff is %s", d.server.pid, backoff)
	workers, idle := d.server.shutdown()
	switch {
	case idle:
		d.reap(d.server)
		d.leave()
	case late:
		d.say("Server %d has %d active worker threads. Server will not shutdown.", d.server.pid, workers)
		d.say("Force shutting down server %d", d.server.pid)
		d.server.request("force")
		d.reap(d.server)
		d.leave()
	default:
		d.say("Server %d has %d active worker threads. Server will not shutdown.", d.server.pid, workers)
		d.say("Control will try shutting down server %d again in at most %dms", d.server.pid, q.wait.Milliseconds())
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

// leave ends the daemon. Its sockets and its lock file stay; the fifo and the pid file go before the answer does, and
// no one is listened to by then.
func (d *daemon) leave() {
	d.over = true
	if text, ok := d.knobs.Text("quit_status"); ok {
		d.status, _ = strconv.Atoi(strings.TrimSpace(text))
	}
	d.listener.Close()
	d.tidy()
	d.say("Exit with status %d", d.status)
	d.reply(d.quitting.asked.conn, nil, d.status)
}
