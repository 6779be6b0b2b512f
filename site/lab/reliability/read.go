// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// section is the lines of one run, or of several runs with one title.
type section struct {
	title string
	facts map[string]string // by their names, as in factNames
	rows  []row
}

// factNames are the names in the lines "# NAME: ..." of a section. Each section has GPUs ("simulated", or the model)
// and on.
var factNames = []string{"GPUs", "on"}

// row is the sum of all lines of one test.
type row struct {
	test          string
	tried, failed int
}

// counts returns how often something was tried in the section, and how often it failed.
func (s section) counts() (tried, failed int) {
	for _, r := range s.rows {
		tried, failed = tried+r.tried, failed+r.failed
	}
	return tried, failed
}

func readAll(path string) ([]section, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read what a test has written: %w", err)
	}
	var all []section
	for text := range strings.SplitSeq(string(content), "\n\n") {
		s, err := read(text)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: section %d, %q: %w", path, len(all)+1, s.title, err)
		}
		all = append(all, s)
	}
	return all, nil
}

func read(content string) (section, error) {
	s := section{facts: map[string]string{}}
	for n, line := range strings.Split(strings.TrimRight(content, "\n"), "\n") {
		about, ok := strings.CutPrefix(line, "# ")
		switch {
		case ok && s.title == "":
			s.title = about
		case ok:
			if name, value, ok := strings.Cut(about, ": "); ok && slices.Contains(factNames, name) {
				s.facts[name] = value
			}
		default:
			if err := s.add(line); err != nil {
				return s, fmt.Errorf("line %d: %w", n+1, err)
			}
		}
	}
	if s.title == "" || s.facts["GPUs"] == "" || s.facts["on"] == "" {
		return s, fmt.Errorf("it does not begin with a title and the lines %q and %q", "# GPUs: ...", "# on: ...")
	}
	return s, nil
}

// add adds a line to the row of its test. The lines of subtests add up to one row.
func (s *section) add(line string) error {
	fields := strings.SplitN(line, "\t", 5)
	if len(fields) < 4 {
		return fmt.Errorf("%q has %d fields: want name, tried, failed, seconds", line, len(fields))
	}
	var numbers [3]int
	for i := range numbers {
		n, err := strconv.Atoi(fields[i+1])
		if err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		numbers[i] = n
	}
	test, _, _ := strings.Cut(fields[0], "/")
	test, _, _ = strings.Cut(test, " ")
	if _, what, ok := strings.Cut(fields[0], " "); ok { // "TestX/job-1 pairs" counts pairs, not jobs
		test += " " + what
	}
	at := slices.IndexFunc(s.rows, func(r row) bool { return r.test == test })
	if at < 0 {
		s.rows, at = append(s.rows, row{test: test}), len(s.rows)
	}
	s.rows[at].tried += numbers[0]
	s.rows[at].failed += numbers[1]
	return nil
}
