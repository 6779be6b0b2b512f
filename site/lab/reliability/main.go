// SPDX-License-Identifier: Apache-2.0

// Package main makes the tables of docs/limits.md, and all of docs/measurements/reliability/README.md, from the
// lines that the tests have written: make reliability.
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
	raw      = "docs/measurements/reliability/runs.tsv"
	document = "docs/limits.md"
	runs     = "docs/measurements/reliability/README.md"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintf(os.Stderr, "reliability: %v\n", err)
		os.Exit(1)
	}
}

func run(module string) error {
	pages, err := compose(module)
	if err != nil {
		return err
	}
	for path, text := range pages {
		if err := os.WriteFile(filepath.Join(module, path), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compose returns the text of the two documents, by path.
func compose(module string) (map[string]string, error) {
	sections, err := readAll(filepath.Join(module, raw))
	if err != nil {
		return nil, err
	}
	comments, err := commentsOf(module)
	if err != nil {
		return nil, err
	}
	page, err := os.ReadFile(filepath.Join(module, document))
	if err != nil {
		return nil, err
	}
	short, err := replace(string(page), summary(sections))
	if err != nil {
		return nil, err
	}
	return map[string]string{document: short, runs: details(sections, comments)}, nil
}

const begin, end = "<!-- made: summary -->\n", "<!-- made -->"

// replace writes the summary between its marks.
func replace(page, summary string) (string, error) {
	before, rest, found := strings.Cut(page, begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", fmt.Errorf("cannot make %s: it lacks %sor the %s after it", document, begin, end)
	}
	return before + begin + summary + end + after, nil
}

// summary returns a table with a row for each section.
func summary(sections []section) string {
	var text strings.Builder
	text.WriteString("| what was tried | how often | failed | GPUs | where and when |\n|---|---|---|---|---|\n")
	for _, s := range sections {
		tried, failed := 0, 0
		for _, r := range s.rows {
			tried, failed = tried+r.tried, failed+r.failed
		}
		link := fmt.Sprintf("[%s](%s#%s)", s.title, strings.TrimPrefix(runs, "docs/"), anchor(s.title))
		fmt.Fprintf(&text, "| %s | %s | %d | %s | %s |\n", link, thousands(tried), failed, s.facts["GPUs"], s.facts["on"])
	}
	return text.String()
}

// anchor returns GitHub's name of a heading.
func anchor(title string) string {
	kept := func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return -1
	}
	return strings.Map(kept, strings.ToLower(title))
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

const head = `# Reliability: the runs

This page is made by ` + "`make reliability`" + ` from runs.tsv beside it, whose lines the tests have written. [limits.md](../../limits.md#what-was-tried-to-break-it) has the summary. What a test holds is its own comment in the source.

## Raw data

| files in [raw.tar.gz](raw.tar.gz) | what |
|---|---|
| ` + "`reliability/soak-*.txt`" + ` | each job of a soak is a line |
| ` + "`reliability/fuzz.txt`" + ` | the last line of each fuzzer, in two runs |
`

// details returns a page of all sections.
func details(sections []section, comments map[string]string) string {
	var text strings.Builder
	text.WriteString(head)
	for _, s := range sections {
		text.WriteString(s.text(comments))
	}
	return text.String()
}

func (s section) text(comments map[string]string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "\n## %s\n\nGPUs: %s. Where and when: %s.", s.title, s.facts["GPUs"], s.facts["on"])
	if data := s.facts["data"]; data != "" {
		fmt.Fprintf(&text, " Data: %s.", data)
	}
	text.WriteString("\n\n")
	for _, note := range s.notes {
		fmt.Fprintf(&text, "* %s\n", note)
	}
	text.WriteString("\n| test | tried | failed | s | what it holds |\n|---|---|---|---|---|\n")
	for _, r := range s.rows {
		test, what, _ := strings.Cut(r.test, " ")
		fmt.Fprintf(&text, "| %s | %d | %d | %d | %s |\n", strings.TrimSpace("`"+test+"` "+what), r.tried, r.failed, r.seconds, comments[test])
	}
	for _, r := range s.rows {
		if soaks := soaksOf(r.remarks); len(soaks) > 0 {
			text.WriteString(soakTables(soaks))
			continue
		}
		for _, remark := range r.remarks {
			fmt.Fprintf(&text, "\n`%s`: %s\n", r.test, remark)
		}
	}
	return text.String()
}
