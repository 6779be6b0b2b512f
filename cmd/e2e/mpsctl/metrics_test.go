// SPDX-License-Identifier: Apache-2.0

package mpsctl_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// The epilog logs one line with the sums of a job, and mpsctl metrics adds these lines up.
func TestASummaryOfEachJob(t *testing.T) {
	p := newTestNode(t, testnode.Default(`drain_grace = "100ms"`), node.H200)
	p.Open(p.Job(7, "0"))
	p.Ranks(3, "spin", "-ms", "1", "-for", "100")
	during := p.Ctl("metrics")
	if !strings.Contains(during.Output, "\nslurm_mps_jobs{phase=\"open\"} 1\n") || !strings.Contains(during.Output, "} 3\n") || during.Code != 0 {
		t.Errorf("during the job: code %d\n%s", during.Code, during.Output)
	}
	p.Must(0, p.Job(7, "0"), "epilog")
	p.Open(p.Job(8, "0"))
	p.Must(0, p.Job(8, "0"), "epilog")
	site := e2e.Read(t, p.Paths().ConfigFile())
	p.Write(p.Paths().ConfigFile(), strings.Replace(site, "nvidia-cuda-mps-control", "nvidia-control", 1))
	p.Must(1, p.Job(9, "0"), "prolog") // the prolog undoes this job, so it has no summary
	p.Write(p.Paths().ConfigFile(), site)
	type summary struct {
		Step, User, Rule      string
		Job, Terminated, GPUs int
		Clients               int `json:"clients_seen"`
		Peak                  int `json:"clients_peak"`
		AtEpilog              int `json:"clients_at_epilog"`
		Seconds               float64
		Closed                bool
	}
	var all []summary
	for line := range strings.Lines(p.Log()) {
		var s summary
		if json.Unmarshal([]byte(line), &s) == nil && s.Step == "summary" {
			must.Hold(t, s.Seconds > 0 && s.Seconds <= 60, "seconds: %s", line)
			s.Seconds = 0
			all = append(all, s)
		}
	}
	want := []summary{
		{Step: "summary", User: "hpc1", Rule: "mps", Job: 7, GPUs: 1, Clients: 3, Peak: 3, AtEpilog: 3, Terminated: 3, Closed: true},
		{Step: "summary", User: "hpc1", Rule: "mps", Job: 8, GPUs: 1, Closed: true},
	}
	must.Hold(t, len(all) == 2 && all[0] == want[0] && all[1] == want[1], "summaries %+v\nwant      %+v", all, want)
	after := p.Ctl("metrics").Output
	for _, line := range []string{"closed_jobs_total 2", "clients_total 3", "clients_at_epilog_total 3",
		"terminated_clients_total 3", "faults_total 0", `jobs{phase="open"} 0`} {
		must.Hold(t, strings.Contains(after, "\nslurm_mps_"+line+"\n"), "no %s in\n%s", line, after)
	}
	p.Clean()
}

// A user's stopped daemons do not hide the figures of other jobs. mpsctl metrics ends long before the one minute of
// its systemd unit.
func TestMetricsOfANodeWithStoppedDaemons(t *testing.T) {
	p := newTestNode(t, testnode.Default(`scope = "gpu"`), slices.Repeat([]node.Model{node.H200}, 17)...)
	p.Open(p.Job(7, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"))
	other := p.Job(8, "16")
	other.UID, other.GID = e2e.UID+1, e2e.GID+1
	p.Open(other)
	for _, d := range p.Ticket(7).Daemons {
		must.OK(t, d.Proc.Kill(unix.SIGSTOP))
	}
	var said testnode.Result
	var took time.Duration
	lines := []string{`daemons{state="serving"} 1`, `daemons{state="wedged"} 16`, "unanswered_daemons 16",
		`jobs{phase="open"} 2`, `findings{kind="daemon-wedged"} 16`}
	lacks := func(line string) bool { return !strings.Contains(said.Output, "\nslurm_mps_"+line+"\n") }
	e2e.Comes(func() bool { // on a busy machine the daemon of the other job may be late to answer, too
		began := time.Now()
		said = p.Ctl("metrics")
		took = time.Since(began)
		return said.Code == 0 && !slices.ContainsFunc(lines, lacks)
	})
	must.Hold(t, took <= 50*time.Second && said.Code == 0, "mpsctl metrics took %v: code %d", took, said.Code)
	for _, line := range lines {
		must.Hold(t, !lacks(line), "no %s in\n%s", line, said.Output)
	}
	for _, d := range p.Ticket(7).Daemons {
		must.OK(t, d.Proc.Kill(unix.SIGCONT))
	}
	p.Must(0, other, "epilog")
	p.Close(p.Job(7, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"))
}

// Root writes metrics only to a path that root alone controls, and follows no link of another user.
func TestMetricsFollowNoLink(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	own, err := os.MkdirTemp("/run", "slurm-mps-test-") // not in /tmp, where every user may write
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(own) })
	must.OK(t, os.Chmod(own, 0o755))
	victim := filepath.Join(own, "victim")
	p.Write(victim, "precious")
	theirs := filepath.Join(own, "theirs")
	must.OK(t, os.MkdirAll(filepath.Join(theirs, "below"), 0o755))
	for _, name := range []string{".slurm-mps.new", "slurm-mps.prom", ".draft-slurm-mps.prom-1"} {
		must.OK(t, os.Symlink(victim, filepath.Join(theirs, name)))
	}
	must.OK(t, os.Chown(theirs, int(e2e.UID), int(e2e.GID)))
	must.OK(t, os.Symlink(own, filepath.Join(own, "link")))
	must.OK(t, os.MkdirAll(filepath.Join(own, "open"), 0o755))
	must.OK(t, os.Chmod(filepath.Join(own, "open"), 0o775))
	for path, want := range map[string]string{
		filepath.Join(theirs, "slurm-mps.prom"):       fmt.Sprint("not root's own: its owner is uid ", e2e.UID),
		filepath.Join(theirs, "below/slurm-mps.prom"): fmt.Sprint("not root's own: its owner is uid ", e2e.UID),
		filepath.Join(own, "link/slurm-mps.prom"):     "it is a symbolic link",
		filepath.Join(own, "open/slurm-mps.prom"):     "its mode 0775 lets others write",
		filepath.Join(p.Root, "slurm-mps.prom"):       "/tmp: not root's own: its mode 1777 lets others write",
		filepath.Join(own, "none/slurm-mps.prom"):     "no such file or directory",
		"slurm-mps.prom": "give an absolute path",
	} {
		if result := p.Ctl("metrics", "--out", path); result.Code != 1 || !strings.Contains(result.Output, want) {
			t.Errorf("%s: code %d, %s, want %s", path, result.Code, result.Output, want)
		}
	}
	// In a folder of root, the file is replaced, and the target of a link in its place does not change.
	out := filepath.Join(own, "slurm-mps.prom")
	must.OK(t, os.Symlink(victim, out))
	for range 2 {
		if result := p.Ctl("metrics", "--out", out); result.Code != 0 || result.Output != "" {
			t.Fatalf("%+v", result)
		}
	}
	info, err := os.Lstat(out)
	must.Hold(t, err == nil && info.Mode() == 0o644 && strings.Contains(e2e.Read(t, out), "\nslurm_mps_jobs{"),
		"the written file: %v, %v", info, err)
	must.Hold(t, e2e.Read(t, victim) == "precious", "the target of the link was written")
	if names, _ := os.ReadDir(own); len(names) != 5 {
		t.Errorf("want 5 files in the folder: %v", names)
	}
}
