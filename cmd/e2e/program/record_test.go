// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// recordsAll is a node with two GPUs whose policy records all jobs, every second, and job 7 on both, which asks for no
// MPS.
func recordsAll(t *testing.T) (testNode, testnode.Job) {
	t.Helper()
	p := newTestNode(t, "record = \"all\"\n"+testnode.Default(`drain_grace = "0s"`), node.H200, node.H200)
	p.Facts(`usage_interval = "1s"`)
	job := p.Job(7, "0,1")
	job.Features = ""
	return p, job
}

// recorded is such a node in the middle of job 7: its recorder has taken a sample.
func recorded(t *testing.T) (testNode, testnode.Job) {
	t.Helper()
	p, job := recordsAll(t)
	p.Must(0, job, "prolog")
	p.report(p.runningReport(), "a sample", func(r usage.Report) bool { return len(r.GPUs[0].Samples) > 0 })
	return p, job
}

func (p testNode) killRecorder() {
	p.T.Helper()
	recorder := p.Recorder()
	must.OK(p.T, recorder.Kill(syscall.SIGKILL))
	p.Gone(recorder)
}

// plain starts a program of job 7 on the first GPU, without the wrapper and without a daemon.
func (p testNode) plain() *exec.Cmd {
	p.T.Helper()
	cmd := p.AsUser(7, []string{p.CudaClient(), "spin", "-ms", "1", "-for", "900", "-mib", "2000"})
	cmd.Env = append(cmd.Env, "SLURM_PROCID=3", "SLURM_JOB_NAME=relax", "CUDA_VISIBLE_DEVICES="+string(p.UUID(0)),
		"SLURM_SHARDS_ON_NODE=2")
	return p.Ready(cmd)
}

// processes is the largest number of processes in the samples of a GPU.
func processes(g usage.GPU) (most int) {
	for _, s := range g.Samples {
		most = max(most, s.Clients)
	}
	return most
}

// A job without MPS has a report: its processes, and a GPU without a process. The job has no ticket, no file system and
// no other mode, and nothing of it is left.
//
// Contract: U5
func TestAJobWithoutMPSIsRecorded(t *testing.T) {
	p, job := recordsAll(t)
	must.OK(t, p.Sim.Node.GPU(0).Set("gpm/2", "31"))
	p.Must(0, job, "prolog")
	l := p.Lease(7)
	if !l.NoMPS || len(l.Daemons) != 0 || !e2e.Alive(l.Guard) || p.Modes() != "00" {
		t.Errorf("modes %s, lease %+v", p.Modes(), l)
	}
	if _, err := os.Lstat(filepath.Join(p.Paths().Run(), "tickets", "7.json")); err == nil {
		t.Error("the job has a ticket")
	}
	program := p.plain()
	running := func(r usage.Report) bool {
		return len(r.Clients) == 1 && r.Clients[0].PeakMiB > 0 && len(r.GPUs[1].Samples) > 1
	}
	r := p.report(p.runningReport(), "the program in the running report", running)
	must.Hold(t, r.NoMPS && r.Rule == "" && r.Share == "" && r.User == "hpc1" && r.Name == "relax" && r.End.IsZero(),
		"%+v", r)
	if status := p.Ctl("status"); status.Code != 0 || !strings.Contains(status.Output, "job 7  hpc1  recorded") {
		t.Errorf("status: %+v", status)
	}
	if found := p.Audit(); len(found) > 0 {
		t.Errorf("audit: %+v", found)
	}
	if reap := p.Ctl("reap"); reap.Code != 1 || !strings.Contains(reap.Output, "mpsctl reap --job 7") {
		t.Errorf("reap of a job that may run: %+v", reap)
	}
	if metrics := p.Ctl("metrics"); !strings.Contains(metrics.Output, `slurm_mps_jobs{phase="recorded"} 1`) {
		t.Errorf("metrics: %+v", metrics)
	}
	out, code := p.ctlAs(e2e.UID, "7", "report")
	must.Hold(t, code == 0 && strings.Contains(out, "ran without MPS") && !strings.Contains(out, "mpirun-wrap ./app"),
		"mpsctl report exits with %d:\n%s", code, out)
	recorder := p.Recorder()
	if nice, err := syscall.Getpriority(syscall.PRIO_PROCESS, recorder.PID); err != nil || 20-nice != 10 {
		t.Errorf("the recorder has nice %d, %v", 20-nice, err)
	}
	if session, err := syscall.Getpgid(recorder.PID); err != nil || session != recorder.PID {
		t.Errorf("the recorder is in the process group %d, %v", session, err)
	}
	must.Equal(t, "the recorder is", recorder, l.Guard)
	_, _ = program.Process.Kill(), program.Wait()
	p.Must(0, job, "epilog")
	r = p.report(p.keptReport(), "kept report", func(usage.Report) bool { return true })
	if !r.NoMPS || len(r.Clients) != 1 || r.ClientsSeen != 1 || r.ClientsPeak != 1 || r.BadEnds != 0 || r.End.IsZero() {
		t.Fatalf("%+v", r)
	}
	c := r.Clients[0]
	if c.PID != program.Process.Pid || c.GPU != 0 || c.Rank != 3 || c.Program != "cuda-client" || c.Outside ||
		c.PeakMiB < 2000 || c.Exit != "" || c.Ending != "" || c.End.IsZero() {
		t.Errorf("%+v", c)
	}
	if processes(r.GPUs[0]) != 1 || processes(r.GPUs[1]) != 0 || r.GPUs[0].Source != "GPM" || r.Mean().SMActive < 0 {
		t.Errorf("%+v", r.GPUs)
	}
	if log := p.Log(); !strings.Contains(log, `"step":"recorded"`) || strings.Contains(log, `"step":"summary"`) {
		t.Errorf("the summaries are those of jobs with MPS:\n%s", log)
	}
	p.Quiet()
}

