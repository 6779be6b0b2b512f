// SPDX-License-Identifier: Apache-2.0

package mpsctl_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/doctor"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// healthyNode is a node without faults. Its slurm.conf and gres.conf are those of site/etc. Package doctor has the
// nodes with faults.
type healthyNode struct{ testNode }

const healthyName = "gpu01"

func newHealthyNode(t *testing.T) healthyNode {
	t.Helper()
	w := healthyNode{newTestNode(t, "", node.H200, node.H200)}
	hooks := filepath.Join(filepath.Dir(w.Root), "hooks")
	for _, program := range []string{"prolog", "epilog", "task-prolog"} {
		hook := filepath.Join(hooks, program)
		w.Write(hook, fmt.Sprintf("#!/bin/sh\nexec %s --root %s\n", filepath.Join(w.Bin, program), w.Root))
		must.OK(t, os.Chmod(hook, 0o755))
	}
	conf := strings.ReplaceAll(e2e.Read(t, "../../../site/etc/slurm.conf"), "/usr/libexec/slurm-mps", hooks)
	w.Write(w.Conf, strings.ReplaceAll(conf, "gpu:4", "gpu:2"))
	w.Write(w.Gres(), strings.ReplaceAll(e2e.Read(t, "../../../site/etc/gres.conf"), "[0-3]", "[0-1]"))
	w.Write(filepath.Join(filepath.Dir(w.Conf), "cgroup.conf"), "ConstrainDevices=yes\n")
	w.Write(w.Paths().Policy(), e2e.Read(t, "../../../site/etc/policy.hcl"))
	// The version that is simulated by default has known vulnerabilities.
	w.Write(filepath.Join(w.Sim.Node.Dir, "driver_version"), "580.178.04\n")
	return w
}

func (w healthyNode) doctor(args ...string) testnode.Result {
	return w.Ctl(append([]string{"doctor", "--slurm-conf", w.Conf, "--node", healthyName, "--slurmd", "none"}, args...)...)
}

// files returns all files of the node, with their modes and sizes.
func (w healthyNode) files() (all []string) {
	w.T.Helper()
	must.OK(w.T, filepath.Walk(filepath.Dir(w.Root), func(path string, info os.FileInfo, err error) error {
		if err == nil {
			all = append(all, fmt.Sprint(path, info.Mode(), info.Size()))
		}
		return err
	}))
	return all
}

// On a healthy node doctor exits with 0, prints one line about what it checked and changes no file. Its JSON has
// empty lists, not null.
func TestDoctorOfAHealthyNode(t *testing.T) {
	w := newHealthyNode(t)
	before := w.files()
	result := w.doctor()
	line := regexp.MustCompile(`^gpu01  [0-9-]+ [0-9:]+  \d+ checks: 7 programs, ` +
		regexp.QuoteMeta(w.Conf+", driver 580.178.04 (not proven: docs/measurements), 2 GPUs") + `\n$`)
	must.Hold(t, result.Code == 0 && line.MatchString(result.Output), "code %d: %s", result.Code, result.Output)
	raw := w.doctor("--json").Output
	for _, list := range []string{`"findings":[]`, `"errors":[]`, `"complete":true`} {
		must.Hold(t, strings.Contains(raw, list), "no %s in %s", list, raw)
	}
	var d doctor.Report
	decoder := json.NewDecoder(strings.NewReader(raw))
	decoder.DisallowUnknownFields()
	must.OK(t, decoder.Decode(&d))
	if c := d.Checked; d.Node != healthyName || c.SlurmConf != w.Conf || c.GPUs != 2 || c.Programs != 7 || c.Checks < 35 || c.Driver == "" {
		t.Errorf("doctor checked %+v", c)
	}
	if after := w.files(); !reflect.DeepEqual(after, before) {
		t.Errorf("doctor changed files:\n%v\n%v", before, after)
	}
}

// A job that runs, and one that has ended, are no findings. A user's change of the user's own daemon is a warning and no
// fault of the node: doctor exits with 0, as a health check needs. With --strict it exits with 1.
func TestDoctorBesideAJob(t *testing.T) {
	w := newHealthyNode(t)
	const id = 4370007
	job := w.Job(id, "0")
	job.Extra = append(job.Extra, "SLURMD_NODENAME="+healthyName)
	w.Must(0, job, "prolog")
	end := w.socket(id, 0)
	if result := w.doctor("--strict"); result.Code != 0 {
		t.Errorf("a job runs: %+v", result)
	}
	d := w.Ticket(id).Daemons[0]
	must.OK(t, d.Proc.Kill(unix.SIGSTOP))
	if result := w.doctor("-v"); result.Code != 0 || !strings.Contains(result.Output, "~ daemon-wedged") ||
		!strings.Contains(result.Output, "\n  ~   ended jobs have left nothing\n") || !strings.Contains(result.Output, "\n  ok  policy.hcl can be used\n") {
		t.Errorf("its daemon does not answer: %+v", result)
	}
	if result := w.doctor("--strict"); result.Code != 1 || !strings.HasSuffix(result.Output, "\n~ 1 warning\n") {
		t.Errorf("strict: %+v", result)
	}
	must.OK(t, d.Proc.Kill(unix.SIGCONT))
	end()
	w.Must(0, job, "epilog")
	if result := w.doctor("--strict"); result.Code != 0 {
		t.Errorf("the job has ended: %+v", result)
	}
}
