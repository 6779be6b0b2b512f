// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cgroup"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/state"
)

// sound is a node of which nothing was seen that is wrong.
func sound() node {
	return node{Name: "n1", Root: true, State: stateFolder{Path: "/run/slurm-mps", Memory: true, Bytes: 1 << 30, Files: 1 << 20}}
}

func onDriver(version string) func(*node) {
	return func(n *node) {
		n.Driver = &driverState{Version: version, GPUs: []device{{Major: 9, Persistent: true}}}
	}
}

// docs/operator.md shows a healthy node, with all checks.
func TestTheDocumentCountsTheChecks(t *testing.T) {
	page, err := os.ReadFile("../../docs/operator.md")
	if want := fmt.Sprintf("  %d checks: ", len(checks)); err != nil || !strings.Contains(string(page), want) {
		t.Errorf("docs/operator.md lacks %q, %v", want, err)
	}
}

// Slurm's version is judged by its branch. No release of 24.11 has the fixes, but Debian's 24.11.5 has them and cannot be
// told from SchedMD's, so nothing is reported. Other findings of a node without more of Slurm are not compared.
func TestSlurmPatched(t *testing.T) {
	for version, want := range map[string]bool{
		"25.05.8": true, "25.05.9": false, "25.11.10": false, "25.11.7": true, "22.05.8-1": true, "22.05.8": true, "24.11.7": false, "": false, "27.11.0": false,
	} {
		n := sound()
		n.Slurm = &slurmFiles{Version: version}
		_, found := judge(n)
		if got := slices.ContainsFunc(found, func(f state.Finding) bool { return f.Kind == "unpatched" }); got != want {
			t.Errorf("Slurm %s: unpatched: %v", version, got)
		}
	}
}

// A driver is proven if it was tried on each type of GPU of the node.
func TestProven(t *testing.T) {
	for want, all := range map[bool][]driverState{
		true: {drivers("580.159.04", "NVIDIA H200"), drivers("580.159.04", "NVIDIA H200", "NVIDIA H100 80GB HBM3")},
		false: {drivers("580.159.04"), drivers("580.159.04", "NVIDIA GH200 480GB"),
			drivers("580.178.04", "NVIDIA H200"), drivers("580.159.04", "NVIDIA H200", "NVIDIA B200")},
	} {
		for _, d := range all {
			must.Equal(t, fmt.Sprintf("%+v", d), d.proven(), want)
		}
	}
}

func drivers(version string, names ...string) driverState {
	d := driverState{Version: version}
	for _, name := range names {
		d.GPUs = append(d.GPUs, device{Device: site.Device{Name: name}})
	}
	return d
}

// Debian's sshd includes the session's modules by @include, Enterprise Linux's by include.
func TestOpensSession(t *testing.T) {
	pam := t.TempDir()
	for name, text := range map[string]string{
		"debian": "auth required pam_nologin.so\n@include common-session\n", "common-session": "session optional pam_systemd.so\n",
		"rhel": "session include password-auth\n", "password-auth": "-session optional pam_systemd.so\n",
		"adopt": "# session optional pam_systemd.so\n#@include common-session\naccount required pam_slurm_adopt.so\n", "itself": "@include itself\n",
	} {
		must.OK(t, os.WriteFile(filepath.Join(pam, name), []byte(text), 0o644))
	}
	for service, want := range map[string]bool{"debian": true, "rhel": true, "adopt": false, "itself": false, "none": false} {
		if opensSession(pam, service, 3) != want {
			t.Errorf("%s: %v", service, !want)
		}
	}
}

