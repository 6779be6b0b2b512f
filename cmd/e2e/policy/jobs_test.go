// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

const triggered = `version = 1

trigger {
  constraint = "mps"
  comment    = "mps"
  option     = true
}
`

// A job can ask for MPS in three ways, and its options narrow what the rule grants. Each case is the whole life of a
// job.
func TestAJobThatAsksWithOptions(t *testing.T) {
	p := newTestNode(t, triggered+`
rule "mps" {
  when  = true
  allow = ["share", "scope", "ceiling", "max_clients"]
  grant {
    max_clients = 16
  }
}
`, node.H200, node.H200)
	for _, c := range []struct {
		name  string
		extra []string
		want  string
	}{
		{"the option alone", []string{"SPANK_MPS="}, "job overlap:2 100 16"},
		{"the option with options", []string{"SPANK_MPS=share=even,scope=gpu,ceiling=50"}, "gpu even 50 16"},
		{"the comment", []string{"SLURM_JOB_COMMENT=mps"}, "job overlap:2 100 16"},
		{"the comment with options", []string{"SLURM_JOB_COMMENT=mps:max_clients=4"}, "job overlap:2 100 4"},
		{"both", []string{"SLURM_JOB_COMMENT=mps:max_clients=4", "SPANK_MPS=scope=gpu"}, "gpu overlap:2 100 4"},
	} {
		job := p.Job(7, "0,1")
		job.Features, job.Extra = "a100", c.extra
		p.Must(0, job, "prolog")
		ticket := p.Ticket(7)
		g := ticket.Grant
		if got := fmt.Sprint(g.Scope, " ", g.Share.String(), " ", g.Ceiling, " ", g.MaxClients); got != c.want || ticket.Rule != "mps" {
			t.Errorf("%s: rule %q gives %s, want %s", c.name, ticket.Rule, got, c.want)
		}
		p.Close(job)
	}
}

// A rule may ask about the user's groups, the node and the GPU. The lease keeps what the rule asked, for mpsctl.
func TestLookUps(t *testing.T) {
	p := newTestNode(t, triggered+`
rule "all" {
  when = contains(job.groups, "daemon") && contains(node.features, "fast") && node.gpus == 2 && startswith(node.driver, "580.") && gpu.model == "H200" && gpu.product == "NVIDIA H200" && gpu.sms == 132 && !gpu.mig
  grant {
    memory = gpu.memory > 140000 ? "16G" : "8G"
  }
}
rule "none" {
  when = true
  deny = "${join(",", job.groups)} ${join(",", node.features)} ${node.gpus} ${node.driver} ${gpu.model} ${gpu.sms} ${gpu.memory} ${gpu.mig}"
}
`, node.H200, node.H200)
	p.Write(p.Conf, "NodeName=DEFAULT Features=slow\nNodeName=n1 Gres=gpu:2 Features=mps,fast\n")
	job := p.Job(7, "1")
	job.GID = 1
	p.Must(0, job, "prolog")
	ticket := p.Ticket(7)
	must.Hold(t, ticket.Rule == "all" && ticket.Grant.Memory.String() == "16384M",
		"rule %q, memory %q, refused %q", ticket.Rule, ticket.Grant.Memory, ticket.RefusalReason)
	var asked policy.Request
	if err := json.Unmarshal(p.Lease(7).Request, &asked); err != nil || asked.GPU.SMs != 132 || asked.NodeGPUs != 2 ||
		asked.Groups[0] != "daemon" || asked.Requested[0] != "mps" {
		t.Errorf("the lease has the request %+v, %v", asked, err)
	}
	p.Close(job)
}

func (p testNode) kept(job uint32) string {
	return filepath.Join(filepath.Dir(p.Paths().Log()), "jobs", fmt.Sprint(job))
}

