// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/doctor"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/spf13/cobra"
)

// Doctor takes the node's name and slurm.conf from the variables that slurmd sets, unless flags name them. It exits with
// 1 if it finds a fault, as a missing slurm.conf is.
func TestDoctorAsksTheEnvironment(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "slurm.conf")
	for _, c := range []struct {
		args       []string
		node, conf string
	}{
		{nil, "gpu01", conf},
		{[]string{"--node", "gpu02", "--slurm-conf", conf + "2"}, "gpu02", conf + "2"},
	} {
		var out, complaint bytes.Buffer
		code := command.Run(cli.Process{Args: append([]string{"--root", dir, "doctor", "--json", "--slurmd", "none"}, c.args...),
			Env: []string{"SLURM_CONF=" + conf, "SLURMD_NODENAME=gpu01"}, Out: &out, Err: &complaint},
			func(call *command.Invocation) *cobra.Command { return newRoot(call, doctorCommand) })
		var r doctor.Report
		err := json.Unmarshal(out.Bytes(), &r)
		if err != nil || code != 1 || r.Node != c.node || r.Checks != nil ||
			!slices.ContainsFunc(r.Findings, func(f state.Finding) bool { return f.Kind == "slurm-conf" && f.Where == c.conf }) {
			t.Errorf("%q: code %d, %v, %+v, %s", c.args, code, err, r, complaint.String())
		}
	}
	for args, want := range map[string]string{
		"--slurm-conf x": `cannot use --slurm-conf "x": give an absolute path`,
		"--slurmd x":     `cannot use --slurmd "x": give an absolute path, or none`,
		"more":           `cannot take "more"`,
		"--bogus":        "cannot read flags: unknown flag: --bogus",
	} {
		code, _, complaint := runRoot(doctorCommand, append([]string{"doctor"}, strings.Fields(args)...)...)
		if code != cli.ExitUsage || !strings.HasPrefix(complaint, "mpsctl: "+want) {
			t.Errorf("%s: %d, %s", args, code, complaint)
		}
	}
}

// The text has the checks if they were asked for, each finding, and the sums at its end.
func TestDoctorText(t *testing.T) {
	r := doctor.Report{Node: "n1", Findings: []state.Finding{{Kind: "devices-open", Level: state.Warning, Where: "cgroup.conf:1", What: "w", Fix: "f"}}}
	r.Checked.Checks, r.Checked.Programs, r.Checked.GPUs = 2, 7, 1
	text := doctorText(r, command.Screen{})
	if !strings.Contains(text, "  2 checks: 7 programs, no slurm.conf, no driver, 1 GPU\n") || !strings.Contains(text, "~ devices-open  ") ||
		!strings.HasSuffix(text, "\n~ 1 warning\n") {
		t.Error(text)
	}
	r.Complete, r.Findings[0].Level = true, state.Note
	if text = doctorText(r, command.Screen{}); !strings.HasSuffix(text, "\n- 1 note\n") || r.Failed(true) {
		t.Errorf("a note: %s", text)
	}
}
