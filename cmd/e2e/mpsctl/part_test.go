// SPDX-License-Identifier: Apache-2.0

package mpsctl_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// quarters are four jobs on one GPU, each with a quarter of it.
type quarters struct {
	testNode
	jobs []uint32
}

// quartersOf opens four jobs on a GPU with these values. The first one computes and has 9,000 MiB, the others have a
// context and no kernel.
func quartersOf(t *testing.T, gres, how string, set map[string]string) quarters {
	t.Helper()
	policy := testnode.Default(fmt.Sprintf("share_gpu = %q", how), `drain_grace = "200ms"`)
	q := quarters{newTestNode(t, policy, node.H200, node.H200), []uint32{7, 8, 9, 10}}
	q.Facts(`usage_interval = "1s"`)
	count := map[string]int{"shard": 8, "mps": 200}[gres]
	q.Write(q.Gres(), fmt.Sprintf("Name=gpu File=/dev/nvidia[0-1]\nName=%s Count=%d\n", gres, count))
	q.Write(q.Conf, strings.Replace(e2e.Read(t, q.Conf), "Gres=gpu:2", fmt.Sprintf("Gres=gpu:2,%s:%d", gres, count), 1))
	maps.Copy(set, map[string]string{"gpm/1": "96", "gpm/2": "43", "gpm/10": "12"})
	for name, value := range set {
		must.OK(t, q.Sim.Node.GPU(0).Set(name, value))
	}
	for _, id := range q.jobs {
		job := q.Job(id, "0")
		if gres == "mps" {
			job.Extra = []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}
		}
		q.Open(job)
		work := []string{"spin", "-ms", "0", "-for", "200", "-exit-idle"}
		if id == q.jobs[0] {
			work = []string{"spin", "-ms", "5", "-for", "200", "-exit-idle", "-mib", "9000"}
		}
		q.ClientWith(id, map[string][]string{"shard": {"SLURM_SHARDS_ON_NODE=1"}}[gres], work...)
	}
	return q
}

// figures are those of mpsctl report --json that a part changes.
type figures struct {
	Begin, End time.Time
	GPUHours   float64  `json:"gpu_hours"`
	EnergyJ    int      `json:"energy_j"`
	Seen       int      `json:"clients_seen"`
	Peak       int      `json:"clients_peak"`
	SharedWith []uint32 `json:"shared_with"`
	Advice     string
	Mean       struct {
		SMActive float64 `json:"sm_active"`
		SMUtil   float64 `json:"sm_util"`
		DRAM     float64
		UsedMiB  int `json:"used_mib"`
	}
	GPUs []struct {
		Others  int
		Samples []struct{ At time.Time }
	}
}

func (q quarters) report(job uint32) (f figures) {
	q.T.Helper()
	must.OK(q.T, json.Unmarshal([]byte(q.Ctl("report", fmt.Sprint(job), "--json").Output), &f))
	return f
}

// lasts reports whether the samples of all four reports cover a time, with the client of each.
func (q quarters) last(d time.Duration) bool {
	for _, job := range q.jobs {
		out := q.Ctl("report", fmt.Sprint(job), "--json").Output
		var f figures
		if json.Unmarshal([]byte(out), &f) != nil || f.Mean.UsedMiB == 0 || len(f.GPUs[0].Samples) == 0 {
			return false
		}
		if samples := f.GPUs[0].Samples; samples[len(samples)-1].At.Sub(f.Begin) < d {
			return false
		}
	}
	return true
}

// metric returns a value without labels, and checks that no series is there twice.
func (q quarters) metric(name string) (value float64) {
	q.T.Helper()
	seen := map[string]bool{}
	for line := range strings.Lines(q.Ctl("metrics").Output) {
		series, number, _ := strings.Cut(strings.TrimSpace(line), "} ")
		must.Hold(q.T, !strings.Contains(line, "{") || !seen[series], "metrics has the series %s} twice", series)
		seen[series] = true
		if rest, found := strings.CutPrefix(line, name+" "); found {
			number = strings.TrimSpace(rest)
			value, _ = strconv.ParseFloat(number, 64)
		}
	}
	return value
}

func near(got, want, by float64) bool { return math.Abs(got-want) <= by*want }