// The logs of a daemon are kept as the grant requires, and the job's group can read them.
func TestKeepLogs(t *testing.T) {
	t.Parallel()
	kill := func(p testNode) {
		must.OK(p.T, p.Ticket(7).Daemons[0].Proc.Kill(9))
	}
	for _, c := range []struct {
		keep    string
		trouble func(testNode)
		kept    bool
	}{
		{"never", kill, false}, {"on_failure", func(testNode) {}, false}, {"on_failure", kill, true}, {"always", func(testNode) {}, true},
	} {
		t.Run(fmt.Sprint(c.keep, c.kept), func(t *testing.T) {
			p := newTestNode(t, triggered+fmt.Sprintf("rule \"r\" {\n  when = true\n  grant {\n    keep_logs = %q\n    scope = \"gpu\"\n  }\n}\n", c.keep),
				node.H200, node.H200)
			p.Must(0, p.Job(7, "0,1"), "prolog")
			said := e2e.Read(t, filepath.Join(p.Ticket(7).Daemons[1].LogDir, "control.log"))
			c.trouble(p)
			p.Close(p.Job(7, "0,1"))
			path := filepath.Join(p.kept(7), "1", "control.log")
			info, err := os.Stat(path)
			if !c.kept {
				if _, err := os.Stat(p.kept(7)); !os.IsNotExist(err) {
					t.Errorf("logs are kept: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, p.Log())
			}
			st := info.Sys().(*syscall.Stat_t)
			if info.Mode().Perm() != 0o640 || st.Uid != 0 || st.Gid != e2e.GID {
				t.Errorf("%s is %v of %d:%d", path, info.Mode(), st.Uid, st.Gid)
			}
			if got := e2e.Read(t, path); said == "" || !strings.HasPrefix(got, said) {
				t.Errorf("kept %q of %q", got, said)
			}
		})
	}
}

// If a daemon does not start, its log is kept, because an admin needs this log most.
func TestKeepLogsOfAPrologThatFails(t *testing.T) {
	p := newTestNode(t, triggered+"rule \"r\" {\n  when = true\n  grant {\n    keep_logs = \"on_failure\"\n  }\n}\n", node.H200)
	p.ControlIs("#!/bin/sh\n[ \"$1\" = -d ] && echo it is broken >$CUDA_MPS_LOG_DIRECTORY/control.log\nexit 1\n")
	p.Must(1, p.Job(7, "0"), "prolog")
	p.Clean()
	must.Equal(t, "kept", e2e.Read(t, filepath.Join(p.kept(7), "0", "control.log")), "it is broken\n")
}

// keep_logs follows no link, because the user owns the folder from which root reads the logs.
func TestKeepLogsFollowsNoLink(t *testing.T) {
	p := newTestNode(t, triggered+"rule \"r\" {\n  when = true\n  grant {\n    keep_logs = \"always\"\n    scope = \"gpu\"\n  }\n}\n", node.H200,
		node.H200, node.H200, node.H200)
	secret := filepath.Join(filepath.Dir(p.Root), "secret")
	must.OK(t, os.WriteFile(secret, []byte("secret"), 0o600))
	job := p.Job(7, "0,1,2,3")
	p.Must(0, job, "prolog")
	var logs []string
	for _, d := range p.Ticket(7).Daemons {
		logs = append(logs, filepath.Join(d.LogDir, "control.log"))
	}
	for _, log := range logs {
		must.OK(t, os.Remove(log))
	}
	// There are four bad logs: a link, a pipe without a writer, a hard link to root's file, and a log that is too
	// long.
	must.OK(t, os.Symlink(secret, logs[0]))
	must.OK(t, syscall.Mkfifo(logs[1], 0o666))
	ours := filepath.Join(filepath.Dir(filepath.Dir(logs[2])), "ours") // on the same file system
	must.OK(t, os.WriteFile(ours, []byte("secret"), 0o600))
	must.OK(t, os.Link(ours, logs[2]))
	long := strings.Repeat("x", 5<<20) + "the end\n"
	must.OK(t, os.WriteFile(logs[3], []byte(long), 0o600))
	must.OK(t, os.Chown(logs[3], int(e2e.UID), int(e2e.GID)))
	p.Close(job)
	for n := range 3 {
		if content, err := os.ReadFile(filepath.Join(p.kept(7), fmt.Sprint(n), "control.log")); !os.IsNotExist(err) {
			t.Errorf("log %d is kept: %q, %v", n, content, err)
		}
	}
	got := e2e.Read(t, filepath.Join(p.kept(7), "3", "control.log"))
	if head := fmt.Sprintf("(%d bytes before this are not kept)\n", len(long)-4<<20); !strings.HasPrefix(got, head) ||
		len(got) != len(head)+4<<20 || !strings.HasSuffix(got, "the end\n") {
		t.Errorf("%d bytes are kept: %.80q", len(got), got)
	}
}

// testNode is the node of one test, with the methods of these tests alone.
type testNode struct{ e2e.Node }

func newTestNode(t *testing.T, policy string, models ...node.Model) testNode {
	t.Helper()
	return testNode{e2e.NewNode(t, policy, models...)}
}
