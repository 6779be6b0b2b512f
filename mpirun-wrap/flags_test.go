// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

func TestFlags(t *testing.T) {
	settings := slices.Concat(Settings, ownFlags)
	for _, c := range []struct {
		args []string
		want string // root, GPU, report, version, program
		err  string
	}{
		{nil, `"" "" false false []`, ""},
		{[]string{"a", "--report"}, `"" "" false false ["a" "--report"]`, ""},
		{[]string{"--report", "-gpu", "block", "--root=/x", "a"}, `"/x" "block" true false ["a"]`, ""},
		{[]string{"--report=false", "--", "--gpu"}, `"" "" false false ["--gpu"]`, ""},
		{[]string{"--root", "--", "--version", "-"}, `"--" "" false true ["-"]`, ""},
		{[]string{"--root=a=b", ""}, `"a=b" "" false false [""]`, ""},
		{[]string{"-v", "a"}, `"" "" true false ["a"]`, ""},
		{[]string{"-h"}, "", "help is asked for"},
		{[]string{"--help", "--nonsense"}, "", "help is asked for"},
		{[]string{"--gpu"}, "", "cannot read flags: flag needs an argument: --gpu: see mpirun-wrap --help"},
		{[]string{"--nonsense=1"}, "", "cannot read flags: unknown flag: --nonsense: see mpirun-wrap --help"},
		{[]string{"--shar=even"}, "", "cannot read flags: unknown flag: --shar: did you mean --share?"},
		{[]string{"-dryrun"}, "", "cannot read flags: unknown flag: -dryrun: did you mean --dry-run?"},
		{[]string{"---gpu=block"}, "", "cannot read flags: unknown flag: ---gpu: did you mean --gpu?"},
		{[]string{"--=x"}, "", "cannot read flags: unknown flag: --: see mpirun-wrap --help"},
		{[]string{"--signals=pass"}, "", "cannot read flags: unknown flag: --signals: see mpirun-wrap --help"},
		{[]string{"--report=perhaps"}, "", `cannot read --report: it is "perhaps": want true or false`},
	} {
		var run run
		version, err := parseFlags(c.args, &run, settings)
		got := fmt.Sprintf("%q %q %v %v %q", run.Paths.Root, run.Options.GPU, run.Options.Report, version, run.Program)
		if c.err == "" && (err != nil || got != c.want) || c.err != "" && (err == nil || err.Error() != c.err) {
			t.Errorf("%q: %s, %v; want %s, %s", c.args, got, err, c.want, c.err)
		}
		if errors.Is(err, errHelp) != (c.err == "help is asked for") {
			t.Errorf("%q: %v", c.args, err)
		}
	}
}
