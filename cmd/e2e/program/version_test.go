// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"regexp"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// Every program prints its commit and its usage for every user.
func TestEveryProgramSaysItsVersion(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	for _, program := range testnode.Programs {
		for flag, want := range map[string]string{"--version": `^([\w-]+ version )?slurm-mps \S+ \(go\S+\)\n$`, "--help": `(?s)^` + program + ` .*--root DIR`} {
			result, err := p.Run(p.Ctx, nil, program, flag)
			if err != nil || result.Code != 0 || !regexp.MustCompile(want).MatchString(result.Output) {
				t.Errorf("%s %s: %+v, %v", program, flag, result, err)
			}
		}
	}
}
