// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// Contract: D1, M1
func TestAJobsLife(t *testing.T) {
	t.Parallel()
	for _, scope := range []string{"job", "gpu"} {
		t.Run(scope, func(t *testing.T) {
			p := newTestNode(t, testnode.Default(fmt.Sprintf("scope = %q", scope)), node.H200, node.H200, node.H200, node.H200)
			job := p.job(7, "1,3")
			p.must(0, job, "prolog")
			if got := p.modes(); got != "0303" {
				t.Errorf("modes %s, want the job's GPUs alone in EXCLUSIVE_PROCESS: 0303", got)
			}
			ticket := p.ticket(7)
			daemons := map[string]int{"job": 1, "gpu": 2}[scope]
			if len(ticket.Daemons) != daemons || len(ticket.Devices) != 2 || ticket.Devices[0].Minor != 1 || ticket.Devices[1].Minor != 3 {
				t.Errorf("ticket %+v", ticket)
			}
			for _, d := range ticket.Daemons {
				p.holdsDaemon(d)
			}
			p.must(0, job, "epilog")
			p.clean()
			p.must(0, job, "epilog")
			p.clean()
		})
	}
}

// holdsDaemon checks everything that the contract requires of a daemon's process.
func (p testNode) holdsDaemon(d lease.Daemon) {
	t := p.t
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", d.Proc.PID)
	status := read(t, proc+"status")
	for _, want := range []string{
		"Uid:\t2001\t2001\t2001\t2001\n", "Gid:\t2001\t2001\t2001\t2001\n", "Groups:\t2001 \n",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("status lacks %q:\n%s", want, status)
		}
	}
	if stat, err := site.ReadStat(d.Proc.PID); err != nil || stat.Session != d.Proc.PID || stat.Start != d.Proc.Start {
		t.Errorf("stat %+v, %v: want a session of its own", stat, err)
	}
	if cwd, err := os.Readlink(proc + "cwd"); cwd != "/" {
		t.Errorf("cwd %s, %v", cwd, err)
	}
	if got := read(t, proc+"oom_score_adj"); got != "0\n" {
		t.Errorf("oom_score_adj %s", got)
	}
	var files uint64
	for line := range strings.Lines(read(t, proc+"limits")) {
		fmt.Sscanf(line, "Max open files %d", &files)
	}
	if files < 16384 {
		t.Errorf("RLIMIT_NOFILE %d", files)
	}
	for fd := range 3 {
		if to, err := os.Readlink(fmt.Sprintf("%sfd/%d", proc, fd)); to != "/dev/null" {
			t.Errorf("fd %d is %s, %v", fd, to, err)
		}
	}
	var uuids []string
	for _, uuid := range d.Devices {
		uuids = append(uuids, string(uuid))
	}
	environment := strings.Split(strings.TrimRight(read(t, proc+"environ"), "\x00"), "\x00")
	slices.Sort(environment)
	if p.Sim == nil { // a machine's control program may be a script that adds its own variables
		environment = slices.DeleteFunc(environment, func(entry string) bool {
			return strings.HasPrefix(entry, "LD_LIBRARY_PATH=") || strings.HasPrefix(entry, "PWD=")
		})
	}
	want := []string{
		"CUDA_MPS_LOG_DIRECTORY=" + d.LogDir, "CUDA_MPS_PIPE_DIRECTORY=" + d.PipeDir,
		"CUDA_VISIBLE_DEVICES=" + strings.Join(uuids, ","), "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
	}
	if !slices.Equal(environment, want) {
		t.Errorf("environment %q, want %q", environment, want)
	}
}

// On some machines the control program is a script that runs the real program elsewhere. The prolog starts it with no
// signal blocked, although slurmd's prologs have some blocked, and with none ignored.
func TestAControlProgramThatIsAScript(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	script := filepath.Join(filepath.Dir(p.Root), "nvidia-cuda-mps-control")
	p.write(script, fmt.Sprintf("#!/bin/sh\n[ \"$1\" = -d ] && cat /proc/self/status >$CUDA_MPS_LOG_DIRECTORY/status\nexec %s \"$@\"\n", p.Sim.Program("nvidia-cuda-mps-control")))
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	p.write(p.Paths().ConfigFile(), fmt.Sprintf("nvml_library = %q\nmps_control = %q\n", p.Sim.NVML(), script))
	p.must(0, p.job(7, "0"), "prolog")
	status := read(t, filepath.Join(p.ticket(7).Daemons[0].LogDir, "status"))
	for _, field := range []string{"SigBlk:", "SigIgn:"} {
		_, rest, _ := strings.Cut(status, field)
		var signals uint64
		// 1 to 31; libc uses the signals above.
		if _, err := fmt.Sscanf(rest, "%x", &signals); err != nil || signals&0x7fffffff != 0 {
			t.Errorf("%s %x, %v:\n%s", field, signals, err, status)
		}
	}
	p.must(0, p.job(7, "0"), "epilog")
	p.clean()
}

