// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"golang.org/x/sys/unix"
)

// asksNot runs prolog and epilog for a job that does not ask for MPS.
func (p testNode) asksNot(id uint32) {
	p.T.Helper()
	job := p.Job(id, "")
	job.Features = ""
	p.Must(0, job, "prolog")
	p.Must(0, job, "epilog")
}

// findings are the findings of a command of mpsctl, by their kind.
func (p testNode) findings(command string) map[string]string {
	p.T.Helper()
	var report struct {
		Findings []struct{ Kind, Level, What, Fix string }
	}
	result := p.Ctl(command, "--json")
	if err := json.Unmarshal([]byte(result.Output), &report); err != nil {
		p.T.Fatalf("%s: %v: %s", command, err, result.Output)
	}
	found := map[string]string{}
	for _, f := range report.Findings {
		found[f.Kind] = f.Level + " " + f.What + " " + f.Fix
	}
	return found
}

// If a policy breaks, jobs that ask for MPS get what the last usable policy gave. Other jobs are not affected.
//
// Contract: R11
func TestABrokenPolicyStopsNoOne(t *testing.T) {
	t.Parallel()
	const trigger, rule = "version = 1\ntrigger {\n  constraint = \"mps\"\n}\n", "rule \"kept\" {\n  when = true\n  grant {\n  }\n}\n"
	for name, c := range map[string]struct {
		policy string
		breaks func(p testNode)
	}{
		"a mistake": {trigger + rule, func(p testNode) { p.Write(p.Paths().Policy(), trigger+"rule \"x\" {") }},
		"no file":   {trigger + rule, func(p testNode) { os.Remove(p.Paths().Policy()) }},
		"another's": {trigger + rule, func(p testNode) { os.Chown(p.Paths().Policy(), int(e2e.UID), int(e2e.GID)) }},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestNode(t, c.policy, node.H200)
			p.asksNot(6)
			kept := filepath.Join(p.Paths().Kept(), "policy.json")
			var first, later unix.Stat_t
			if err := unix.Stat(kept, &first); err != nil || first.Mode&0o777 != 0o600 {
				t.Errorf("the copy: %v, mode %o", err, first.Mode)
			}
			p.Must(0, p.Job(7, "0"), "prolog")
			p.Must(0, p.Job(7, "0"), "epilog")
			if err := unix.Stat(kept, &later); err != nil || later.Ino != first.Ino || later.Mtim != first.Mtim {
				t.Errorf("the copy is written again, although nothing has changed: %v", err)
			}
			if found := p.findings("status"); found["policy"] != "" {
				t.Errorf("findings while all is well: %q", found)
			}
			c.breaks(p)
			p.asksNot(8)
			p.Must(0, p.Job(9, "0"), "prolog")
			if rule := p.Ticket(9).Rule; rule != "kept" {
				t.Errorf("rule %q decides", rule)
			}
			level := "warning " // jobs run
			if name == "another's" {
				level = "fault "
			}
			for _, command := range []string{"status", "audit", "doctor"} {
				found := p.findings(command)["policy"]
				if !strings.Contains(found, " is used") || command == "doctor" && !strings.HasPrefix(found, level) {
					t.Errorf("%s: %q", command, found)
				}
			}
			for _, command := range [][]string{{"check"}, {"explain", "--constraint", "mps"}} {
				result := p.Ctl(append([]string{"policy"}, command...)...)
				instead := "mpsctl: cannot use " + p.Paths().Policy() + ": the one that was kept on "
				if !strings.Contains(result.Output, instead) || result.Code != 1 {
					t.Errorf("%s: %+v", command, result)
				}
			}
			p.Must(0, p.Job(9, "0"), "epilog")
			if name == "no file" {
				p.writeKept(kept, c.policy)
			}
			if !strings.Contains(p.Log(), "the policy cannot be used: the one that was kept on ") {
				t.Errorf("the log:\n%s", p.Log())
			}
			p.Clean()
		})
	}
}

