// SPDX-License-Identifier: Apache-2.0

// Command report makes the tables and plots of docs/benchmarks.md from the measurements that are committed beside it, and
// from nothing else: what stands between its markers is never written by hand. A test holds the document to it.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	docs := flag.String("docs", "docs", "folder of benchmarks.md, measurements and plots")
	flag.Parse()
	if err := run(*docs); err != nil {
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

// makeAll is every file that the program makes, by its path below docs: the plots, and the document with its parts anew.
func makeAll(docs string) (map[string][]byte, error) {
	d, err := readData(filepath.Join(docs, "measurements"))
	if err != nil {
		return nil, err
	}
	files := d.plots()
	page, err := os.ReadFile(filepath.Join(docs, "benchmarks.md"))
	if err != nil {
		return nil, err
	}
	for name, part := range d.parts() {
		if page, err = replace(page, name, part); err != nil {
			return nil, err
		}
	}
	if n := bytes.Count(page, []byte("<!-- made: ")); n != len(d.parts()) {
		return nil, fmt.Errorf("cannot make benchmarks.md: it has %d parts to make and %d are known", n, len(d.parts()))
	}
	files["benchmarks.md"] = page
	return files, nil
}

const end = "<!-- made -->"

// replace puts a part between its markers.
func replace(page []byte, name, part string) ([]byte, error) {
	begin := fmt.Sprintf("<!-- made: %s -->", name)
	before, rest, found := strings.Cut(string(page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return nil, fmt.Errorf("cannot make benchmarks.md: it lacks %s or the %s after it", begin, end)
	}
	return []byte(before + begin + "\n" + strings.TrimSpace(part) + "\n" + end + after), nil
}