// Four jobs with a quarter of a GPU each have a quarter of its hours and energy each, and all together the GPU's. What
// only the whole GPU has, is not in the report of a part. The memory is that of the job's own clients.
//
// Contract: U3
func TestFiguresOfAPart(t *testing.T) {
	t.Parallel()
	for _, gres := range []string{"shard", "mps"} {
		for _, how := range []string{"turns", "user"} {
			t.Run(gres+" "+how, func(t *testing.T) { partsAddUp(t, gres, how) })
		}
	}
}

func partsAddUp(t *testing.T, gres, how string) {
	q := quartersOf(t, gres, how, map[string]string{})
	q.Until("samples of 8 s of each job", func() bool { return q.last(8 * time.Second) })
	q.running()
	for _, job := range q.jobs { // a report has those of the latest sample, at the end perhaps none
		if shared := q.report(job).SharedWith; (how == "user") != (len(shared) == 3) {
			t.Errorf("job %d shares its daemon with %v", job, shared)
		}
	}
	for _, job := range q.jobs {
		q.Must(0, q.Job(job, "0"), "epilog")
	}
	hours, joules, lasted := 0.0, 0, 0.0
	for n, job := range q.jobs {
		f := q.report(job)
		text := q.Ctl("report", fmt.Sprint(job)).Output
		known := f.Mean.SMActive != -1 || f.Mean.SMUtil != -1 || f.Mean.DRAM != -1
		must.Hold(t, !known && f.Advice == "" && !strings.Contains(text, "43 %"),
			"job %d has the whole GPU's work:\n%s", job, text)
		if idle := f.Mean.UsedMiB < 2000; idle == (n == 0) || f.Mean.UsedMiB > 11000 {
			t.Errorf("job %d uses %d MiB", job, f.Mean.UsedMiB)
		}
		must.Hold(t, f.Seen == 1 && f.Peak == 1,
			"job %d has %d clients, at most %d at the same time, want 1 and 1", job, f.Seen, f.Peak)
		if f.GPUs[0].Others != 3 || !strings.Contains(text, "beside at most 3 other jobs") {
			t.Errorf("job %d is beside %d others, want 3:\n%s", job, f.GPUs[0].Others, text)
		}
		hours, joules, lasted = hours+f.GPUHours*3600, joules+f.EnergyJ, lasted+f.End.Sub(f.Begin).Seconds()
		// A recorder counts from its own start, which is after the job's and before the first sample.
		least, most := 25*f.End.Sub(f.GPUs[0].Samples[0].At).Seconds(), 25*f.End.Sub(f.Begin).Seconds()
		if used := float64(f.EnergyJ); used < 0.97*least || used > 1.03*most {
			t.Errorf("job %d used %d J, want a quarter of 100 W: %.0f to %.0f J", job, f.EnergyJ, least, most)
		}
	}
	t.Logf("%.2f GPU seconds of %.2f s, %d J", hours, lasted, joules)
	if !near(hours, lasted/4, 0.001) {
		t.Errorf("%.2f GPU seconds in four parts, want %.2f", hours, lasted/4)
	}
	if total := q.metric("slurm_mps_energy_joules_total"); total != float64(joules) {
		t.Errorf("the total is %v J, want the reports' %d J", total, joules)
	}
	n, clients := q.metric("slurm_mps_closed_jobs_total"), q.metric("slurm_mps_clients_total")
	must.Hold(t, n == 4 && clients == 4, "%v jobs and %v clients in the totals, want 4 and 4", n, clients)
	list := q.Ctl("report").Output
	for _, job := range q.jobs {
		must.Hold(t, regexp.MustCompile(fmt.Sprintf(`(?m)^%d .* -$`, job)).MatchString(list),
			"the list has no job %d without SM active:\n%s", job, list)
	}
	must.Hold(t, !strings.Contains(list, "4026531840") && strings.Count(list, "\n") <= 8, "the list has\n%s", list)
	q.Clean()
}