// writeKept brings a missing policy back from its copy, by the command that doctor names.
func (p testNode) writeKept(kept, want string) {
	p.T.Helper()
	command := "jq -j '.files[0].text' " + kept + " >" + p.Paths().Policy()
	if fix := p.findings("doctor")["policy"]; !strings.HasSuffix(fix, " "+command) {
		p.T.Errorf("doctor: %q", fix)
	}
	if out, err := exec.CommandContext(p.Ctx, "sh", "-c", command).CombinedOutput(); err != nil {
		p.T.Errorf("%s: %v: %s", command, err, out)
	}
	if text := e2e.Read(p.T, p.Paths().Policy()); text != want {
		p.T.Errorf("the policy is\n%s", text)
	}
	if found := p.findings("doctor")["policy"]; found != "" {
		p.T.Errorf("afterwards: %s", found)
	}
}

// If the site's file breaks, its last usable copy is used. The file is read only for jobs that ask for MPS.
//
// Contract: R11
func TestABrokenSiteFileStopsNoOne(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	good := e2e.Read(t, p.Paths().ConfigFile())
	p.Facts("mps_controll = 1")
	p.asksNot(6)
	out := p.Must(1, p.Job(7, "0"), "prolog") // with the defaults, which are for another machine
	if !strings.Contains(out, `An argument named "mps_controll" is not expected here.`) || strings.Contains(p.Log(), p.Sim.NVML()) {
		t.Errorf("%s\n%s", out, p.Log())
	}
	p.Must(0, p.Job(7, "0"), "epilog")
	p.Write(p.Paths().ConfigFile(), good)
	p.Must(0, p.Job(8, "0"), "prolog")
	p.Must(0, p.Job(8, "0"), "epilog")
	p.Facts("mps_controll = 1")
	p.Must(0, p.Job(9, "0"), "prolog")
	for _, command := range []string{"status", "audit", "doctor"} {
		if found := p.findings(command); !strings.Contains(found["site-file"], " is used") {
			t.Errorf("%s: %q", command, found)
		}
	}
	p.Must(0, p.Job(9, "0"), "epilog")
	if !strings.Contains(p.Log(), "the site's file cannot be used: the one that was kept on ") {
		t.Errorf("the log:\n%s", p.Log())
	}
	p.Clean()
}

// If /run is full or read-only, from the start or later, no job fails that did not ask for MPS. The same holds if
// /var/lib cannot be written.
func TestARunThatCannotBeWrittenStopsNoOne(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	run := filepath.Join(p.Root, "run")
	must.OK(t, os.MkdirAll(run, 0o755))
	mount := func(path string, flags uintptr, options string) {
		t.Helper()
		must.OK(t, unix.Mount("tmpfs", path, "tmpfs", flags, options))
	}
	off := func(path string) {
		t.Helper()
		must.OK(t, unix.Unmount(path, unix.MNT_DETACH))
	}
	p.Must(0, p.Job(5, "0"), "prolog") // so that the folders exist
	p.Must(0, p.Job(5, "0"), "epilog")
	for name, options := range map[string]string{"full": "nr_inodes=1,mode=0755", "small": "size=4k,nr_inodes=8,mode=0755"} {
		mount(run, 0, options)
		p.asksNot(6)
		t.Log(name)
		p.Must(1, p.Job(7, "0"), "prolog")
		p.Must(0, p.Job(7, "0"), "epilog")
		off(run)
	}
	mount(run, unix.MS_RDONLY, "mode=0755")
	p.asksNot(6)
	off(run)
	// /run becomes read-only while a job has its lease. The epilog of this job fails, and no other epilog does.
	mount(run, 0, "mode=0755")
	p.Must(0, p.Job(8, "0"), "prolog")
	must.OK(t, errors.Join(unix.Mount(run, run, "", unix.MS_BIND, ""), unix.Mount("", run, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")))
	p.asksNot(9)
	p.Must(1, p.Job(8, "0"), "epilog")
	off(run)
	p.Must(0, p.Job(8, "0"), "epilog")
	off(run)
	kept := p.Paths().Kept()
	must.OK(t, os.RemoveAll(filepath.Join(kept, "policy.json")))
	mount(kept, unix.MS_RDONLY, "mode=0755")
	p.asksNot(10)
	p.Must(0, p.Job(11, "0"), "prolog")
	p.Must(0, p.Job(11, "0"), "epilog")
	off(kept)
	if !strings.Contains(p.Log(), "the policy is not kept for the day when it cannot be read") {
		t.Errorf("the log:\n%s", p.Log())
	}
	p.Clean()
}
