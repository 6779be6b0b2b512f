// SPDX-License-Identifier: Apache-2.0

// Command report makes the tables of docs/benchmarks.md and of the pages beside the measurements, and the plots. It
// uses only the committed measurements. Never edit the text between its markers by hand. A test compares the pages
// with the output of this command. With -long, it prints the tables that are too long for a page.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	docs := flag.String("docs", "docs", "folder of benchmarks.md, measurements and plots")
	long := flag.Bool("long", false, "print the tables that no page has")
	flag.Parse()
	work := run
	if *long {
		work = printLong
	}
	if err := work(*docs); err != nil {
		fmt.Fprintf(os.Stderr, "report: %v\n", err)
		os.Exit(1)
	}
}

func run(docs string) error {
	files, err := makeAll(docs)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(docs, "plots"), 0o755); err != nil {
		return err
	}
	for path, content := range files {
		if err := os.WriteFile(filepath.Join(docs, path), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func printLong(docs string) error {
	d, err := readData(filepath.Join(docs, "measurements"))
	if err != nil {
		return err
	}
	for _, part := range d.long() {
		fmt.Println(part)
	}
	return nil
}

// pages are the documents with parts that this command makes, below docs.
var pages = []string{
	"benchmarks.md", "measurements/README.md", "measurements/hooks.md", "measurements/4-h200/README.md",
	"measurements/9-h200/README.md",
}

// makeAll returns every file that the program makes, by its path below docs: the plots, and the pages with their new
// parts.
func makeAll(docs string) (map[string][]byte, error) {
	d, err := readData(filepath.Join(docs, "measurements"))
	if err != nil {
		return nil, err
	}
	files := d.plots()
	parts := d.parts()
	for _, path := range pages {
		page, err := os.ReadFile(filepath.Join(docs, path))
		if err != nil {
			return nil, err
		}
		if files[path], err = fill(page, parts); err != nil {
			return nil, fmt.Errorf("cannot make %s: %w", path, err)
		}
	}
	for name := range parts {
		return nil, fmt.Errorf("cannot make %q: no page has a place for it", name)
	}
	return files, nil
}

var partBegins = regexp.MustCompile(`<!-- made: (.*) -->\n`)

const end = "<!-- made -->"

// fill writes parts between their markers, and deletes them from the map, because each part has one place.
func fill(page []byte, parts map[string]string) ([]byte, error) {
	var made strings.Builder
	rest := string(page)
	for {
		at := partBegins.FindStringSubmatchIndex(rest)
		if at == nil {
			made.WriteString(rest)
			return []byte(made.String()), nil
		}
		name := rest[at[2]:at[3]]
		part, known := parts[name]
		_, after, closed := strings.Cut(rest[at[1]:], end)
		if !known || !closed {
			return nil, fmt.Errorf("part %q is not known, is there twice, or has no %s behind it", name, end)
		}
		delete(parts, name)
		made.WriteString(rest[:at[1]] + strings.TrimSpace(part) + "\n" + end)
		rest = after
	}
}
