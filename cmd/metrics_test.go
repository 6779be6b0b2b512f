package cmd_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/stage"
)

// The epilog says in one line what a job came to, and mpsctl metrics adds the lines up.
func TestASummaryOfEachJob(t *testing.T) {
	p := newPlay(t, stage.Default(`drain_grace = "100ms"`), node.H200)
	p.must(0, p.job(7, "0"), "prolog")
	p.ranks(3, "pass", "spin", "-ms", "1", "-for", "100")
	during := p.ctl("metrics")
	if !strings.Contains(during.Output, "\nslurm_mps_jobs{phase=\"open\"} 1\n") || !strings.Contains(during.Output, "} 3\n") || during.Code != 0 {
		t.Errorf("during the job: code %d\n%s", during.Code, during.Output)
	}
	p.must(0, p.job(7, "0"), "epilog")
	p.must(0, p.job(8, "0"), "prolog")
	p.must(0, p.job(8, "0"), "epilog")
	site := read(t, p.Paths().Facts())
	p.write(p.Paths().Facts(), strings.Replace(site, "nvidia-cuda-mps-control", "nvidia-control", 1))
	p.must(1, p.job(9, "0"), "prolog") // undone, and no job's sum
	p.write(p.Paths().Facts(), site)
	type summary struct {
		Step, User, Rule                           string
		Job, Clients, Peak, Left, Terminated, GPUs int
		Seconds                                    float64
		Closed                                     bool
	}
	var all []summary
	for line := range strings.Lines(p.log()) {
		var s summary
		if json.Unmarshal([]byte(line), &s) == nil && s.Step == "summary" {
			if s.Seconds <= 0 || s.Seconds > 60 {
				t.Errorf("seconds: %s", line)
			}
			s.Seconds = 0
			all = append(all, s)
		}
	}
	want := []summary{
		{Step: "summary", User: "hpc1", Rule: "mps", Job: 7, GPUs: 1, Clients: 3, Peak: 3, Left: 3, Terminated: 3, Closed: true},
		{Step: "summary", User: "hpc1", Rule: "mps", Job: 8, GPUs: 1, Closed: true},
	}
	if len(all) != 2 || all[0] != want[0] || all[1] != want[1] {
		t.Errorf("summaries %+v\nwant      %+v", all, want)
	}
	after := p.ctl("metrics").Output
	for _, line := range []string{"closed_jobs_total 2", "clients_total 3", "left_clients_total 3", "terminated_clients_total 3", "faults_total 0", `jobs{phase="open"} 0`} {
		if !strings.Contains(after, "\nslurm_mps_"+line+"\n") {
			t.Errorf("no %s in\n%s", line, after)
		}
	}
	p.clean()
}
