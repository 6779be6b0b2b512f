// SPDX-License-Identifier: Apache-2.0

// Package main makes docs/reliability.md from what the tests themselves have written down: make reliability.
//
// A test that is given RELIABILITY=FILE adds a line to it: its name, how much it tried, how much of that failed, the
// seconds that it took and, if there is more to say, a sentence; tabs between. The files that are kept are in
// docs/measurements/reliability, a section of the document each: lines that begin with # are its title and what is to be
// known of the run. Lines of one test add up, so a run may be made in pieces. What a test holds is said by its own comment.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	raw      = "docs/measurements/reliability"
	document = "docs/reliability.md"
)

func main() {
	text, err := compose(".")
	if err == nil {
		err = os.WriteFile(document, []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "reliability: %v\n", err)
		os.Exit(1)
	}
}

const head = `# Reliability

After a job, however it ended and whatever died on the way, the node is as it was before, or it is drained with the lease kept and the exact repair in the log. What holds that, with the numbers of the runs whose lines are in ` + raw + `; this page is made from them by ` + "`make reliability`" + `, and what a test holds is said by its own comment. The unmodified binaries run, on simulated GPUs where nothing else is said.
`

// compose is the whole document of the module in a folder.
func compose(module string) (string, error) {
	sections, err := readAll(filepath.Join(module, raw))
	if err != nil {
		return "", err
	}
	comments, err := commentsOf(module)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	text.WriteString(head)
	for _, s := range sections {
		text.WriteString(s.text(comments))
	}
	return text.String(), nil
}

// section is one file of raw lines.
type section struct {
	title string
	about []string
	rows  []row
}

// row is all lines of one test.
type row struct {
	test                   string
	lines                  int
	tried, failed, seconds int
	said                   []string
}

func readAll(dir string) ([]section, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.tsv"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	var all []section
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("cannot read what a test has written: %w", err)
		}
		s, err := read(string(content))
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", path, err)
		}
		all = append(all, s)
	}
	return all, nil
}

func read(content string) (section, error) {
	var s section
	for n, line := range strings.Split(strings.TrimRight(content, "\n"), "\n") {
		about, ok := strings.CutPrefix(line, "# ")
		switch {
		case ok && s.title == "":
			s.title = about
		case ok:
			s.about = append(s.about, about)
		default:
			if err := s.add(line); err != nil {
				return s, fmt.Errorf("line %d: %w", n+1, err)
			}
		}
	}
	if s.title == "" {
		return s, fmt.Errorf("it has no title: the first line is # and what it is about")
	}
	return s, nil
}

// add adds a line to the row of its test, whose subtests are pieces of it.
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
	if _, what, ok := strings.Cut(fields[0], " "); ok { // "TestX/job-1 pairs" counts pairs of what the other lines count
		test += " " + what
	}
	at := slices.IndexFunc(s.rows, func(r row) bool { return r.test == test })
	if at < 0 {
		s.rows, at = append(s.rows, row{test: test}), len(s.rows)
	}
	r := &s.rows[at]
	r.lines, r.tried, r.failed, r.seconds = r.lines+1, r.tried+numbers[0], r.failed+numbers[1], r.seconds+numbers[2]
	if len(fields) == 5 {
		r.said = append(r.said, fields[4])
	}
	return nil
}

func (s section) text(comments map[string]string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "\n## %s\n\n%s\n\n", s.title, strings.Join(s.about, " "))
	text.WriteString("| test | tried | failed | s | what it holds |\n|---|---|---|---|---|\n")
	for _, r := range s.rows {
		test, what, _ := strings.Cut(r.test, " ")
		fmt.Fprintf(&text, "| %s | %d | %d | %d | %s |\n", strings.TrimSpace("`"+test+"` "+what), r.tried, r.failed, r.seconds, comments[test])
	}
	for _, r := range s.rows {
		for _, said := range r.said {
			fmt.Fprintf(&text, "\n`%s`: %s\n", r.test, said)
		}
	}
	return text.String()
}

// commentsOf are the comments of the module's tests, each as one line.
func commentsOf(module string) (map[string]string, error) {
	comments := map[string]string{}
	err := filepath.WalkDir(module, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != module && strings.HasPrefix(entry.Name(), ".") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Doc != nil {
				first, _, _ := strings.Cut(f.Doc.Text(), "\n\n")
				comments[f.Name.Name] = strings.ReplaceAll(strings.TrimSpace(first), "\n", " ")
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read the tests: %w", err)
	}
	return comments, nil
}
