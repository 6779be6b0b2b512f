// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/words"
	"golang.org/x/sys/unix"
)

// runningReport is the report of a running job. keptReport is the report of a job that has ended.
func (p testNode) runningReport() string {
	return filepath.Join(p.Paths().Run(), "jobs", "7", usage.Running)
}

func (p testNode) keptReport() string { return filepath.Join(p.Paths().Reports(), "7.json") }

// report waits until a report meets a condition.
func (p testNode) report(path, what string, is func(usage.Report) bool) (r usage.Report) {
	p.T.Helper()
	p.Until(what, func() bool {
		now, err := usage.Read(path)
		r = now
		return err == nil && is(now)
	})
	return r
}

// sampledOften is a node whose recorder samples every second.
func sampledOften(t *testing.T, models ...node.Model) testNode {
	p := newTestNode(t, testnode.Default(`drain_grace = "0s"`), models...)
	p.Facts(`usage_interval = "1s"`)
	return p
}

// A job's use of its GPUs is in its report, while the job runs and after its end.
//
// Contract: U2
func TestAReportOfAJob(t *testing.T) {
	p := sampledOften(t, node.H200)
	for name, percent := range map[string]string{"gpm/1": "96", "gpm/2": "31", "gpm/10": "12.5"} {
		must.OK(t, p.Sim.Node.GPU(0).Set(name, percent))
	}
	s := e2e.OpenShared(p.Node)
	s.Env = append(s.Env, "SLURM_JOB_ID=7", "SLURM_STEP_ID=3", "SLURM_PROCID=5", "SLURM_JOB_NAME=relax\x1b[31m",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25")
	first, second, outlives := s.Start("spin", "-ms", "1", "-for", "900", "-mib", "2000"), s.Neighbour(), s.Start("spin", "-ms", "0", "-for", "100")
	first.Kill()
	r := p.report(p.runningReport(), "end of a client", func(r usage.Report) bool {
		return len(r.Clients) == 3 && !r.Clients[0].End.IsZero() && r.Clients[1].PeakMiB > 0
	})
	if r.Job != 7 || r.User != "hpc1" || r.Rule != "mps" || r.Share != "overlap:2" || r.Name != "relax?[31m" ||
		r.BadEnds != 1 || !r.End.IsZero() || r.ClientsSeen != 3 || r.ClientsPeak != 3 {
		t.Errorf("%+v", r)
	}
	g := r.GPUs[0]
	if g.UUID != p.UUID(0) || g.Source != "GPM" || g.SMs != 132 || len(g.Samples) == 0 {
		t.Fatalf("%+v", g)
	}
	if at := g.Samples[0]; at.SMUtil != 96 || at.SMActive != 31 || at.DRAM != 12.5 || at.UsedMiB == 0 || at.Clients == 0 {
		t.Errorf("%+v", at)
	}
	if c := r.Clients[0]; c.PID != first.Pid || c.Rank != 5 || c.Step != "3" || c.SMs != 32 ||
		c.Program != "cuda-client" || c.Exit != "signal 9" {
		t.Errorf("%+v, want rank 5 of step 3 with 32 SMs, pid %d, cuda-client, signal 9", c, first.Pid)
	}
	_ = second.Process.Signal(syscall.SIGTERM)
	second.Ends()
	p.awaitEnding(first.Pid) // the third client leaves the GPU idle
	p.awaitEnding(second.Pid)
	p.Must(0, s.Job, "epilog")
	r = p.report(p.keptReport(), "kept report", func(usage.Report) bool { return true })
	endings := map[int]usage.Ending{}
	for _, c := range r.Clients {
		endings[c.PID] = c.Ending
	}
	if r.BadEnds != 1 || endings[first.Pid] == "" || endings[second.Pid] == "" ||
		endings[outlives.Pid] != usage.AtEpilog || r.End.IsZero() || len(r.Faults) != 0 {
		t.Errorf("endings %v, faults %v, end %v", endings, r.Faults, r.End)
	}
	if !r.DaemonGone.IsZero() || !strings.Contains(p.Log(), `"daemon_gone":false`) {
		t.Errorf("a daemon that the epilog ended was gone before the job: %v\n%s", r.DaemonGone, p.Log())
	}
	if summary := p.Log(); !strings.Contains(summary, `"sm_active":31,"sm_util":96,"dram":12.5,"max_used_mib":`) {
		t.Errorf("the summary has no figures:\n%s", summary)
	}
	for path, mode := range map[string]fs.FileMode{p.keptReport(): 0o640, p.Paths().Reports(): 0o755} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != mode || info.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	p.Quiet()
}

// An MPS daemon that ends before its job leaves a trace: in the report while the job runs and after it, in the log and
// in the summary. In a job whose daemon lives, nothing says so.
func TestADaemonThatEndedLeavesATrace(t *testing.T) {
	p := sampledOften(t, node.H200)
	s := e2e.OpenShared(p.Node)
	client := s.Start("spin", "-ms", "1", "-for", "900")
	p.report(p.runningReport(), "a report of a daemon that lives", func(r usage.Report) bool {
		return len(r.Clients) == 1 && len(r.GPUs[0].Samples) > 1 && r.DaemonGone.IsZero()
	})
	must.OK(t, syscall.Kill(p.Lease(7).Daemons[0].Proc.PID, syscall.SIGKILL))
	gone := func(r usage.Report) bool { return !r.DaemonGone.IsZero() }
	p.report(p.runningReport(), "the daemon's end in the running report", gone)
	client.Kill()
	if out, code := p.ctlAs(e2e.UID, "7", "report"); code != 0 || !strings.Contains(out, "The job's MPS daemon ended before the job") {
		t.Errorf("mpsctl report exits with %d:\n%s", code, out)
	}
	p.Must(0, s.Job, "epilog")
	p.report(p.keptReport(), "the daemon's end in the kept report", gone)
	for _, want := range []string{`"message":"the daemon had ended before the job"`, `"daemon_gone":true`} {
		if !strings.Contains(p.Log(), want) {
			t.Errorf("the log lacks %s:\n%s", want, p.Log())
		}
	}
	p.Quiet()
}

// ctlAs runs mpsctl as a user, in a job or outside of jobs.
func (p testNode) ctlAs(user uint32, job string, args ...string) (out string, code int) {
	return p.ctlWith(user, user, job, args...)
}

// ctlOf runs mpsctl as a user of a group.
func (p testNode) ctlOf(user, group uint32, args ...string) (out string, code int) {
	return p.ctlWith(user, group, "", args...)
}

func (p testNode) ctlWith(user, group uint32, job string, args ...string) (out string, code int) {
	line := p.Command("mpsctl", args...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin"}
	if job != "" {
		cmd.Env = append(cmd.Env, "SLURM_JOB_ID="+job)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: group, Groups: []uint32{group}}}
	said, _ := cmd.CombinedOutput()
	return string(said), cmd.ProcessState.ExitCode()
}

// A job's user can read its report while the job runs and afterwards, and its metrics without the node's totals. Another
// user never can.
//
// Contract: U2
func TestWhoReadsAReport(t *testing.T) {
	p := sampledOften(t, node.H200)
	expect := func(user uint32, job string, code int, want string, args ...string) {
		t.Helper()
		out, got := p.ctlAs(user, job, append([]string{"report"}, args...)...)
		if got != code || !strings.Contains(out, want) {
			t.Errorf("report %q of uid %d: code %d, want %d and %q\n%s", args, user, got, code, want, out)
		}
	}
	p.Must(0, p.Job(7, "0"), "prolog")
	expect(e2e.UID, "7", 0, "job 7 has nothing to report: it has no report yet")
	expect(e2e.UID, "", 1, "has no report yet", "7")
	expect(e2e.UID, "7", 1, "has no report yet", "--json")
	client := p.Client(7, "spin", "-ms", "1", "-for", "900", "-exit-idle")
	p.report(p.runningReport(), "report of a client", func(r usage.Report) bool { return r.ClientsSeen > 0 })
	both := func(ended string) {
		t.Helper()
		expect(e2e.UID, "7", 0, ended)
		expect(0, "", 0, ended, "7")
		expect(e2e.UID, "", 0, `"advice":""`, "7", "--json")
		expect(e2e.UID+1, "", 1, "cannot report job 7: it is another user's", "7")
		if out, code := p.ctlOf(e2e.UID+1, e2e.GID, "report", "7"); code != 1 || !strings.Contains(out, "it is another user's") {
			t.Errorf("a member of the user's group: code %d\n%s", code, out)
		}
	}
	both("runs, ")
	use := "\nslurm_mps_job_clients_seen{jobid=\"7\",user=\"hpc1\",partition=\"main\"} "
	for _, c := range []struct {
		user        uint32
		use, totals bool
	}{{0, true, true}, {e2e.UID, true, false}, {e2e.UID + 1, false, false}} {
		out, code := p.ctlAs(c.user, "", "metrics")
		if code != 0 || strings.Contains(out, use) != c.use || strings.Contains(out, "\nslurm_mps_closed_jobs_total ") != c.totals {
			t.Errorf("metrics of uid %d: code %d, want use %v and totals %v\n%s", c.user, code, c.use, c.totals, out)
		}
	}
	_ = client.Process.Signal(syscall.SIGTERM)
	_ = client.Wait()
	p.Must(0, p.Job(7, "0"), "epilog")
	both("ended ")
	expect(e2e.UID, "", 2, "cannot choose a job: SLURM_JOB_ID is not set", "--line")
	expect(e2e.UID, "", 0, "\n7 ")
	expect(0, "", 0, `[{"job":7,`, "--json")
	expect(e2e.UID+1, "", 0, "no report that you may read")
	expect(e2e.UID, "", 2, `cannot report job "x"`, "x")
	expect(e2e.UID, "", 2, "takes one job", "7", "8")
	expect(e2e.UID, "", 2, "cannot print in several forms", "7", "--line", "--json")
	expect(e2e.UID, "", 1, "this node has no report of it", "8")
	expect(e2e.UID, "8", 0, "job 8 has nothing to report: this node has no report of it")
	p.Write(p.keptReport(), "{}")
	expect(0, "", 1, "it is not a report of slurm-mps", "7")
	p.Quiet()
}

// awaitEnding waits until the running job's report has how a client ended. The guard knows this when it has closed the
// client's files.
func (p testNode) awaitEnding(pid int) {
	p.T.Helper()
	p.report(p.runningReport(), fmt.Sprintf("ending of client %d", pid), func(r usage.Report) bool {
		return slices.ContainsFunc(r.Clients, func(c usage.Client) bool { return c.PID == pid && c.Ending != "" })
	})
}

// The report contains a fault, and the clients that the fault ended.
func TestAReportOfAFault(t *testing.T) {
	p := sampledOften(t, node.H200)
	s := e2e.OpenShared(p.Node)
	innocent := s.Start("spin", "-ms", "1", "-for", "900")
	_ = s.AsUser(s.CudaClient(), "fault").Run()
	innocent.Ends()
	r := p.report(p.runningReport(), "fault", func(r usage.Report) bool {
		return len(r.Faults) == 1 && len(r.Clients) == 2 && !r.Clients[0].End.IsZero()
	})
	if f := r.Faults[0]; f.GPU != 0 || f.PID == 0 || time.Since(f.At) > 10*time.Minute {
		t.Errorf("%+v", f)
	}
	if c := r.Clients[0]; c.PID != innocent.Pid || c.Ending != usage.Faulted {
		t.Errorf("%+v", c)
	}
}

// If the recorder is killed, is stopped, hangs or cannot write, the job is not affected.
//
// Contract: U1
func TestAJobWithoutItsRecorder(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(t *testing.T, p testNode, recorder proc.Process){
		"killed":  func(t *testing.T, p testNode, r proc.Process) { _ = r.Kill(unix.SIGKILL); p.Gone(r) },
		"stopped": func(t *testing.T, p testNode, r proc.Process) { _ = r.Kill(unix.SIGSTOP) },
		"without room": func(t *testing.T, p testNode, r proc.Process) {
			if err := os.WriteFile(filepath.Join(p.Paths().Run(), "jobs", "7", "full"), make([]byte, 300<<20), 0o600); err == nil {
				t.Skip("the job's folder has no file system of its own here")
			}
		},
		"NVML hangs": func(t *testing.T, p testNode, r proc.Process) {
			must.OK(t, p.Sim.Node.Delay("nvmlDeviceGetMemoryInfo", 1000000))
			time.Sleep(1500 * time.Millisecond)
		},
		"no folder for reports": func(t *testing.T, p testNode, r proc.Process) {
			p.Write(p.Paths().Reports(), "a file")
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := sampledOften(t, node.H200)
			p.Must(0, p.Job(7, "0"), "prolog")
			client := p.Client(7, "spin", "-ms", "1", "-for", "900", "-exit-idle")
			p.report(p.runningReport(), "report", func(usage.Report) bool { return true })
			recorder := p.Recorder()
			if recorder.PID == 0 {
				t.Fatal("there is no recorder")
			}
			harm(t, p, recorder)
			_ = client.Process.Signal(syscall.SIGTERM)
			if err := client.Wait(); err != nil {
				t.Errorf("the client: %v", err)
			}
			began := time.Now()
			p.Must(0, p.Job(7, "0"), "epilog")
			if took := time.Since(began); took > 30*time.Second { // it does not wait for the recorder until its own deadline, a minute
				t.Errorf("the epilog took %v", took)
			}
			p.Gone(recorder)
			if name == "no folder for reports" {
				if !strings.Contains(p.Log(), "report is not kept") {
					t.Errorf("the log has no such line:\n%s", p.Log())
				}
			}
			p.Quiet()
		})
	}
}