// What the simulated node of cmd/e2e/mpsctl/doctor_test.go cannot have.
func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*node)
		want  []state.Kind
	}{
		"nothing seen, nothing wrong": {func(*node) {}, nil},
		"state on a disk":             {func(n *node) { n.State.Memory = false }, []state.Kind{"state-on-disk"}},
		"a root of its own on a disk": {func(n *node) { n.State.Memory, n.Paths = false, site.Paths{Root: "/x"} }, nil},
		"no names left":               {func(n *node) { n.State.Files = minNames - 1 }, []state.Kind{"state-room"}},
		"a state that cannot be seen": {func(n *node) { n.State = stateFolder{Err: errors.New("input/output error")} }, []state.Kind{"state-folder"}},
		"a state of a user":           {func(n *node) { n.State.Exists, n.State.UID, n.State.Mode = true, 7, 0o755|1<<31 }, []state.Kind{"state-folder"}},
		"a state as it should be":     {func(n *node) { n.State.Exists, n.State.Mode = true, 0o755|1<<31 }, nil},
		"a driver without a GPU":      {func(n *node) { n.Driver = &driverState{Version: "580"} }, []state.Kind{"no-gpu"}},
		"few files that may be more":  {func(n *node) { n.Limits = []limit{{"slurmd", 1024, true}} }, nil},
		"few files": {func(n *node) {
			n.Limits = []limit{{"slurmd", mps.EnoughFiles - 1, false}, {"x", mps.EnoughFiles, false}}
		}, []state.Kind{"open-files"}},
		"a kernel that duplicates no files":  {func(n *node) { n.Guard.NoGetfd = errors.New("function not implemented") }, []state.Kind{"guard"}},
		"no control groups":                  {func(n *node) { n.NoGroups = cgroup.ErrNone }, []state.Kind{"control-groups"}},
		"files in /dev/shm that do not stay": {func(n *node) { n.LosesIPC = true }, []state.Kind{"remove-ipc"}},
		"a locked ptrace":                    {func(n *node) { n.Guard.Scope = 3 }, []state.Kind{"guard"}},
		"an older driver": {func(n *node) {
			n.Driver = &driverState{Version: "535.42.01", GPUs: []device{{Major: 9, Persistent: true}}}
		},
			[]state.Kind{"guard", "unpatched"}},
		"a driver that is new enough": {func(n *node) {
			n.Driver = &driverState{Version: "535.43.02", GPUs: []device{{Major: 9, Persistent: true}}}
		}, []state.Kind{"unpatched"}},
		"a driver with known holes":     {onDriver("595.71.05"), []state.Kind{"unpatched"}},
		"the last driver with holes":    {onDriver("610.57.03"), []state.Kind{"unpatched"}},
		"a driver of two numbers":       {onDriver("595.71"), []state.Kind{"unpatched"}},
		"a driver with the fixes":       {onDriver("580.178.04"), nil},
		"a later driver":                {onDriver("610.100.01"), nil},
		"a branch without fixes":        {onDriver("570.211.01"), []state.Kind{"unpatched"}},
		"an old branch":                 {onDriver("535.183.01"), []state.Kind{"unpatched"}},
		"a branch before a mended one":  {onDriver("590.48.01"), []state.Kind{"unpatched"}},
		"a branch that is not known":    {onDriver("620.70.06"), []state.Kind{"unpatched"}},
		"a branch that is not listed":   {onDriver("630.1.01"), nil},
		"a branch with a longer name":   {onDriver("5800.1.01"), nil},
		"a version that is not numbers": {onDriver("580.x"), nil},
		"versions that do not say": {func(n *node) {
			n.Programs = []program{{Version: "a"}, {Version: ""}, {Version: "a"}}
		}, nil},
	} {
		n := sound()
		n.Programs = nil
		c.spoil(&n)
		for i := range n.Programs {
			n.Programs[i].Name = "mpsctl" // which runs: its mode is not judged
		}
		var got []state.Kind
		_, found := judge(n)
		for _, f := range found {
			got = append(got, f.Kind)
			must.Hold(t, (f.Where != "" || f.Kind == "state-folder") && f.What != "" && f.Fix != "",
				"%s: half a finding: %+v", name, f)
			e2e.CanBePasted(t, f.Fix)
		}
		must.Hold(t, slices.Equal(got, c.want), "%s: %v, want %v", name, got, c.want)
	}
}

// The packages install the files that repairs name.
func TestRepairsNameInstalledFiles(t *testing.T) {
	list := must.Get(os.ReadFile("../pkg/nfpm.yaml"))(t)
	for _, path := range []string{site.Libexec + "/prolog", shipped + "policy.hcl", shipped + "site.hcl", examples + "gres.conf"} {
		must.Hold(t, strings.Contains(string(list), ", dst: "+path+", "), "no package has %s", path)
	}
}

// Every row of known.json has what doctor compares: releases are versions.
func TestKnownIsWhole(t *testing.T) {
	must.Have(t, len(known().Proven) != 0 && len(known().Patched) != 0, "known.json cannot be read")
	version := regexp.MustCompile(`^[1-9][0-9]+(\.[0-9]+)+$`)
	for _, d := range known().Proven {
		must.Hold(t, version.MatchString(d.Driver) && d.GPU != "", "half a row: %+v", d)
	}
	for _, p := range known().Patched {
		if p.What != "driver" && p.What != "Slurm" || p.First != "" && !version.MatchString(p.First) || p.Source == "" || p.Branches == "" {
			t.Errorf("half a row: %+v", p)
		}
	}
}
