// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/ctl"
	"github.com/slurm-mps/slurm-mps/cmd/internal/sight"
)

var update = flag.Bool("update", false, "write the goldens anew")

// looked is a node with a job of two clients, and what it lacks.
func looked(unseen ...string) sight.Node {
	client := func(pid int) sight.Client { return sight.Client{PID: pid, Command: "lmp"} }
	return sight.Node{
		Name: "gpu01", Time: time.Date(2026, 3, 12, 14, 3, 12, 0, time.UTC), Root: true, Unseen: append([]string{}, unseen...),
		Jobs: []sight.Job{{
			ID: 4711, Devices: []sight.Held{{UUID: "GPU-1", Clients: []sight.Client{client(4301), client(4302)}}, {UUID: "GPU-2", Clients: []sight.Client{client(4301)}}},
			Daemons: []sight.Daemon{{PID: 4242, State: sight.Serves}},
		}},
		GPUs: []sight.GPU{
			{UUID: "GPU-1", Processes: []sight.Process{{PID: 4250, Kind: sight.KindServer}, {PID: 4301, Kind: sight.KindClient}, {PID: 4302, Kind: sight.KindClient}}},
			{UUID: "GPU-2", Processes: []sight.Process{{PID: 4250, Kind: sight.KindServer}, {PID: 4301, Kind: sight.KindClient}, {PID: 5000, Kind: sight.KindCompute}}},
		},
	}
}

var planted = []sight.Finding{
	{Kind: sight.ProcessWithoutMPS, Job: 4711, GPU: "GPU-2", PID: 5000, Where: "pid 5000, job 4711, GPU 1 (GPU-2)",
		What: "python computes on the GPU beside MPS, in turns with all of the job's ranks", Do: "see whose it is: ps -fp 5000; a rank of the job is there"},
	{Kind: sight.DaemonOfNobody, PID: 6000, Where: "pid 6000, uid 2002, /tmp/nvidia-mps",
		What: "an MPS control daemon that no lease names: GPUs that it uses are shared past the policy", Do: "see whose it is: ps -fp 6000; to end it when its clients have ended: echo quit"},
}

func TestGoldens(t *testing.T) {
	for name, r := range map[string]report{
		"clean":  newReport(looked(), []sight.Finding{}),
		"found":  newReport(looked(), planted),
		"blind":  newReport(looked("the GPUs: the driver does not answer within 15s"), []sight.Finding{}),
		"halved": newReport(looked("the pipe folders of 2 MPS daemons of other users"), planted[:1]),
	} {
		t.Run(name, func(t *testing.T) {
			for ending, asJSON := range map[string]bool{".txt": false, ".json": true} {
				var out bytes.Buffer
				err := tell(&ctl.Call{Process: cli.Process{Out: &out}, JSON: asJSON}, r)
				if want := name != "clean"; errors.Is(err, cli.ErrFound) != want {
					t.Errorf("%v, and found is %v", err, want)
				}
				golden(t, filepath.Join("testdata", name+ending), out.String())
				for line := range strings.Lines(out.String()) {
					if n := utf8.RuneCountInString(line); !asJSON && n > 81 && !strings.HasPrefix(line, "    do: ") {
						t.Errorf("%d columns: %s", n-1, line)
					}
				}
			}
		})
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// An audit that could not see something is not one that found nothing.
func TestWhatIsMissed(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*sight.Node)
		want  string
	}{
		"nothing":                    {func(*sight.Node) {}, ""},
		"a daemon that hangs":        {func(n *sight.Node) { n.Jobs[0].Daemons[0].State = sight.Wedged }, "the clients of job 4711: its daemon (pid 4242) is wedged: see mpsctl status"},
		"a daemon that has no users": {func(n *sight.Node) { n.Jobs[0].Daemons[0].State = sight.Gone }, ""},
		"a client's limits":          {func(n *sight.Node) { n.Jobs[0].Devices[0].Clients[1].Unknown = "not yours to read" }, "the limits of client 4302 of job 4711: not yours to read"},
	} {
		n := looked()
		c.spoil(&n)
		r := newReport(n, nil)
		if got := strings.Join(r.Unseen, "; "); got != c.want || r.Complete != (c.want == "") {
			t.Errorf("%s: missed %q, complete %v, want %q", name, got, r.Complete, c.want)
		}
	}
}

// The fields of the JSON are these and no others.
func TestJSONIsTheContract(t *testing.T) {
	var out bytes.Buffer
	_ = tell(&ctl.Call{Process: cli.Process{Out: &out}, JSON: true}, newReport(looked(), planted))
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"node": "gpu01", "time": "2026-03-12T14:03:12Z", "complete": true, "unseen": []any{},
		"seen": map[string]any{"gpus": 2., "jobs": 1., "daemons": 1., "clients": 2., "processes": 4.},
		"findings": []any{
			map[string]any{"kind": "process-without-mps", "job": 4711., "gpu": "GPU-2", "pid": 5000., "where": planted[0].Where, "what": planted[0].What, "do": planted[0].Do},
			map[string]any{"kind": "daemon-not-of-a-lease", "pid": 6000., "where": planted[1].Where, "what": planted[1].What, "do": planted[1].Do},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
