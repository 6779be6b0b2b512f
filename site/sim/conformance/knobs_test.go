// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// Other tests rely on the knobs of the simulation. This test checks that the knobs do what control/README.md
// describes.
func TestKnobs(t *testing.T) {
	alone(t)
	onlySimulated(t, "a real daemon has no knobs")
	const hang = 500 * time.Millisecond
	asked := func(d *daemon) outcome { return d.tell("get_server_list", answerDeadline) }
	hangs := func(d *daemon) outcome { return d.tell("get_server_list", hang) }
	started := func(d *daemon) outcome { return d.control(d.uid, nil, "-d").run() }
	late := func(o outcome) bool { return o.late }
	for _, k := range []struct {
		name, value string
		running     bool // the daemon runs before the knob is set
		do          func(*daemon) outcome
		good        func(outcome) bool
	}{
		{"slow_ms", "300", true, asked, func(o outcome) bool { return !o.late && o.took >= 300*time.Millisecond }},
		{"deaf", "", true, hangs, late},
		{"dies_at_start", "", false, started, func(o outcome) bool { return o.code == 1 && o.stdout+o.stderr == "" }},
		{"silent_start", "", false, func(d *daemon) outcome { d.again(); return asked(d) }, func(o outcome) bool { return o.code == 1 }},
		{"holds_fds", "", false, started, func(o outcome) bool { return o.code == 0 && strings.Contains(o.stderr, "holds the streams") }},
		{"quit_status", "1", true, func(d *daemon) outcome { return d.tell("quit", answerDeadline) }, func(o outcome) bool { return o.code == 1 }},
		{"ignore_quit", "", true, func(d *daemon) outcome {
			d.ask("quit")
			syscall.Kill(d.pid(), syscall.SIGTERM)
			return d.tell("get_default_client_priority", answerDeadline)
		}, func(o outcome) bool { return o.stdout == "0\n" }},
		{"server_start_ms", "1000", true, func(d *daemon) outcome {
			begin := time.Now()
			d.server()
			return outcome{took: time.Since(begin)}
		}, func(o outcome) bool { return o.took >= time.Second }},
		{"server_dies_at_start", "", true, func(d *daemon) outcome {
			return outcome{code: d.info().err, stdout: d.ask("get_server_list")}
		}, func(o outcome) bool { return o.code == 805 && o.stdout == "" }},
		{"garbage_answer", "\x01\xff 17 \x00 ACTIVE-ish\n", true, asked, func(o outcome) bool { return o.stdout == "\x01\xff 17 \x00 ACTIVE-ish\n" }},
		{"endless_answer", "", true, hangs, func(o outcome) bool { return o.late && len(o.stdout) >= 1<<16 }},
	} {
		t.Run(k.name, func(t *testing.T) {
			d := directories(t, under(t).uid)
			if k.running {
				d.again()
			}
			fault(t, k.name, k.value)
			if out := k.do(d); !k.good(out) {
				t.Errorf("%+v", out)
			}
		})
	}
	t.Run("wedge_after_terminate", func(t *testing.T) {
		d := start(t)
		d.server()
		client := d.spin(nil, "-ms", "1", "-for", "20")
		fault(t, "wedge_after_terminate", "")
		d.tell("terminate_client "+d.ask("get_server_list")+" "+client.line(0)[len("pid="):strings.Index(client.line(0), " ")], answerDeadline)
		client.fails("terminate_client", 810)
		if out := hangs(d); !out.late {
			t.Errorf("%+v", out)
		}
	})
}
