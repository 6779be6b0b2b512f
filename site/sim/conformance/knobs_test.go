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
	const hangDeadline = 500 * time.Millisecond
	for name, check := range map[string]func(*testing.T){
		"slow_ms": func(t *testing.T) {
			d := start(t)
			fault(t, "slow_ms", "300")
			if out := d.tell("get_server_list", answerDeadline); out.late || out.took < 300*time.Millisecond {
				t.Errorf("%+v", out)
			}
		},
		"deaf": func(t *testing.T) {
			d := start(t)
			fault(t, "deaf", "")
			if out := d.tell("get_server_list", hangDeadline); !out.late {
				t.Errorf("%+v", out)
			}
		},
		"dies_at_start": func(t *testing.T) {
			d := directories(t, under(t).uid)
			fault(t, "dies_at_start", "")
			if out := d.control(d.uid, nil, "-d").run(); out.code != 1 || out.stdout+out.stderr != "" {
				t.Errorf("%+v", out)
			}
		},
		"silent_start": func(t *testing.T) {
			d := directories(t, under(t).uid)
			fault(t, "silent_start", "")
			d.again()
			if out := d.tell("get_server_list", answerDeadline); out.code != 1 {
				t.Errorf("%+v", out)
			}
		},
		"holds_fds": func(t *testing.T) {
			d := directories(t, under(t).uid)
			fault(t, "holds_fds", "")
			if out := d.control(d.uid, nil, "-d").run(); out.code != 0 || !strings.Contains(out.stderr, "holds the streams") {
				t.Errorf("%+v", out)
			}
		},
		"quit_status": func(t *testing.T) {
			d := start(t)
			fault(t, "quit_status", "1")
			if out := d.tell("quit", answerDeadline); out.code != 1 {
				t.Errorf("%+v", out)
			}
		},
		"ignore_quit": func(t *testing.T) {
			d := start(t)
			fault(t, "ignore_quit", "")
			d.ask("quit")
			pid := d.pid()
			syscall.Kill(pid, syscall.SIGTERM)
			if d.ask("get_default_client_priority") != "0" || !alive(pid) {
				t.Error("the daemon has ended")
			}
		},
		"wedge_after_terminate": func(t *testing.T) {
			d := start(t)
			d.server()
			client := d.spin(nil, "-ms", "1", "-for", "20")
			fault(t, "wedge_after_terminate", "")
			d.tell("terminate_client "+d.ask("get_server_list")+" "+client.line(0)[len("pid="):strings.Index(client.line(0), " ")], answerDeadline)
			client.fails("terminate_client", 810)
			if out := d.tell("get_server_list", hangDeadline); !out.late {
				t.Errorf("%+v", out)
			}
		},
		"server_start_ms": func(t *testing.T) {
			d := start(t)
			fault(t, "server_start_ms", "1000")
			begin := time.Now()
			d.server()
			if took := time.Since(begin); took < time.Second {
				t.Errorf("the server took %v", took)
			}
		},
		"server_dies_at_start": func(t *testing.T) {
			d := start(t)
			fault(t, "server_dies_at_start", "")
			if got := d.info(); got.err != 805 {
				t.Errorf("%+v", got)
			}
			if got := d.ask("get_server_list"); got != "" {
				t.Errorf("servers %q", got)
			}
		},
		"garbage_answer": func(t *testing.T) {
			d := start(t)
			fault(t, "garbage_answer", "\x01\xff 17 \x00 ACTIVE-ish\n")
			if got := d.ask("get_server_list"); got != "\x01\xff 17 \x00 ACTIVE-ish" {
				t.Errorf("%q", got)
			}
		},
		"endless_answer": func(t *testing.T) {
			d := start(t)
			fault(t, "endless_answer", "")
			if out := d.tell("get_server_list", hangDeadline); !out.late || len(out.stdout) < 1<<16 {
				t.Errorf("late=%v, %d bytes", out.late, len(out.stdout))
			}
		},
	} {
		t.Run(name, check)
	}
}
