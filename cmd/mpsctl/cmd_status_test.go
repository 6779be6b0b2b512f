// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

const (
	gpu0 = site.UUID("GPU-aaaaaaaa-0000-0000-0000-000000000001")
	gpu1 = site.UUID("GPU-bbbbbbbb-0000-0000-0000-000000000002")
	mig0 = site.UUID("MIG-cccccccc-0000-0000-0000-000000000003")
)

var now = time.Date(2026, 3, 12, 14, 3, 12, 0, time.UTC)

func before(d time.Duration) *time.Time {
	at := now.Add(-d)
	return &at
}

func clients(first, n, mib int, percent float64, sms int) []state.Client {
	all := []state.Client{}
	for i := range n {
		all = append(all, state.Client{PID: first + i, Command: "lmp", Server: 4250, Rank: (first-4301)/25 + i, Step: "0",
			UsedMiB: 1828, Percent: policy.PercentFrom(percent), SMs: sms, MemoryMiB: &mib})
	}
	return all
}

// busy is a node with a job of eight ranks on two GPUs.
func busy() state.Node {
	job, ceiling := uint32(4711), 100.0
	gpu := func(index int, uuid site.UUID, first int) state.GPU {
		g := state.GPU{Index: index, Minor: index, UUID: uuid, Name: "NVIDIA H200", SMs: 132, Mode: site.ModeExclusiveProcess, Holder: &job, Held: true,
			Processes: []state.Process{{PID: 4250, Kind: "server", Name: "nvidia-cuda-mps"}}}
		for i := range 4 {
			g.Processes = append(g.Processes, state.Process{PID: first + i, Kind: state.KindClient, Name: "lmp"})
		}
		return g
	}
	return state.Node{
		Name: "gpu01", Time: now, Root: true, Incomplete: []string{},
		Jobs: []state.Job{{
			ID: job, User: "hpc1", UID: 2001, Rule: "ensembles", Phase: state.Opened, Since: before(110 * time.Second),
			Share: "overlap:2", Memory: "even", Ceiling: policy.PercentFrom(100),
			Devices: []state.Held{
				{UUID: gpu0, Set: site.ModeExclusiveProcess, Clients: clients(4301, 4, 71577, 50, 66),
					Use: &usage.Sample{SMUtil: 96, SMActive: 31, DRAM: 12, UsedMiB: 14336}},
				{UUID: gpu1, Set: site.ModeExclusiveProcess, Clients: clients(4401, 4, 71577, 33.333334, 44)},
			},
			Daemons: []state.Daemon{{PID: 4242, Devices: []site.UUID{gpu0, gpu1}, PipeDir: "/run/slurm-mps/jobs/4711/0/pipe", State: state.Serves,
				Ceiling: &ceiling, Servers: []mps.Server{{PID: 4250, Status: "ACTIVE", Percent: 100, MemoryLimits: []string{"", ""}}}}},
			Guard: &state.Guard{PID: 4240, Running: true, GuardState: lease.GuardState{Clients: 8,
				Counts: lease.Counts{Pauses: 2, PausedMillis: 1340}}},
		}},
		GPUs: []state.GPU{gpu(0, gpu0, 4301), gpu(1, gpu1, 4401)},
	}
}