// Without record = "all", a job without MPS gets nothing: the driver is not even asked. With it, a job without a GPU
// and a site without an interval get nothing.
func TestNothingIsRecordedUnasked(t *testing.T) {
	never := func(p testNode, _ *testnode.Job) { p.Facts(`usage_interval = "0s"`) }
	for name, c := range map[string]struct {
		policy string
		change func(testNode, *testnode.Job)
	}{
		"the default":         {"", func(testNode, *testnode.Job) {}},
		`record = "mps"`:      {"record = \"mps\"\n", func(testNode, *testnode.Job) {}},
		"a job without GPUs":  {"record = \"all\"\n", func(_ testNode, j *testnode.Job) { j.GPUs = "" }},
		"usage_interval = 0s": {"record = \"all\"\n", never},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestNode(t, c.policy+testnode.Default(), node.H200)
			if err := p.Sim.Node.Fail("nvmlInit_v2", 9, 0); err != nil { // whoever asks the driver logs that it fails
				t.Fatal(err)
			}
			job := p.Job(7, "0")
			job.Features = ""
			c.change(p, &job)
			p.Must(0, job, "prolog")
			if files, err := os.ReadDir(filepath.Join(p.Paths().Run(), "leases")); err == nil && len(files) > 0 {
				t.Errorf("the prolog has made %v", files)
			}
			log := p.Log()
			must.Hold(t, !strings.Contains(log, `"level":"warn"`) && strings.Contains(log, `"outcome":"not asked"`),
				"log: %s", log)
			p.Must(0, job, "epilog")
			if _, err := os.Lstat(p.keptReport()); err == nil {
				t.Error("there is a report")
			}
			p.Quiet()
		})
	}
}

// NVML hangs. The prolog has started the recorder all the same, and the epilog ends it: neither waits for NVML.
//
// Contract: U5
func TestAPrologDoesNotWaitForARecordersNVML(t *testing.T) {
	p, job := recordsAll(t)
	must.OK(t, p.Sim.Node.Delay("nvmlInit_v2", 1000000))
	p.Must(0, job, "prolog")
	l := p.Lease(7)
	if found := p.Audit(); l.Phase != lease.Opened || l.Guard.PID == 0 || l.GPUs[1].UUID != p.UUID(1) || len(found) > 0 {
		t.Errorf("lease %+v, audit %+v", l, found)
	}
	if log := p.Log(); strings.Contains(log, "the job is not recorded") {
		t.Errorf("the prolog has given up:\n%s", log)
	}
	p.Must(0, job, "epilog")
	p.Gone(l.Guard)
	p.Quiet()
}

// A recorder that hangs in the driver is killed, and its report is kept without the last sample.
func TestARecorderThatHangs(t *testing.T) {
	p, job := recorded(t)
	must.OK(t, p.Sim.Node.Delay("nvmlDeviceGetMemoryInfo", 1000000))
	p.SleepsInDriver(p.Recorder().PID)
	p.Must(0, job, "epilog")
	p.report(p.keptReport(), "kept report", func(r usage.Report) bool { return r.NoMPS && !r.End.IsZero() })
	p.Quiet()
}