// A report that a full disk does not take is lost, and the log has the reason. A short job without a client leaves no
// report, so that a user's empty jobs push out no other report.
//
// Contract: U2
func TestAReportThatIsNotKept(t *testing.T) {
	p := sampledOften(t, node.H200)
	p.Must(0, p.Job(7, "0"), "prolog")
	p.report(p.runningReport(), "report", func(usage.Report) bool { return true })
	p.Must(0, p.Job(7, "0"), "epilog")
	if _, err := os.Stat(p.keptReport()); err == nil {
		t.Error("a job without a client has left a report")
	}
	must.OK(t, os.MkdirAll(p.Paths().Reports(), 0o755))
	for _, c := range []struct{ name, options, want string }{
		{"no inode", "nr_inodes=1,mode=0755", "no inode left: the file system at " + p.Paths().Reports()},
		{"no block", "size=4k,mode=0755", "no space left on device: the file system at " + p.Paths().Reports() + " is full"},
	} {
		if err := unix.Mount("small", p.Paths().Reports(), "tmpfs", 0, c.options); err != nil {
			t.Skipf("cannot mount a tmpfs: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(p.Paths().Reports(), unix.MNT_DETACH) })
		if c.name == "no block" {
			p.Write(filepath.Join(p.Paths().Reports(), "full"), strings.Repeat("x", os.Getpagesize()))
		}
		p.Must(0, p.Job(7, "0"), "prolog")
		client := p.Client(7, "spin", "-ms", "1", "-for", "900", "-exit-idle")
		p.report(p.runningReport(), "report of a client", func(r usage.Report) bool { return r.ClientsSeen > 0 })
		_ = client.Process.Signal(syscall.SIGTERM)
		_ = client.Wait()
		p.Must(0, p.Job(7, "0"), "epilog")
		if log := e2e.Read(t, p.Paths().Log()); !strings.Contains(log, "the job's report is not kept") || !strings.Contains(log, c.want) {
			t.Errorf("%s: no %q in\n%s", c.name, c.want, log)
		}
		_ = unix.Unmount(p.Paths().Reports(), unix.MNT_DETACH)
	}
	p.Quiet()
}

// status, metrics, report and the summary have the same names and the same values for a job's numbers. One client runs
// until the job's end, one ends in order, one fails and one is killed.
//
// Contract: U2
func TestTheNumbersOfAJobAgree(t *testing.T) {
	p := sampledOften(t, node.H200)
	for name, percent := range map[string]string{"gpm/1": "96", "gpm/2": "31", "gpm/10": "12.5", "energy_mj": "5000000"} {
		must.OK(t, p.Sim.Node.GPU(0).Set(name, percent))
	}
	s := e2e.OpenShared(p.Node)
	neighbour := s.Neighbour()
	for _, ending := range []string{"exit:0", "exit:3"} {
		s.Start("spin", "-ms", "1", "-for", "100", "-end", ending, "-after", "0.2").Ends()
	}
	// The victim's memory may be needed by a successor, so the guard pauses the neighbour.
	s.Start("spin", "-ms", "0", "-for", "100", "-mib", "80000", "-end", "signal:9", "-after", "0.3").Ends()
	held := func(c usage.Client) bool { return !c.End.IsZero() && c.Ending == "" }
	counts := p.report(p.runningReport(), "bad ends and a pause", func(r usage.Report) bool {
		return r.BadEnds == 2 && r.Pauses > 0 && len(r.GPUs[0].Samples) > 0 && !slices.ContainsFunc(r.Clients, held)
	}).Counts
	paused := float64(counts.PausedMillis) / 1000
	must.OK(t, p.Sim.Node.GPU(0).Set("energy_mj", "12000000"))
	p.report(p.runningReport(), "energy", func(r usage.Report) bool { return r.EnergyJ == 7000 })
	want := map[string]float64{"sm_active": 31, "sm_util": 96, "dram": 12.5, "clients_seen": 4, "clients_peak": 2,
		"bad_ends": 2, "energy_j": 7000, "pauses": float64(counts.Pauses), "paused_ms": float64(counts.PausedMillis)}

	object := func(text string) (all map[string]any) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		return all
	}
	agree := func(of string, found map[string]any, names ...string) {
		t.Helper()
		for _, name := range names {
			if found[name] != want[name] {
				t.Errorf("%s: %s is %v, want %v", of, name, found[name], want[name])
			}
		}
	}
	totals := []string{"clients_seen", "clients_peak", "bad_ends", "energy_j", "pauses", "paused_ms"}
	percentages := []string{"sm_active", "sm_util", "dram"}
	job := object(p.Ctl("status", "--json").Output)["jobs"].([]any)[0].(map[string]any)
	agree("status", job["totals"].(map[string]any), totals...)
	agree("the guard in status", job["guard"].(map[string]any), "clients_seen", "clients_peak", "pauses", "paused_ms")
	agree("the use in status", job["gpus"].([]any)[0].(map[string]any)["use"].(map[string]any), percentages...)
	out, _ := p.ctlAs(e2e.UID, "7", "report", "--json")
	report := object(out)
	agree("report", report, totals...)
	agree("the mean in report", report["mean"].(map[string]any), percentages...)
	metrics := p.Ctl("metrics").Output
	ofJob := `jobid="7",user="hpc1",partition="main"} `
	for _, line := range []string{"job_clients_seen{" + ofJob + "4", "job_clients_peak{" + ofJob + "2",
		"job_bad_ends{" + ofJob + "2", "job_energy_joules{" + ofJob + "7000",
		fmt.Sprintf("job_pauses{%s%d", ofJob, counts.Pauses), fmt.Sprintf("job_paused_seconds{%s%v", ofJob, paused)} {
		if !strings.Contains(metrics, "\nslurm_mps_"+line+"\n") {
			t.Errorf("metrics: no %s in\n%s", line, metrics)
		}
	}
	sentence := fmt.Sprintf("The guard paused the ranks %s, %.1f s in all.", words.Count(counts.Pauses, "time"), paused)
	for _, command := range []string{"status", "report"} {
		for _, user := range []uint32{0, e2e.UID} {
			if out, _ := p.ctlAs(user, "7", command); !strings.Contains(out, sentence) {
				t.Errorf("%s of uid %d lacks %q:\n%s", command, user, sentence, out)
			}
		}
	}
	_ = neighbour.Process.Signal(syscall.SIGTERM)
	neighbour.Ends()
	p.Must(0, s.Job, "epilog")
	out, _ = p.ctlAs(e2e.UID, "7", "report", "--json")
	agree("the kept report", object(out), totals...)
	for line := range strings.Lines(p.Log()) {
		if strings.Contains(line, `"step":"summary"`) {
			summary := object(line)
			agree("summary", summary, append(percentages, totals...)...)
		}
	}
	var waste struct {
		All struct{ Sums map[string]float64 }
	}
	if err := json.Unmarshal([]byte(p.Ctl("waste", "--json").Output), &waste); err != nil || waste.All.Sums["jobs"] != 1 || waste.All.Sums["gpu_hours"] <= 0 {
		t.Errorf("waste: %+v, %v", waste, err)
	}
	after := p.Ctl("metrics").Output
	for _, line := range []string{"clients_total 4", "clients_at_epilog_total 0", "faults_total 0", "bad_ends_total 2", "energy_joules_total 7000",
		fmt.Sprintf("pauses_total %d", counts.Pauses), fmt.Sprintf("paused_seconds_total %v", paused)} {
		if !strings.Contains(after, "\nslurm_mps_"+line+"\n") {
			t.Errorf("after the job: no %s in\n%s", line, after)
		}
	}
	p.Quiet()
}

// mpsctl report as the last line of a batch script: the killed rank is there with its step, and normal ends are not.
//
// Contract: U2
func TestAReportAtTheEndOfABatchScript(t *testing.T) {
	c := e2e.NewCluster(t, testnode.Default(`share = "overlap:2"`), lab.Options{PrologFlags: "Alloc"})
	ranks := c.Client() + " spin -ms 5 -for 3"
	id := c.Batch(strings.Join([]string{
		"srun -n4 " + c.Wrap("info"),
		"srun -n4 --kill-on-bad-exit=0 " + filepath.Join(c.Top, "mpirun-wrap") + " bash -c '" +
			"[ $SLURM_PROCID = 3 ] && exec " + ranks + " -queue 50 -end signal:9 -after 1; exec " + ranks + "'",
		strings.Join(c.First().Command("mpsctl", "report"), " "),
	}, "\n"), "-n4", "--gres=gpu:1", "--job-name=relax")
	c.Ended(id)
	_, report, _ := strings.Cut(c.Output(id), fmt.Sprintf("job %d ", id))
	text := strings.Join(strings.Fields(report), " ")
	for _, want := range []string{`"relax" of `, "1 of 8 clients ended badly", "rank 3 of step 1 (cuda-client, pid ",
		"ended by signal 9 (SIGKILL)", "the clients had 66 SMs"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s\n%s", want, c.Output(id), c.Log())
		}
	}
	if n := strings.Count(report, "pid "); n != 1 {
		t.Errorf("%d incidents, want 1:\n%s", n, report)
	}
	c.Quiet()
}

