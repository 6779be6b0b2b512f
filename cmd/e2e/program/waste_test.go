// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/night"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// kindOfJob is what a played job does with its first GPU.
type kindOfJob struct {
	name     string
	gpus     int
	nodes    int
	runs     int           // 2: it is requeued
	sm, band string        // while its process runs
	mib      string        // of its process
	works    time.Duration // its process lives as long
	idles    time.Duration // and the job as long after that
	killed   bool
	shards   bool
	env      []string
	verdict  string // pay, no_gain or not_known
}

// playedFor is the time of a process. Its beginning and its end are known to a second: of eight samples, the first may
// show no load. A kind that fills the GPU shows more than 85 % nevertheless.
const playedFor = 8 * time.Second

var kindsOfJobs = []kindOfJob{
	{name: "unused", gpus: 2, sm: "20", band: "5", mib: "4000", works: playedFor, verdict: "pay"},
	{name: "held", gpus: 2, sm: "0", band: "0", mib: "1000", works: time.Second, idles: playedFor, verdict: "not_known"},
	{name: "half", gpus: 1, sm: "100", band: "40", mib: "4000", works: playedFor, idles: playedFor, verdict: "no_gain"},
	{name: "small", gpus: 1, sm: "25", band: "11", mib: "9000", works: playedFor, verdict: "pay"},
	{name: "full", gpus: 1, sm: "98", band: "30", mib: "9000", works: playedFor, verdict: "no_gain"},
	{name: "memory", gpus: 1, sm: "30", band: "12", mib: "120000", works: playedFor, verdict: "no_gain"},
	{name: "launch", gpus: 1, sm: "6", band: "1", mib: "900", works: playedFor, verdict: "pay"},
	{name: "shard", gpus: 1, sm: "40", band: "12", mib: "2000", works: playedFor, shards: true, verdict: "not_known"},
	{name: "nodes", gpus: 1, nodes: 2, sm: "30", band: "8", mib: "3000", works: playedFor, verdict: "pay"},
	{name: "array", gpus: 1, sm: "22", band: "8", mib: "3000", works: playedFor, verdict: "pay",
		env: []string{"SLURM_ARRAY_JOB_ID=4700", "SLURM_ARRAY_TASK_ID=3"}},
	{name: "requeued", gpus: 1, runs: 2, sm: "100", band: "20", mib: "3000", works: playedFor, verdict: "no_gain"},
	{name: "killed", gpus: 1, sm: "24", band: "14", mib: "3000", works: playedFor, killed: true, verdict: "pay"},
}

// span is a moment between two times.
type span struct{ from, to time.Time }

// runOfJob is one run of a job on one node, with the log that the player keeps: when the job and its process began and
// ended.
type runOfJob struct {
	kindOfJob
	id                           uint32
	run                          int
	begin, start, finished, ends span
	report                       usage.Report
}

// A month of a site: jobs of twelve kinds run on simulated nodes and are really recorded, with a sample a second. Then
// each report gets 300 times its time, so that a job lasts a quarter of an hour, and a place in the month. What mpsctl
// waste adds up agrees with the logs of those who played the jobs. A process begins or ends between two samples, so
// each beginning and end may be wrong by the sample in which it is.
func TestAPlayedMonth(t *testing.T) {
	nodes, shared := night.Of(12, 2), night.Of(2, 1)
	lanes, runs := make([][]*runOfJob, 2*nodes+shared), []*runOfJob{}
	for n := range night.Of(500, 12) {
		kind, home := kindsOfJobs[n%len(kindsOfJobs)], n/2%nodes
		if kind.shards {
			home = nodes + n/len(kindsOfJobs)%shared
		}
		for run := range max(kind.nodes, kind.runs, 1) {
			r := &runOfJob{kindOfJob: kind, id: uint32(1000 + n), run: run}
			lane := 2*nodes + home - nodes
			if !kind.shards {
				lane = 2*((home+run)%nodes) + n%2
			}
			lanes[lane], runs = append(lanes[lane], r), append(runs, r)
		}
	}
	t.Parallel()
	var players sync.WaitGroup // subtests would be too few at once
	for n := range nodes + shared {
		policy := testnode.Default(`drain_grace = "0s"`, `share_gpu = "turns"`)
		p := testNode{e2e.NodeIn(t, e2e.PublicDir(t), policy, node.H200, node.H200, node.H200, node.H200)}
		p.Facts(`usage_interval = "1s"`)
		if n < nodes {
			players.Go(func() { playLane(p, 0, lanes[2*n]) })
			players.Go(func() { playLane(p, 2, lanes[2*n+1]) })
			continue
		}
		p.Write(p.Gres(), "Name=gpu File=/dev/nvidia[0-3]\nName=shard Count=16\n")
		p.Write(p.Conf, strings.Replace(e2e.Read(t, p.Conf), "Gres=gpu:4", "Gres=gpu:4,shard:16", 1))
		players.Go(func() { playLane(p, 0, lanes[nodes+n]) })
	}
	players.Wait()
	if t.Failed() {
		return
	}
	checkMonth(t, runs)
}