// A recorder that no signal ends, as one in an uninterruptible call, keeps its lease and drains no node. Status names
// the lease, and reap closes it when the recorder has ended. Here another process has the recorder's lock.
func TestARecorderThatDoesNotEnd(t *testing.T) {
	p, job := recorded(t)
	p.killRecorder()
	lock := must.Get(os.Open(filepath.Join(p.Paths().Run(), "guards", "7")))(t)
	defer lock.Close()
	must.OK(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	p.Must(0, job, "epilog")
	if !p.Lease(7).NoMPS || !strings.Contains(p.Log(), "the node is not drained") {
		t.Errorf("the lease is gone:\n%s", p.Log())
	}
	if status := p.Ctl("status"); status.Code != 1 || !strings.Contains(status.Output, "lease-unfinished") {
		t.Errorf("status: %+v", status)
	}
	if reap := p.Ctl("reap"); reap.Code != 1 {
		t.Errorf("reap closes it although the recorder may live: %+v", reap)
	}
	lock.Close()
	if reap := p.Ctl("reap"); reap.Code != 0 || !strings.Contains(reap.Output, "job 7") {
		t.Errorf("reap: %+v", reap)
	}
	p.Quiet()
}

// If the epilog is lost, the recorder is a leftover: status names it, a job with MPS on the same GPUs is not disturbed,
// and reap ends it and keeps the report.
func TestALostEpilogOfARecordedJob(t *testing.T) {
	p, _ := recorded(t)
	recorder := p.Recorder()
	next := p.Job(8, "0,1")
	p.Must(0, next, "prolog")
	if p.Modes() != "33" || p.Ticket(8).RefusalReason != "" {
		t.Errorf("the next job: modes %s, %+v", p.Modes(), p.Ticket(8))
	}
	p.Must(0, next, "epilog")
	if reap := p.Ctl("reap", "--job", "7"); reap.Code != 0 {
		t.Errorf("reap: %+v", reap)
	}
	p.Gone(recorder)
	p.report(p.keptReport(), "kept report", func(r usage.Report) bool { return r.NoMPS && !r.End.IsZero() })
	p.Quiet()
}

// A refused job runs without MPS and is recorded, and its ticket has the reason. Status prints both.
func TestARefusedJobIsRecorded(t *testing.T) {
	const denies = "version = 1\nrecord = \"all\"\ntrigger { constraint = \"mps\" }\n" +
		"rule \"no\" {\n  when = true\n  deny = \"not here\"\n}\n"
	p := newTestNode(t, denies, node.H200)
	p.Facts(`usage_interval = "1s"`)
	job := p.Job(7, "0")
	p.Must(0, job, "prolog")
	if !p.Lease(7).NoMPS || p.Ticket(7).RefusalReason != "not here" {
		t.Errorf("%+v, %+v", p.Lease(7), p.Ticket(7))
	}
	p.report(p.runningReport(), "a sample", func(r usage.Report) bool { return len(r.GPUs[0].Samples) > 0 })
	status := p.Ctl("status")
	if status.Code != 0 || !strings.Contains(status.Output, "hpc1  rule no  recorded") &&
		!strings.Contains(status.Output, "hpc1  recorded") || !strings.Contains(status.Output, "no MPS: not here") {
		t.Errorf("status: %+v", status)
	}
	p.Must(0, job, "epilog")
	p.report(p.keptReport(), "kept report", func(r usage.Report) bool { return r.NoMPS })
	p.Quiet()
}

// Every program prints its commit and its usage for every user.
func TestEveryProgramSaysItsVersion(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	for _, program := range testnode.Programs {
		for flag, want := range map[string]string{"--version": `^([\w-]+ version )?slurm-mps \S+ \(go\S+\)\n$`, "--help": `(?s)^` + program + ` .*--root DIR`} {
			result, err := p.Run(p.Ctx, nil, program, flag)
			must.Hold(t, err == nil && result.Code == 0 && regexp.MustCompile(want).MatchString(result.Output),
				"%s %s: %+v, %v", program, flag, result, err)
		}
	}
}

// testNode is the node of one test, with the methods of these tests alone.
type testNode struct{ e2e.Node }

func newTestNode(t *testing.T, policy string, models ...node.Model) testNode {
	t.Helper()
	return testNode{e2e.NewNode(t, policy, models...)}
}
