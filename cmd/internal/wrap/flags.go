// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/site"
)

// line is a parsed command line.
type line struct {
	paths   site.Paths
	options mpirunwrap.Options
	version bool
	program []string
	told    string // what the task prolog has printed
}

// errHelp is the result of --help.
var errHelp = errors.New("help is asked for")

// own are the flags that both programs have.
var own = []mpirunwrap.Setting{{Flag: "root", Value: "DIR"}, {Flag: "version"}, {Flag: "help"}, {Flag: "h"}}

// parse reads the flags of a command line, up to the first argument that is no flag, or up to "--". Their syntax is
// that of Go's package flag. That package is not used, because it would make the start of every rank slower.
func (l *line) parse(args []string, settings []mpirunwrap.Setting) error {
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
		known := func(s mpirunwrap.Setting) bool { return s.Flag == name }
		i := slices.IndexFunc(settings, known)
		switch {
		case i < 0:
			return fmt.Errorf("cannot read flags: unknown flag: %s: %s", flag, suggestion(name, settings))
		case given:
		case settings[i].Value == "":
			value = "true"
		case len(args) == 0:
			return fmt.Errorf("cannot read flags: flag needs an argument: --%s: see mpirun-wrap --help", name)
		default:
			value, args = args[0], args[1:]
		}
		if err := l.set(name, value); err != nil {
			return err
		}
	}
	l.program = args
	return nil
}

func suggestion(name string, settings []mpirunwrap.Setting) string {
	var known []string
	for _, s := range settings {
		known = append(known, s.Flag)
	}
	return cli.Suggest("--", name, known, "mpirun-wrap")
}

func (l *line) set(name, value string) error {
	switch name {
	case "help", "h":
		return errHelp
	case "version":
		l.version = true
		return nil
	case "root":
		l.paths.Root = value
		return nil
	}
	return l.options.Set(name, value)
}
