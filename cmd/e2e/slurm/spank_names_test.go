// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// ownOption is Slurm's variable for the option of our plugin.
const ownOption = "_SLURM_SPANK_OPTION_slurm_mps_mps"

// Names and values of any length and with any bytes, for the prolog and in the job's environment, drain no node and end
// no daemon of Slurm's beside our plugin. What comes to the policy as the option is one that it can use, or the ranks
// print why not.
//
// Contract: D1
func TestNamesOfSPANKVariables(t *testing.T) {
	s := newSpanked(t, lab.Options{})
	even, x := "MPS=share=even", func(n int) string { return strings.Repeat("x", n) }
	lengths := []string{even, "EMPTY=", "NEWLINE=a\nSLURM_JOB_UID=0\n", "EQUALS==a=b=",
		"=x", "=", "", "noequals", "a\nb=c", "\n=x", "é\xff\x01=x", "SPANK_=x"}
	for _, n := range []int{249, 250, 255, 256, 1017, 1018, 1023, 1024, 1025, 65000} {
		lengths = append(lengths, x(n)+"=x", fmt.Sprintf("V%d=%s", n, x(n)))
	}
	many := []string{even}
	for i := range 10000 {
		many = append(many, fmt.Sprintf("V%d=x", i))
	}
	const prefix = "_SLURM_SPANK_OPTION_"
	environment := []string{ownOption + "=" + x(5000), "SLURM_SPANK_" + ownOption + "=a\nb",
		"SPANK_" + ownOption + "=" + x(5000), prefix + x(900) + "=x"}
	if s.Release() >= "24.11" { // Debian's has the fix of September 2026
		// In older releases slurmstepd ends here, also without our plugin, and its job hangs.
		environment = append(environment, prefix+x(1010)+"=x", prefix+x(100000)+"=x")
	}
	for _, c := range []struct {
		name               string
		spank, environment []string
		want               string // of the output
	}{
		{"lengths and bytes", lengths, nil, "runs\n"},
		{"10,000 variables", many, many, "runs\n"},
		{"an option that the plugin would refuse", []string{even, "MPS=" + x(5000)}, nil, "5000 bytes, want at most 512"},
		{"an option of two lines", []string{"MPS=share=even\nshare=none"}, nil, `share is "even\nshare=none": want `},
		{"Slurm's variables for options", []string{even, ownOption + "=" + x(5000), prefix + x(2000) + "=x"},
			environment, "runs\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			script := filepath.Join(s.Top, "mpirun-wrap") + " echo runs\nsrun true && echo and a step\n"
			job := rawJob{script: "#!/bin/sh\n" + script, environment: c.environment, spank: c.spank, name: "names"}
			id, refused := s.rawSubmit(job)
			if refused != "" {
				t.Fatal(refused)
			}
			ended := s.Ended(id)
			if out := s.Output(id); !strings.Contains(out, c.want) || !strings.Contains(out, "and a step\n") {
				t.Errorf("%+v: want %q\n%s\n%s", ended, c.want, out, s.Log())
			}
		})
	}
	t.Run("commands", func(t *testing.T) {
		for _, value := range []string{x(5000), "a\nb", "", "(null)"} {
			line := []string{"-Q", "--mps=share=even", "--gres=gpu:1", filepath.Join(s.Top, "mpirun-wrap"), "echo", "runs"}
			srun := must.Get(s.Command(s.Ctx, s.User, "srun", line...))(t)
			for _, name := range []string{ownOption, "SLURM_SPANK_" + ownOption, "SPANK_MPS", "SLURM_SPANK_MPS"} {
				srun.Env = append(srun.Env, name+"="+value)
			}
			for _, n := range []int{900, 1024, 1025, 65000} {
				srun.Env = append(srun.Env, "SLURM_SPANK_"+x(n)+"=x", prefix+x(n)+"=x")
			}
			if out, err := srun.CombinedOutput(); err != nil || string(out) != "runs\n" {
				t.Errorf("%.20q: %v\n%.500s", value, err, out)
			}
		}
	})
	s.Quiet()
}
