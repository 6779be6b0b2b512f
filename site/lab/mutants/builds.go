// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// packages checks whether faults build. It type-checks the package of a fault, which takes some milliseconds. The
// compiler has built what the package imports.
type packages struct {
	source string
	files  map[string][]string // the Go files of a folder of the source
	from   types.Importer
}

// newPackages builds the packages that have faults.
func newPackages(source string, faults []fault) (*packages, error) {
	p := &packages{source: source, files: map[string][]string{}}
	const form = `{{.ImportPath}}{{"\t"}}{{.Export}}{{"\t"}}{{.Dir}}{{range .GoFiles}}{{"\t"}}{{.}}{{end}}`
	line := []string{"list", "-export", "-deps", "-f", form}
	for _, f := range faults {
		line = append(line, "./"+filepath.Dir(f.file))
	}
	list := exec.Command("go", line...)
	list.Dir = source
	out, err := list.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot build the packages that have faults: %w", err)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimRight(line, "\n"), "\t")
		exports[fields[0]], p.files[fields[2]] = fields[1], fields[3:]
	}
	p.from = importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("%s is not built", path)
		}
		return os.Open(exports[path])
	})
	return p, nil
}

// check reports a fault that cannot be planted or does not build.
func (p *packages) check(f fault) error {
	content, err := f.planted(p.source)
	if err != nil {
		return err
	}
	folder, faulty := filepath.Split(filepath.Join(p.source, f.file))
	set, files := token.NewFileSet(), []*ast.File{}
	for _, name := range p.files[filepath.Clean(folder)] {
		var text any // nil: the file's own
		if name == faulty {
			text = content
		}
		file, err := parser.ParseFile(set, filepath.Join(folder, name), text, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("%s: it does not build: %w", f.name, err)
		}
		files = append(files, file)
	}
	checker := types.Config{Importer: p.from, Sizes: types.SizesFor("gc", "amd64")}
	if _, err := checker.Check(folder, set, files, nil); err != nil {
		return fmt.Errorf("%s: it does not build: %w", f.name, err)
	}
	return nil
}