// Ranks of a batch script that no wrapper has placed, as mpirun starts them: mpsctl report tells what to write.
//
// Contract: U2
func TestRanksThatNoWrapperHasPlaced(t *testing.T) {
	c := e2e.NewCluster(t, testnode.Default(`share = "overlap:2"`), lab.Options{PrologFlags: "Alloc"})
	ranks := func(program string) string {
		// They stay, also with an error, until their environments have been read.
		return "export OMPI_COMM_WORLD_LOCAL_SIZE=3\n" +
			"for i in 0 1 2; do OMPI_COMM_WORLD_RANK=$i OMPI_COMM_WORLD_LOCAL_RANK=$i " + program + c.Client() +
			" stay context 5 & done; wait"
	}
	const write = "start ranks by srun mpirun-wrap ./app or mpirun mpirun-wrap ./app."
	for name, one := range map[string]struct{ script, want string }{
		"without TaskProlog": {"unset CUDA_MPS_PIPE_DIRECTORY\n" + ranks(""),
			"3 processes did not use the job's MPS daemon: " + write},
		"by TaskProlog alone": {ranks(""),
			"3 ranks of the batch script had all of GPU 0 each. If you did not choose that, " + write},
		"by the wrapper": {ranks(filepath.Join(c.Top, "mpirun-wrap") + " "), ""},
	} {
		id := c.Batch(one.script+"\n"+strings.Join(c.First().Command("mpsctl", "report"), " "), "-n3", "--gres=gpu:1")
		c.Ended(id)
		_, report, _ := strings.Cut(c.Output(id), fmt.Sprintf("job %d ", id))
		text := strings.Join(strings.Fields(report), " ")
		if !strings.Contains(text, "3 clients, at most") || !strings.Contains(text, one.want) ||
			strings.Contains(text, write) != (one.want != "") {
			t.Errorf("%s: want %q in\n%s\n%s", name, one.want, c.Output(id), c.Log())
		}
	}
	c.Quiet()
}
