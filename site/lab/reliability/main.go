// SPDX-License-Identifier: Apache-2.0

// Package main makes docs/measurements/reliability/README.md from the lines that the tests have written: make
// reliability.
//
// A test with RELIABILITY=FILE in its environment adds a line to the file. The line has the test's name, the number
// of tries, the number of failures, the seconds, and optionally a sentence. Tabs separate the fields.
//
// The lines are in docs/measurements/reliability/runs.tsv. An empty line ends a section. Lines that begin with # are
// the section's title, facts such as "GPUs: simulated", and notes about the run. Lines of one test add up, so a run
// may have several parts. The test's own comment describes what the test checks.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	raw  = "docs/measurements/reliability/runs.tsv"
	page = "docs/measurements/reliability/README.md"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintf(os.Stderr, "reliability: %v\n", err)
		os.Exit(1)
	}
}

func run(module string) error {
	text, err := compose(module)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(module, page), []byte(text), 0o644)
}

const head = `# What was tried to break it

Made by ` + "`make reliability`" + ` from [runs.tsv](runs.tsv), whose lines the tests have written; it has the dates, the notes and the lines of each test. What a test holds is its own comment in the source. [raw.tar.gz](raw.tar.gz) has each job of a soak, the last line of each fuzzer, and tables of all (` + "`reliability/README.md`" + ` there). Tries, and how many failed:

`

// compose returns the text of the page: an item for each section.
func compose(module string) (string, error) {
	sections, err := readAll(filepath.Join(module, raw))
	if err != nil {
		return "", err
	}
	return head + list(sections), nil
}

func list(sections []section) string {
	var text strings.Builder
	for _, s := range sections {
		tried, failed := s.counts()
		fmt.Fprintf(&text, "* %s (GPUs: %s): %s, %d\n", s.title, s.facts["GPUs"], thousands(tried), failed)
	}
	return text.String()
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
