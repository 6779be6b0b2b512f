// SPDX-License-Identifier: Apache-2.0

package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// fault is one change, and the tests that must notice it. Each fault either passed all tests once, or breaks a promise
// that a user's or a node's safety needs.
type fault struct {
	name     string
	promise  string // clauses of docs/contract.md, "exit" for its exit codes, "security" or "docs" for what those say
	file     string
	old, new string
	folder   string // of the tests
	tests    string // the names of the tests that must fail, separated by blanks; "Test/subtest" for a part of a test
}

//go:embed faults/*.txt
var lists embed.FS

// readFaults reads the faults of all lists. An empty line ends a fault, and "#" begins a line that is skipped:
//
//	NAME: PROMISE ...
//	FILE
//	- OLD
//	+ NEW
//	FOLDER TEST ...
//
// OLD and NEW may have several lines. OLD may be a part of the file's line.
func readFaults() (all []fault, err error) {
	err = fs.WalkDir(lists, "faults", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := lists.ReadFile(path)
		if err != nil {
			return err
		}
		found, err := parse(string(content))
		all = append(all, found...)
		if err != nil {
			return fmt.Errorf("cannot read %s: %w", path, err)
		}
		return nil
	})
	return all, err
}

func parse(content string) (all []fault, wrong error) {
	for block := range strings.SplitSeq(content, "\n\n") {
		isEmpty := func(line string) bool { return line == "" || strings.HasPrefix(line, "#") }
		lines := slices.DeleteFunc(strings.Split(block, "\n"), isEmpty)
		if len(lines) == 0 {
			continue
		}
		f, err := parseFault(lines)
		all, wrong = append(all, f), errors.Join(wrong, err)
	}
	return all, wrong
}

func parseFault(lines []string) (f fault, err error) {
	var old, changed, rest []string
	for _, line := range lines {
		switch {
		case strings.HasPrefix(line, "-"):
			old = append(old, strings.TrimPrefix(line[1:], " "))
		case strings.HasPrefix(line, "+"):
			changed = append(changed, strings.TrimPrefix(line[1:], " "))
		default:
			rest = append(rest, line)
		}
	}
	if len(rest) != 3 || len(old) == 0 || len(changed) == 0 {
		return f, fmt.Errorf("a fault has %q: want a name, a file, tests, and lines with - and +", rest)
	}
	var named, tested bool
	f.name, f.promise, named = strings.Cut(rest[0], ": ")
	f.file, f.old, f.new = rest[1], strings.Join(old, "\n"), strings.Join(changed, "\n")
	f.folder, f.tests, tested = strings.Cut(rest[2], " ")
	if !named || !tested {
		return f, fmt.Errorf("a fault begins with %q and ends with %q: want NAME: PROMISE, and FOLDER TEST", rest[0], rest[2])
	}
	return f, nil
}