// playing holds the runs that are played at a time, because a core serves seven: more would wait for their samples.
var playing = make(chan struct{}, 7*runtime.NumCPU())

// playLane plays the runs one after the other on two GPUs of a node.
func playLane(p testNode, first int, runs []*runOfJob) {
	for _, r := range runs {
		gpus := fmt.Sprint(first)
		if r.gpus == 2 {
			gpus = fmt.Sprintf("%d,%d", first, first+1)
		}
		p.play(r, first, p.Job(r.id, gpus))
	}
}

// load sets what the driver measures on a GPU.
func (p testNode) load(gpu int, sm, band string) {
	p.T.Helper()
	for name, percent := range map[string]string{"gpm/1": sm, "gpm/2": sm, "gpm/10": band} {
		if err := p.Sim.Node.GPU(gpu).Set(name, percent); err != nil {
			p.T.Fatal(err)
		}
	}
}

func (p testNode) play(r *runOfJob, gpu int, job testnode.Job) {
	p.T.Helper()
	playing <- struct{}{}
	defer func() { <-playing }()
	p.load(gpu, "0", "0")
	p.load(gpu+1, "0", "0")
	moment := func(what func()) span {
		began := time.Now()
		what()
		return span{began, time.Now()}
	}
	r.begin = moment(func() { p.Must(0, job, "prolog") })
	env := append([]string{"SLURM_JOB_NAME=" + r.name, fmt.Sprintf("SLURM_JOB_ID=%d", r.id)}, r.env...)
	if r.shards {
		env = append(env, "SLURM_SHARDS_ON_NODE=1")
	}
	var ready time.Time
	r.start = moment(func() {
		p.load(gpu, r.sm, r.band) // as long as the process lives, and no shorter
		client := p.ClientWith(r.id, env, "spin", "-ms", "1", "-for", "900", "-exit-idle", "-mib", r.mib)
		ready = time.Now()
		path := filepath.Join(p.Paths().Run(), "jobs", fmt.Sprint(r.id), usage.Running)
		p.report(path, "sample with the process", func(now usage.Report) bool {
			return slices.ContainsFunc(now.GPUs[0].Samples, func(s usage.Sample) bool { return s.Clients > 0 })
		})
		time.Sleep(time.Until(ready.Add(r.works)))
		r.finished = moment(func() {
			signal := syscall.SIGTERM
			if r.killed {
				signal = syscall.SIGKILL
			}
			_ = client.Process.Signal(signal)
			_ = client.Wait()
			p.load(gpu, "0", "0")
		})
	})
	r.start.to = ready
	time.Sleep(r.idles)
	r.ends = moment(func() { p.Must(0, job, "epilog") })
	report, err := usage.Read(filepath.Join(p.Paths().Reports(), fmt.Sprintf("%d.json", r.id)))
	if err != nil {
		p.T.Fatal(err)
	}
	r.report = report
}

const stretch = 300

// keptAt writes the report of a run as a node of the month keeps it: with 300 times its time.
func (r *runOfJob) keptAt(t *testing.T, top string, month time.Time, n int) {
	t.Helper()
	at := month.Add(time.Duration(n) * time.Hour)
	if r.runs == 2 {
		at = at.AddDate(0, 0, r.run)
	}
	moved := func(when time.Time) time.Time { return at.Add(when.Sub(r.report.Begin) * stretch) }
	kept := r.report
	kept.Node, kept.Begin, kept.End = fmt.Sprintf("node%02d", (n+r.run)%14), at, moved(kept.End)
	kept.Clients, kept.GPUs = nil, nil
	for _, g := range r.report.GPUs {
		g.Samples = append([]usage.Sample{}, g.Samples...)
		for i := range g.Samples {
			g.Samples[i].At = moved(g.Samples[i].At)
		}
		kept.GPUs = append(kept.GPUs, g)
	}
	content, err := json.Marshal(kept)
	folder := filepath.Join(top, kept.Node)
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, fmt.Sprintf("%d.json", r.id)), content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// counted is a sum with what it may be wrong by.
type counted struct{ sum, error float64 }