// ill is a node that differs from its leases, as a user sees it who may not see everything.
func ill() (state.Node, []state.Finding) {
	n := busy()
	j := &n.Jobs[0]
	n.GPUs[1].Mode = site.ModeDefault
	j.Since = before(50 * time.Hour)
	j.Devices[0].Clients = []state.Client{
		{PID: 4301, Command: "a-name-that-is-long", SMs: 132},
		{PID: 4302, Command: "python3", Unknown: "not yours to read"},
	}
	j.Daemons[0].State, j.Daemons[0].Reason, j.Daemons[0].Ceiling, j.Daemons[0].Servers = state.NoAnswer, "the daemon does not answer", nil, []mps.Server{}
	n.Jobs = append(n.Jobs,
		state.Job{ID: 4712, User: "hpc2", UID: 2002, Rule: "mps", Phase: state.Refused, Since: before(time.Hour),
			Devices: []state.Held{}, Daemons: []state.Daemon{},
			Refused: "GPU-dddddddd (Tesla P100) has compute capability 6.0: MPS shares a GPU safely from 7.0 (Volta) on"},
		state.Job{ID: 4713, User: "hpc2", UID: 2002, Rule: "mps", Phase: state.Opening, Since: before(time.Second), Acting: 5000,
			Devices: []state.Held{{UUID: mig0,
				Clients: []state.Client{}}}, Daemons: []state.Daemon{{Devices: []site.UUID{mig0}, State: state.NotStarted, Servers: []mps.Server{}}}},
		state.Job{ID: 4714, Phase: state.Orphaned, Devices: []state.Held{}, Daemons: []state.Daemon{}},
	)
	n.GPUs = append(n.GPUs,
		state.GPU{Index: 2, UUID: "GPU-3", Name: "NVIDIA L4", SMs: 58, Mode: site.ModeExclusiveProcess,
			Processes: []state.Process{{PID: 9, Kind: state.KindCompute}}},
		state.GPU{Index: 3, UUID: "GPU-4", Name: "NVIDIA L4", SMs: 58, Mode: site.ModeDefault, Held: true, Processes: []state.Process{}},
		state.GPU{Index: -1, UUID: mig0, Name: "NVIDIA H100 MIG 3g.40gb", SMs: 60, Processes: []state.Process{}},
	)
	n.Incomplete = []string{"the leases of other users: root's to read (jobs 4715, 4716)"}
	return n, []state.Finding{
		{Kind: "mode-differs", Job: 4711, GPU: gpu1, Where: "job 4711, GPU 1 (" + string(gpu1) + ")",
			What: "it is in mode default, and the lease has set exclusive_process",
			Fix:  "find out who set it; to set it again: nvidia-smi -i " + string(gpu1) + " -c EXCLUSIVE_PROCESS"},
		{Kind: state.DaemonNoAnswer, Job: 4711, PID: 4242, Where: "job 4711, /run/slurm-mps/jobs/4711/0/pipe",
			What: "no answer within 2 s: it, its server or a client is stopped, or a client is being ended; new clients wait", Fix: "look for state T: ps -o pid,stat,args --ppid 4242 -p 4242"},
		{Kind: "directory-without-lease", Job: 4714, Where: "job 4714", What: "/run/slurm-mps/jobs/4714 is left of a job that has been closed", Fix: "remove it"},
		{Kind: "exclusive-without-lease", GPU: "GPU-3", Where: "GPU 2 (GPU-3)",
			What: "it is in mode exclusive_process, and no job holds it: one process alone can use it", Fix: "unless someone meant it: nvidia-smi -i GPU-3 -c DEFAULT"},
	}
}

func idle() state.Node {
	return state.Node{Name: "gpu02", Time: now, Root: true, Jobs: []state.Job{}, Incomplete: []string{},
		GPUs: []state.GPU{{Index: 0, UUID: gpu0, Name: "NVIDIA H200", SMs: 132, Mode: site.ModeDefault, Processes: []state.Process{}}}}
}

func TestStatusGoldens(t *testing.T) {
	broken, found := ill()
	for name, c := range map[string]struct {
		n     state.Node
		found []state.Finding
	}{"busy": {busy(), []state.Finding{}}, "ill": {broken, found}, "idle": {idle(), []state.Finding{}}} {
		t.Run(name, func(t *testing.T) {
			for ending, asJSON := range map[string]bool{".txt": false, ".json": true} {
				var out bytes.Buffer
				call := &command.Invocation{Process: cli.Process{Out: &out}, JSON: asJSON}
				if err := printStatus(call, c.n, c.found); err != nil && !errors.Is(err, cli.ErrFindings) {
					t.Fatal(err)
				}
				golden.CompareIn(t, goldens, "status/"+name+ending, out.String())
				if !asJSON {
					fitsColumns(t, out.String())
				}
			}
		})
	}
}

// fitsColumns checks that lines have at most 80 columns, except lines to be pasted and marked lines.
func fitsColumns(t *testing.T, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 && !isFix(line) && !strings.Contains(line, "! ") {
			t.Errorf("%d columns: %s", n, line)
		}
		if strings.Contains(line, "\x1b") {
			t.Errorf("colour on a pipe: %q", line)
		}
	}
}

// The rows of clients and GPUs fit a screen of 60 columns.
func TestStatusWidths(t *testing.T) {
	n, found := ill()
	row := regexp.MustCompile(`(?m)^( +[-\d].* SMs |GPU |MIG-).*$`)
	for _, columns := range []int{60, 80, 200} {
		rows := row.FindAllString(statusText(n, found, command.Screen{Columns: columns}), -1)
		if len(rows) < 10 {
			t.Errorf("%d columns: %d rows", columns, len(rows))
		}
		for _, line := range rows {
			line, _, _ = strings.Cut(line, "  ! ")
			if width := utf8.RuneCountInString(line); width > columns {
				t.Errorf("%d columns: %d: %s", columns, width, line)
			}
		}
	}
}

