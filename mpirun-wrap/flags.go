// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/words"
)

// errHelp is the result of --help.
var errHelp = errors.New("help is asked for")

// ownFlags are the flags that both programs have.
var ownFlags = []Setting{{Flag: "root", Value: "DIR"}, {Flag: "version"}, {Flag: "help"}, {Flag: "h"}}

// parseFlags reads the flags of a command line into a run, up to the first argument that is not a flag, or up to "--".
// The rest is the run's program. The syntax of flags is that of Go's package flag. That package is not used, because it
// would make the start of every rank slower.
func parseFlags(args []string, run *run, settings []Setting) (version bool, err error) {
	var names []string
	for _, s := range settings {
		names = append(names, s.Flag)
	}
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		flag := args[0]
		args = args[1:]
		if flag == "--" {
			break
		}
		flag, value, given := strings.Cut(flag, "=")
		name := strings.TrimPrefix(flag[1:], "-")
		if name == "v" {
			name = "verbose"
		}
		i := slices.Index(names, name)
		switch {
		case i < 0:
			return false, fmt.Errorf("cannot read flags: unknown flag: %s: %s", flag, words.Suggest("--", name, names, "mpirun-wrap"))
		case given:
		case settings[i].Value == "":
			value = "true"
		case len(args) == 0:
			return false, fmt.Errorf("cannot read flags: flag needs an argument: --%s: see mpirun-wrap --help", name)
		default:
			value, args = args[0], args[1:]
		}
		switch name {
		case "help", "h":
			return false, errHelp
		case "version":
			version = true
		case "root":
			run.Paths.Root = value
		default:
			err = run.Options.Set(name, value)
		}
		if err != nil {
			return false, err
		}
	}
	run.Program = args
	return version, nil
}
