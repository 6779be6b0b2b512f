// SPDX-License-Identifier: Apache-2.0

package frame

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/prolog"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// emptyNode is a node without any file of ours, with these files below its root.
func emptyNode(t *testing.T, files map[string]string) site.Paths {
	t.Helper()
	must.Root(t)
	paths := site.Paths{Root: t.TempDir()}
	for path, content := range files {
		write(t, filepath.Join(paths.Root, path), content)
	}
	return paths
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.OK(t, os.WriteFile(path, []byte(content), 0o644))
}

const (
	policyPath = "etc/slurm-mps/policy.hcl"
	goodPolicy = "version = 1\nrule \"all\" {\n  when = contains(job.requested, \"mps\")\n  grant {}\n}\n"
)

func runOn(paths site.Paths, constraints ...string) (prolog.Outcome, error) {
	return runJob(paths, io.Discard, zerolog.Nop(), slurm.Job{Job: policy.Job{ID: 7, UID: 2001, GID: 2001, Requested: constraints}})
}

// A job that does not ask for MPS fails for no file of ours, and its prolog makes none.
func TestAJobThatDoesNotAsk(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"without any file": {},
		"torn files":       {policyPath: "rule {", "etc/slurm-mps/site.hcl": "no = such"},
	} {
		paths := emptyNode(t, files)
		if outcome, err := runOn(paths, "avx"); outcome != prolog.NotRequested || err != nil {
			t.Errorf("%s: %s, %v", name, outcome, err)
		}
		if _, err := os.Lstat(paths.Run()); err == nil {
			t.Errorf("%s: it has made %s", name, paths.Run())
		}
	}
}

// A job that asks for MPS fails on a node that has never had a usable policy.
//
// Contract: R11
func TestAJobThatAsksWithoutAPolicy(t *testing.T) {
	outcome, err := runOn(emptyNode(t, map[string]string{policyPath: "rule {"}), "mps")
	must.Hold(t, outcome == prolog.Failed && err != nil && strings.HasPrefix(err.Error(), "cannot read policy: "),
		"%s, %v", outcome, err)
}

// The last policy that could be used decides while the file cannot be used. The log names the fault.
//
// Contract: R11
func TestTheLastUsablePolicy(t *testing.T) {
	paths := emptyNode(t, map[string]string{policyPath: goodPolicy})
	must.Get(readPolicy(paths, zerolog.Nop()))(t)
	write(t, paths.Policy(), "rule {")
	var log bytes.Buffer
	rules, err := readPolicy(paths, zerolog.New(&log))
	must.Hold(t, err == nil && len(rules.Rules) == 1 && rules.Rules[0].Name == "all", "rules %+v, %v", rules.Rules, err)
	if !strings.Contains(log.String(), `"level":"error"`) || !strings.Contains(log.String(), "policy.hcl") {
		t.Errorf("the log has %s", log.String())
	}
}

// If nothing of the job is on the node, a /run that cannot be used does not fail the epilog.
func TestAnEpilogOnANodeWithABrokenRun(t *testing.T) {
	for name, c := range map[string]struct {
		ticket, fails bool
	}{"nothing of the job": {false, false}, "a ticket of the job": {true, true}} {
		paths := emptyNode(t, nil)
		write(t, filepath.Join(paths.Run(), "guards"), "a file in place of the folder")
		if c.ticket {
			write(t, filepath.Join(paths.Run(), "tickets", "7.json"), "{}")
		}
		if err := closeJob(paths, io.Discard, zerolog.Nop(), 7); (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A call of the driver that hangs, and no context can end, does not hold up the program. A function that ends in time
// gives its own result.
//
// Contract: T2
func TestAFunctionThatHangs(t *testing.T) {
	released := make(chan struct{})
	defer close(released)
	_, err := within(10*time.Millisecond, 10*time.Millisecond, func(context.Context) (int, error) {
		<-released
		return 0, nil
	})
	must.Hold(t, err != nil && strings.HasPrefix(err.Error(), "cannot finish within 20ms: "), "the error is %v", err)
	value, err := within(time.Minute, 0, func(context.Context) (int, error) { return 3, nil })
	must.Hold(t, value == 3 && err == nil, "%d, %v", value, err)
}

// The GRES of a node are those of gres.conf beside slurm.conf, or of the file that site.hcl names, and those of
// slurm.conf. A node that has registered itself has no line there.
func TestGresAndFeatures(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "slurm.conf"), "NodeName=n1 Gres=gpu:2,shard:8 Feature=mps,avx\n")
	write(t, filepath.Join(dir, "gres.conf"), "Name=gpu File=/dev/nvidia[0-1]\n")
	write(t, filepath.Join(dir, "other.conf"), "Name=gpu File=/dev/nvidia3\n")
	job := slurm.Job{Job: policy.Job{ID: 7, Node: "n1"}, Conf: filepath.Join(dir, "slurm.conf")}
	gres, err := node{}.Gres(job)
	must.Hold(t, err == nil && len(gres.Entries) == 2 && slices.Equal(gres.Shared, []string{"shard"}),
		"%+v, %v", gres, err)
	named := node{config: site.Config{GresConf: filepath.Join(dir, "other.conf")}}
	if gres, err := named.Gres(job); err != nil || len(gres.Entries) != 1 || gres.Entries[0].Minor != 3 {
		t.Errorf("%+v, %v", gres, err)
	}
	if features, err := (node{}).Features(job); err != nil || !slices.Equal(features, []string{"mps", "avx"}) {
		t.Errorf("%q, %v", features, err)
	}
	job.Node = "n2"
	if features, err := (node{}).Features(job); err != nil || features != nil {
		t.Errorf("%q, %v", features, err)
	}
	job.Conf = ""
	if _, err := (node{}).Features(job); err == nil {
		t.Error("without a slurm.conf the features cannot be known")
	}
}