// A coloured text without its colours is the plain text.
func TestColourChangesNothingElse(t *testing.T) {
	n, found := ill()
	plain := statusText(n, found, command.Screen{Columns: 80})
	coloured := statusText(n, found, command.Screen{Terminal: true, Columns: 80, Colour: true})
	if coloured == plain || regexp.MustCompile(`\x1b\[\d+m`).ReplaceAllString(coloured, "") != plain {
		t.Errorf("coloured:\n%s", coloured)
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", time.Minute: "1m0s", 3*time.Hour + 2*time.Minute + time.Second: "3h2m", 49 * time.Hour: "2d1h",
	} {
		if got := age(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}

// Screens of 60, 80 and 200 columns show every line whole, in the same order, and every figure.
func TestStatusOfNarrowAndWideScreens(t *testing.T) {
	for _, columns := range []int{60, 80, 200} {
		text := statusText(busy(), nil, command.Screen{Columns: columns})
		ranks := 0
		for line := range strings.Lines(text) {
			n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n"))
			if strings.Contains(line, " lmp ") {
				ranks++
				if n > columns || !strings.Contains(line, " SMs  1828 MiB  71577 MiB") || strings.Fields(line)[0] != fmt.Sprint(ranks-1) {
					t.Errorf("%d columns, %d wide: %s", columns, n, line)
				}
			}
			if strings.Contains(line, "in use ") && n > columns {
				t.Errorf("%d columns, %d wide: %s", columns, n, line)
			}
		}
		if ranks != 8 {
			t.Errorf("%d columns: %d ranks", columns, ranks)
		}
		for _, f := range usage.All {
			if !strings.Contains(strings.Join(strings.Fields(text), " "), " "+f.Name+" ") {
				t.Errorf("%d columns: no %s", columns, f.Name)
			}
		}
	}
}

// The exit code is 1 for findings, and for what root could not see. What another user could not see does not count.
func TestVerdict(t *testing.T) {
	blind := idle()
	blind.Incomplete = []string{"the GPUs: the driver does not answer"}
	user := blind
	user.Root = false
	for name, c := range map[string]struct {
		n     state.Node
		found []state.Finding
		want  error
	}{
		"all is well": {idle(), nil, nil}, "a finding": {idle(), []state.Finding{{Kind: "mode-differs"}}, cli.ErrFindings},
		"root is blind": {blind, nil, cli.ErrFindings}, "a user is blind": {user, nil, nil},
	} {
		call := &command.Invocation{Process: cli.Process{Out: &bytes.Buffer{}}}
		if err := printStatus(call, c.n, c.found); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

type fullNode struct{}

func (fullNode) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestAStatusThatCannotBePrinted(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		call := &command.Invocation{Process: cli.Process{Out: fullNode{}}, JSON: asJSON}
		var failed cli.RuntimeError
		err := printStatus(call, idle(), nil)
		if !errors.As(err, &failed) || err.Error() != "cannot print status: no space left" {
			t.Errorf("JSON %v: %v", asJSON, err)
		}
	}
}

func TestFindingsText(t *testing.T) {
	found := []state.Finding{{Kind: "mode-differs", Where: "job 7, GPU 0 (GPU-1)",
		What: strings.Repeat("word ", 20), Fix: "nvidia-smi -i GPU-1 -c DEFAULT"}}
	want := "\n1 finding\n! mode-differs  job 7, GPU 0 (GPU-1)\n" +
		"    word word word word word word word word word word word word word word word\n    word word word word word\n" +
		"    fix: nvidia-smi -i GPU-1 -c DEFAULT\n"
	if got := findingsText(found, command.Screen{Columns: 80}); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := findingsText(nil, command.Screen{Columns: 80}); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}

// A command of a repair stands alone on its line, and its comment on the line before.
func TestFixText(t *testing.T) {
	for do, want := range map[string]string{
		"remove it":             "    fix: remove it\n",
		"nvidia-smi -c DEFAULT": "    fix: nvidia-smi -c DEFAULT\n",
		"end it: mpsctl reap":   "    fix: end it:\n             mpsctl reap\n",
		"see it: ps -fp 1; a rank is there; only then: kill -9 1": "    fix: see it:\n             ps -fp 1\n" +
			"         a rank is there\n         only then:\n             kill -9 1\n",
	} {
		if got := fixText(do); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
}

// isFix reports whether a line is of a repair. Repairs are not wrapped, because a person copies their commands.
func isFix(line string) bool {
	return strings.HasPrefix(line, "    fix: ") || strings.HasPrefix(line, "         ")
}
