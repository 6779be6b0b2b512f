// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/words"
)

// Flag is a flag of a program that runs as root or for each rank.
type Flag struct {
	Name string // without dashes
	To   any    // where its value goes: *string, *[]string, *bool, *uint32, *time.Duration, or a func(string) error
	// Bare is for a function: the flag has no value, and the function gets "true". A *bool is always bare.
	Bare bool
}

// ErrHelp is the result of --help and -h.
var ErrHelp = errors.New("help is asked for")

// ParseFlags sets the flags of a command line up to the first argument that is not a flag, or up to "--", and returns the
// rest. The syntax of flags is that of Go's package flag. That package is not used, because it would make the start of
// every rank slower.
func ParseFlags(program string, args []string, flags []Flag) (rest []string, err error) {
	help := func(string) error { return ErrHelp }
	known := map[string]Flag{"help": {"help", help, true}, "h": {"h", help, true}}
	names := []string{"help"}
	for _, f := range flags {
		known[f.Name] = f
		names = append(names, f.Name)
	}
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		written, value, given := strings.Cut(args[0], "=")
		if args = args[1:]; written == "--" && !given {
			break
		}
		name := strings.TrimPrefix(written[1:], "-")
		f, found := known[name]
		_, bare := f.To.(*bool)
		switch {
		case !found:
			return nil, fmt.Errorf("cannot read flags: unknown flag: %s: %s", written, words.Suggest("--", name, names, program))
		case given:
		case bare || f.Bare:
			value = "true"
		case len(args) == 0:
			return nil, fmt.Errorf("cannot read flags: flag needs an argument: --%s: see %s --help", name, program)
		default:
			value, args = args[0], args[1:]
		}
		if err := f.set(program, value); err != nil {
			return nil, err
		}
	}
	return args, nil
}

func (f Flag) set(program, value string) (err error) {
	want := ""
	switch to := f.To.(type) {
	case func(string) error:
		return to(value)
	case *string:
		*to = value
	case *[]string:
		*to = append(*to, strings.Split(value, ",")...)
	case *bool:
		want = "true or false"
		*to, err = strconv.ParseBool(value)
	case *uint32:
		var n uint64
		want = "a whole number"
		n, err = strconv.ParseUint(value, 10, 32)
		*to = uint32(n)
	case *time.Duration:
		want = "a time like 10s or 5m"
		*to, err = time.ParseDuration(value)
	}
	if err != nil {
		return fmt.Errorf("cannot read --%s: it is %q: want %s: see %s --help", f.Name, value, want, program)
	}
	return nil
}

// ParseAlone is for a program without operands. It sets the flags, or it prints the help text or the version, and then
// the program is done.
func (p Process) ParseAlone(program, help string, flags ...Flag) (done bool, err error) {
	version := false
	rest, err := ParseFlags(program, p.Args, append(flags, Flag{Name: "version", To: &version}, Flag{Name: "v", To: &version}))
	switch {
	case errors.Is(err, ErrHelp):
		fmt.Fprint(p.Out, help)
		return true, nil
	case err != nil:
		return false, err
	case version:
		fmt.Fprintln(p.Out, Version())
		return true, nil
	case len(rest) > 0:
		return false, fmt.Errorf("cannot take %q: %s takes only flags: see %s --help", rest[0], program, program)
	}
	return false, nil
}
