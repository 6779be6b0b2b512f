// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// When a job ends, the log has its summary: the guard's own counts, and the clients that the epilog found. A job
// without a guard has no counts.
func TestAnEpilogLogsTheSummary(t *testing.T) {
	counts := map[string]any{"clients_seen": 6.0, "clients_peak": 3.0, "held": 4.0, "outside": 2.0, "pauses": 2.0, "paused_ms": 1300.0}
	for _, guarded := range []bool{true, false} {
		n := newNode(t)
		l := n.leased(nil)
		n.clients = []site.Client{{PID: 1 << 30}, {PID: 1<<30 + 1}}
		if guarded {
			if err := n.Store.SaveGuard(7, lease.GuardState{Dead: 1, Released: map[string]int{"idle": 3, lease.NoNeighbour: 9},
				Counts: lease.Counts{ClientsSeen: 6, ClientsPeak: 3, Pauses: 2, PausedMillis: 1300, OutsideSeen: 2}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.close(); err != nil {
			t.Error(err)
		}
		got := n.logged(SummaryStep)
		for key, want := range map[string]any{"user": l.Job.User, "rule": "mps", "gpus": 2.0, "clients_at_epilog": 2.0,
			"terminated": 2.0, "daemon_gone": false, "closed": true} {
			if got[key] != want {
				t.Errorf("%s is %v, want %v", key, got[key], want)
			}
		}
		for key, want := range counts {
			if !guarded {
				want = nil
			}
			if got[key] != want {
				t.Errorf("guard %v: %s is %v, want %v", guarded, key, got[key], want)
			}
		}
		if seconds, ok := got["seconds"].(float64); !ok || seconds < 0 || seconds > 60 {
			t.Errorf("seconds are %v", got["seconds"])
		}
	}
}

// Clients that end in their grace outlived the job, too, and none of them is terminated.
func TestClientsThatEndInTheirGrace(t *testing.T) {
	n := newNode(t)
	n.leased(func(l *lease.Lease) { l.DrainGrace = lease.Duration(5 * time.Second) })
	n.clients = []site.Client{{PID: 1 << 30}}
	n.leave = true
	if err := n.close(); err != nil {
		t.Error(err)
	}
	if got := n.logged(SummaryStep); got["clients_at_epilog"] != 1.0 || got["terminated"] != 0.0 {
		t.Errorf("%v: want 1 client at the epilog and none terminated", got)
	}
}