func (c *counted) add(value, wrong float64) { c.sum += value; c.error += wrong }

func hoursOf(d time.Duration) float64 { return d.Hours() * stretch }

// edge is how wrong the samples may be about something that happened in a span: they have it somewhere in the samples
// that the span touches.
func (r *runOfJob) edge(s span) (wrong time.Duration) {
	last := r.report.Begin
	for _, sample := range r.report.GPUs[0].Samples {
		if last.Before(s.to) && sample.At.After(s.from) {
			wrong += sample.At.Sub(last)
		}
		last = sample.At
	}
	return wrong + s.to.Sub(s.from)
}

// count adds what the log of a run says.
func (r *runOfJob) count(sums map[string]*counted) {
	held, part := r.ends.from.Sub(r.begin.from), 1.0
	vague := hoursOf(r.begin.to.Sub(r.begin.from) + r.ends.to.Sub(r.ends.from))
	if r.shards {
		part = 1.0 / 4
	}
	works, wrong := hoursOf(r.finished.from.Sub(r.start.from)), hoursOf(r.edge(r.start)+r.edge(r.finished))
	sums["gpu_hours"].add(part*float64(r.gpus)*hoursOf(held), part*float64(r.gpus)*vague)
	sums["no_process_hours"].add(part*(hoursOf(held)-works), part*(vague+wrong))
	sums["never_used_hours"].add(float64(r.gpus-1)*hoursOf(held), float64(r.gpus-1)*vague)
	if !r.shards {
		var sm float64
		fmt.Sscan(r.sm, &sm)
		sums["sm_active"].add(sm*works, sm*(wrong+vague))
		sums["sm_active_of"].add(float64(r.gpus)*hoursOf(held), float64(r.gpus)*vague)
	}
}

func checkMonth(t *testing.T, runs []*runOfJob) {
	month, top := time.Date(2026, 3, 1, 0, 0, 0, 0, time.Local), t.TempDir()
	sums, jobs := map[string]*counted{}, map[string]int{}
	for _, key := range []string{"gpu_hours", "no_process_hours", "never_used_hours", "sm_active", "sm_active_of"} {
		sums[key] = &counted{}
	}
	earlier := 0
	for _, r := range runs {
		r.keptAt(t, top, month, int(r.id-1000))
		if r.runs == 2 && r.run == 0 {
			earlier++
			continue
		}
		r.count(sums)
		if r.run == 0 || r.runs == 2 {
			jobs["jobs"]++
			jobs[r.verdict]++
		}
	}
	folders, err := filepath.Glob(filepath.Join(top, "*"))
	built, err2 := e2e.Built()
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	args := []string{"waste", "--json", "--by", "name", "--since", "2026-03-01", "--until", "2026-05-01"}
	var a struct {
		All     struct{ Sums map[string]float64 }
		Rows    []struct{ Name string }
		LeftOut map[string]int `json:"left_out"`
	}
	out, err := exec.Command(filepath.Join(built, "bin", "mpsctl"), append(args, folders...)...).Output()
	if err = errors.Join(err, json.Unmarshal(out, &a)); err != nil {
		t.Fatalf("%v: %.500s", err, out)
	}
	got := a.All.Sums
	got["sm_active"] *= got["sm_active_of"]
	for key, want := range sums {
		t.Logf("%s: waste has %.2f, the logs %.2f ± %.2f", key, got[key], want.sum, want.error)
		if wrong := got[key] - want.sum; wrong > want.error+0.01 || -wrong > want.error+0.01 {
			t.Errorf("%s is %.3f, and by the logs %.3f ± %.3f", key, got[key], want.sum, want.error)
		}
	}
	for key, want := range jobs {
		if int(got[key]) != want {
			t.Errorf("%s is %v, want %d", key, got[key], want)
		}
	}
	n := a.LeftOut["Reports of earlier runs of requeued jobs"]
	if n != earlier || len(a.LeftOut) != 1 || len(a.Rows) != len(kindsOfJobs) {
		t.Errorf("%v, want %d earlier runs; %d rows", a.LeftOut, earlier, len(a.Rows))
	}
}
