// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// again is a test that has failed and has passed in a later run.
type again struct {
	pkg, test string
	cause     string // the first line that it printed with a place in the source
}

func (a again) String() string { return fmt.Sprintf("%s %s: %s", a.pkg, a.test, a.cause) }

// has reports whether b is a subtest of a.
func (a again) has(b again) bool { return a.pkg == b.pkg && strings.HasPrefix(b.test, a.test+"/") }

// event is a line of `go test -json`.
type event struct {
	Action, Package, Test, Output string
}

// printAgain prints the tests that ran again, for the end of `make test`.
func printAgain(w io.Writer, files []string) error {
	if len(files) == 0 {
		return errors.New("cannot find tests that ran again: give files of events")
	}
	count := 0
	for _, file := range files {
		found, err := readAgain(file)
		if err != nil {
			return err
		}
		for _, a := range found {
			fmt.Fprintf(w, "failed, and passed alone: %s\n", a)
			count++
		}
	}
	fmt.Fprintf(w, "tests that ran again: %d\n", count)
	return nil
}

// readAgain returns the tests of a file of events that failed and passed later. Of a test with subtests, it returns the
// subtests.
func readAgain(file string) ([]again, error) {
	events, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer events.Close()
	type name struct{ pkg, test string }
	said, failed := map[name][]string{}, map[name]string{}
	var found []again
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", file, err)
		}
		at := name{strings.TrimPrefix(e.Package, "github.com/slurm-mps/slurm-mps/"), e.Test}
		switch e.Action {
		case "run":
			said[at] = nil
		case "output":
			said[at] = append(said[at], strings.TrimSpace(e.Output))
		case "fail":
			failed[at] = cause(said[at])
		case "pass":
			if why, before := failed[at]; before && e.Test != "" {
				found = append(found, again{at.pkg, at.test, why})
			}
		}
	}
	found = slices.DeleteFunc(found, func(a again) bool {
		return slices.ContainsFunc(found, a.has)
	})
	return found, lines.Err()
}

var place = regexp.MustCompile(`^[a-z_]+\.go:\d+: `)

// cause is the first line of a failed test's output that has a place in the source and is no advice.
func cause(said []string) string {
	for _, line := range said {
		if at := place.FindString(line); at != "" && !strings.Contains(line, ": to run it again: ") {
			return cut(line)
		}
	}
	if len(said) == 0 {
		return "no output"
	}
	return cut(said[len(said)-1])
}

func cut(line string) string {
	const width = 160
	if len(line) > width {
		line = strings.ToValidUTF8(line[:width], "") + "…"
	}
	return line
}

func processors() int { return runtime.NumCPU() }

// kernel is the release of the running kernel.
func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return path.Clean(unix.ByteSliceToString(name.Release[:]))
}