// running checks what is printed of the jobs while they run.
func (q quarters) running() {
	q.T.Helper()
	q.metric("")
	metrics, list := q.Ctl("metrics").Output, q.Ctl("report").Output
	for _, job := range q.jobs {
		series := strings.Contains(metrics, fmt.Sprintf(`slurm_mps_job_energy_joules{jobid="%d",`, job))
		must.Hold(q.T, series && strings.Contains("\n"+list, fmt.Sprintf("\n%d ", job)),
			"metrics or the list lacks job %d:\n%s\n%s", job, metrics, list)
	}
	for _, text := range []string{metrics, list} {
		must.Hold(q.T, !strings.Contains(text, "4026531840"), "a shared daemon is a job in\n%s", text)
	}
	if status := q.Ctl("status").Output; strings.Contains(status, "43 %") {
		q.T.Errorf("status has the whole GPU's work in a job:\n%s", status)
	}
	report := q.Ctl("report", "8").Output
	beside := strings.Contains(strings.Join(strings.Fields(report), " "), "beside at most 3 other jobs")
	if strings.Contains(report, "43 %") || !beside {
		q.T.Errorf("the report of job 8 has the whole GPU's work, or lacks its part:\n%s", report)
	}
}

// Four parts have all the energy that NVML counts, to 2 %.
//
// Contract: U3
func TestEnergyOfPartsIsTheGPUs(t *testing.T) {
	t.Parallel()
	for _, gres := range []string{"shard", "mps"} {
		t.Run(gres, func(t *testing.T) {
			const before, used = 5_000_000, 80_000_000 // mJ
			q := quartersOf(t, gres, "turns", map[string]string{"energy_mj": fmt.Sprint(before)})
			q.Until("samples of each job", func() bool { return q.last(0) })
			must.OK(t, q.Sim.Node.GPU(0).Set("energy_mj", fmt.Sprint(before+used)))
			joules, each := 0, []int{}
			for _, job := range q.jobs {
				q.Must(0, q.Job(job, "0"), "epilog")
				each = append(each, q.report(job).EnergyJ)
				joules += each[len(each)-1]
			}
			t.Logf("%v J", each)
			equal := near(float64(slices.Max(each)), float64(slices.Min(each)), 0.02)
			if !near(float64(joules), used/1000, 0.02) || !equal {
				t.Errorf("the parts used %v J, want %d J in four equal parts", each, used/1000)
			}
			q.Clean()
		})
	}
}

// status shows who has which part of a GPU, and audit takes no job on the GPU for a stranger. A daemon that jobs share
// stands once, with the clients of all.
//
// Contract: S2
func TestStatusOfASharedGPU(t *testing.T) {
	t.Parallel()
	for how, want := range map[string][]string{
		"turns": {"job 7  hpc1", "job 8  hpc1", "part     50 of 100 percent of each GPU", "2 jobs"},
		"user":  {"job 7  hpc1", "job 8  hpc1", "served   by shared daemon 1", "shared daemon 1  hpc1", "2 jobs"},
	} {
		t.Run(how, func(t *testing.T) {
			p := newTestNode(t, testnode.Default(fmt.Sprintf("share_gpu = %q", how), `drain_grace = "200ms"`), node.H200, node.H200)
			p.Write(p.Gres(), "Name=gpu File=/dev/nvidia[0-1]\nName=mps Count=200\n")
			for id := uint32(7); id <= 8; id++ {
				job := p.Job(id, "0")
				job.Extra = []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}
				p.Open(job)
				p.Client(id, "spin", "-ms", "5", "-for", "100", "-exit-idle")
			}
			out := p.Ctl("status").Output
			for _, text := range want {
				must.Hold(t, strings.Contains(out, text), "status does not print %q:\n%s", text, out)
			}
			for _, command := range []string{"status", "audit"} {
				var found struct {
					Findings []struct{ Kind, Where string } `json:"findings"`
				}
				out := p.Ctl(command, "--json").Output
				if err := json.Unmarshal([]byte(out), &found); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				for _, f := range found.Findings {
					if f.Kind != "daemon-not-of-a-lease" { // of other tests on this machine
						t.Errorf("%s finds %+v", command, f)
					}
				}
			}
			if out := p.Ctl("reap", "--dry-run").Output; strings.Contains(out, "4026531840") {
				t.Errorf("reap prints a number that Slurm does not know:\n%s", out)
			}
			if how == "user" { // the first sample comes after a second
				p.Until("a report of both jobs", func() bool { return strings.Contains(p.Ctl("report", "7", "--json").Output, `"shared_with":[8]`) })
			}
			for id := uint32(7); id <= 8; id++ {
				p.Must(0, p.Job(id, "0"), "epilog")
			}
			if out := p.Ctl("report", "7", "--json").Output; (how == "user") != strings.Contains(out, `"shared_with":[8]`) {
				t.Errorf("the report of job 7 has\n%s", out)
			}
			p.Clean()
		})
	}
}