func TestAJobThatAsksForNoMPS(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	job := p.job(7, "0")
	job.Features = "a100"
	p.must(0, job, "prolog")
	p.clean()
	p.must(0, job, "epilog")
	p.clean()
}

func TestAnEpilogWithoutAProlog(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	p.must(0, p.job(7, "0"), "epilog")
	p.clean()
}

func TestAPrologAgainAdopts(t *testing.T) {
	p := newTestNode(t, "", node.H200, node.H200)
	job := p.job(7, "0,1")
	p.must(0, job, "prolog")
	before := p.ticket(7)
	p.must(0, job, "prolog")
	if after := p.ticket(7); after.Daemons[0].Proc != before.Daemons[0].Proc {
		t.Errorf("the daemon was %v and is %v", before.Daemons[0].Proc, after.Daemons[0].Proc)
	}
	if !strings.Contains(p.log(), `"outcome":"adopted"`) {
		t.Errorf("not adopted:\n%s", p.log())
	}
	p.must(0, job, "epilog")
	p.clean()
}

func TestAPrologAfterItsDaemonDied(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	job := p.job(7, "0")
	p.must(0, job, "prolog")
	before := p.ticket(7).Daemons[0]
	if err := before.Proc.Kill(9); err != nil {
		t.Fatal(err)
	}
	p.gone(before.Proc)
	p.must(0, job, "prolog")
	if after := p.ticket(7).Daemons[0]; after.Proc == before.Proc || !after.Proc.Running() {
		t.Errorf("daemon %v after %v", after.Proc, before.Proc)
	}
	p.must(0, job, "epilog")
	p.clean()
}

func TestTwoJobsSideBySide(t *testing.T) {
	p := newTestNode(t, "", node.H200, node.H200)
	seven, eight := p.job(7, "0"), p.job(8, "1")
	p.must(0, seven, "prolog")
	p.must(0, eight, "prolog")
	if got := p.modes(); got != "33" {
		t.Errorf("modes %s", got)
	}
	p.must(0, seven, "epilog")
	if got := p.modes(); got != "03" {
		t.Errorf("after the first job: modes %s", got)
	}
	if !p.ticket(8).Daemons[0].Proc.Running() {
		t.Error("the other job's daemon is gone")
	}
	p.must(0, eight, "epilog")
	p.clean()
}

// A GPU whose job was never closed still belongs to that job. The next job's prolog drains the node, and the first
// job's epilog frees the GPU.
//
// Contract: R6
func TestAGPUThatAnotherJobHolds(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	p.must(0, p.job(7, "0"), "prolog")
	out := p.must(1, p.job(8, "0"), "prolog")
	uuid := p.ticket(7).Devices[0].UUID
	if want := fmt.Sprintf("prolog: cannot claim %s: job 7 holds it: its epilog has not closed it\n", uuid); out != want {
		t.Errorf("got %s want %s", out, want)
	}
	p.must(0, p.job(8, "0"), "epilog")
	if !p.ticket(7).Daemons[0].Proc.Running() || p.modes() != "3" {
		t.Error("the second job's epilog changed the first job's GPU")
	}
	p.must(0, p.job(7, "0"), "epilog")
	p.clean()
}

// Contract: R4
func TestAnotherBoot(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	p.must(0, p.job(7, "0"), "prolog")
	daemon := p.ticket(7).Daemons[0].Proc
	// The node has booted: no process runs, the modes have their defaults, and the records name another boot.
	if err := daemon.Kill(9); err != nil {
		t.Fatal(err)
	}
	for p.killLeft(); len(p.left()) > 0 && strings.Contains(fmt.Sprint(p.left()), "process"); {
		site.Sleep(p.ctx, time.Millisecond)
	}
	if err := p.LoseGroups(); err != nil {
		t.Fatal(err)
	}
	gpus, err := p.Sim.Node.GPUs()
	if err != nil {
		t.Fatal(err)
	}
	if err := gpus[0].SetMode(2); err != nil { // an admin sets it after the boot
		t.Fatal(err)
	}
	boot, err := site.BootID()
	if err != nil {
		t.Fatal(err)
	}
	for _, record := range []string{"leases/7.json", "tickets/7.json", "claims/" + string(p.uuid(0))} {
		path := filepath.Join(p.Paths().Run(), record)
		p.rewrite(path, strings.ReplaceAll(read(t, path), boot, "00000000-earlier"))
	}
	p.must(0, p.job(7, "0"), "epilog")
	if got := p.modes(); got != "2" {
		t.Errorf("a record of another boot changed a mode: %s", got)
	}
	if err := gpus[0].SetMode(0); err != nil {
		t.Fatal(err)
	}
	p.clean()
}
