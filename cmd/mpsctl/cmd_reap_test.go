// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/cli"
)

func TestReapRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"reap --job 0": "mpsctl: cannot reap job 0: ", "reap --job x": "mpsctl: cannot read --job: it is \"x\": want a whole number: ",
		"reap 7": "mpsctl: cannot take ",
	} {
		if code, _, complaint := runRoot(reapCommand, strings.Fields(args)...); code != cli.ExitUsage || !strings.HasPrefix(complaint, want) {
			t.Errorf("%q: %d, %s", args, code, complaint)
		}
	}
}
