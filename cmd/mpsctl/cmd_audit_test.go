// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/state"
)

// looked is a node with a job of two clients, and with the parts that the audit could not see.
func looked(unseen ...string) state.Node {
	client := func(pid int) state.Client { return state.Client{PID: pid, Command: "lmp"} }
	return state.Node{
		Name: "gpu01", Time: time.Date(2026, 3, 12, 14, 3, 12, 0, time.UTC), Root: true, Incomplete: append([]string{}, unseen...),
		Jobs: []state.Job{{
			ID: 4711, Devices: []state.Held{{UUID: "GPU-1", Clients: []state.Client{client(4301), client(4302)}},
				{UUID: "GPU-2", Clients: []state.Client{client(4301)}}},
			Daemons: []state.Daemon{{PID: 4242, State: state.Serves}},
		}},
		GPUs: []state.GPU{
			{UUID: "GPU-1", Processes: []state.Process{{PID: 4250, Kind: "server"},
				{PID: 4301, Kind: state.KindClient}, {PID: 4302, Kind: state.KindClient}}},
			{UUID: "GPU-2", Processes: []state.Process{{PID: 4250, Kind: "server"},
				{PID: 4301, Kind: state.KindClient}, {PID: 5000, Kind: state.KindCompute}}},
		},
	}
}

var planted = []state.Finding{
	{Kind: "process-without-mps", Job: 4711, GPU: "GPU-2", PID: 5000, Where: "pid 5000, job 4711, GPU 1 (GPU-2)",
		What: "python computes on the GPU beside MPS, in turns with all of the job's ranks", Fix: "see whose it is: ps -fp 5000; a rank of the job is there"},
	{Kind: "daemon-not-of-a-lease", PID: 6000, Where: "pid 6000, uid 2002, /tmp/nvidia-mps",
		What: "an MPS control daemon that no lease names: GPUs that it uses are shared past the policy", Fix: "see whose it is: ps -fp 6000; to end it when its clients have ended: echo quit"},
}

func TestAuditGoldens(t *testing.T) {
	for name, r := range map[string]auditReport{
		"clean":  newReport(looked(), []state.Finding{}),
		"found":  newReport(looked(), planted),
		"blind":  newReport(looked("the GPUs: the driver does not answer within 15s"), []state.Finding{}),
		"halved": newReport(looked("the pipe folders of 2 MPS daemons of other users"), planted[:1]),
	} {
		t.Run(name, func(t *testing.T) {
			for ending, asJSON := range map[string]bool{".txt": false, ".json": true} {
				var out bytes.Buffer
				err := printAudit(&command.Invocation{Process: cli.Process{Out: &out}, JSON: asJSON}, r)
				must.Equal(t, fmt.Sprintf("%v, and found is", err), errors.Is(err, cli.ErrFindings), name != "clean")
				golden.CompareIn(t, goldens, "audit/"+name+ending, out.String())
				for line := range strings.Lines(out.String()) {
					if n := utf8.RuneCountInString(line); !asJSON && n > 81 && !isFix(line) {
						t.Errorf("%d columns: %s", n-1, line)
					}
				}
			}
		})
	}
}

// An audit that could not see something is not complete, even without findings.
func TestWhatIsMissed(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*state.Node)
		want  string
	}{
		"nothing": {func(*state.Node) {}, ""},
		"a daemon that hangs": {func(n *state.Node) { n.Jobs[0].Daemons[0].State = state.NoAnswer },
			"the clients of job 4711: its daemon (pid 4242) is wedged: see mpsctl status"},
		"a daemon that has no users": {func(n *state.Node) { n.Jobs[0].Daemons[0].State = state.Gone }, ""},
		"a client's limits": {func(n *state.Node) { n.Jobs[0].Devices[0].Clients[1].Unknown = "not yours to read" },
			"the limits of client 4302 of job 4711: not yours to read"},
	} {
		n := looked()
		c.spoil(&n)
		r := newReport(n, nil)
		if got := strings.Join(r.Unseen, "; "); got != c.want || r.Complete != (c.want == "") {
			t.Errorf("%s: missed %q, complete %v, want %q", name, got, r.Complete, c.want)
		}
	}
}

// The JSON of an audit has exactly these fields.
func TestAuditJSON(t *testing.T) {
	var out bytes.Buffer
	_ = printAudit(&command.Invocation{Process: cli.Process{Out: &out}, JSON: true}, newReport(looked(), planted))
	var got map[string]any
	must.OK(t, json.Unmarshal(out.Bytes(), &got))
	want := map[string]any{
		"node": "gpu01", "time": "2026-03-12T14:03:12Z", "complete": true, "errors": []any{},
		"counts": map[string]any{"gpus": 2., "jobs": 1., "daemons": 1., "clients": 2., "processes": 4.},
		"findings": []any{
			map[string]any{"kind": "process-without-mps", "job": 4711., "gpu": "GPU-2", "pid": 5000.,
				"where": planted[0].Where, "what": planted[0].What, "fix": planted[0].Fix},
			map[string]any{"kind": "daemon-not-of-a-lease", "pid": 6000., "where": planted[1].Where, "what": planted[1].What, "fix": planted[1].Fix},
		},
	}
	must.Hold(t, reflect.DeepEqual(got, want), "got  %v\nwant %v", got, want)
}
