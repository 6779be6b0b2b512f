// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	walkStep = regexp.MustCompile(`^\d+\. `)
	function = regexp.MustCompile("`([^`\\s]+\\.go)` `([^`\\s]+)`")
)

// TestTheWalkthroughsFunctions checks that each step of docs/walkthrough.md begins with a file and a function in it.
func TestTheWalkthroughsFunctions(t *testing.T) {
	const top = "../../.."
	page, err := os.ReadFile(filepath.Join(top, "docs", "walkthrough.md"))
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	for line := range strings.Lines(string(page)) {
		if !walkStep.MatchString(line) {
			continue
		}
		steps++
		if at := function.FindStringIndex(line); at == nil || at[0] != strings.Index(line, " ")+1 {
			t.Errorf("%.60q does not begin with a file and a function", line)
		}
		for _, m := range function.FindAllStringSubmatch(line, -1) {
			if names, err := functionsOf(filepath.Join(top, m[1])); err != nil {
				t.Errorf("%.60q: %v", line, err)
			} else if !slices.Contains(names, m[2]) {
				t.Errorf("%s has no function %s: correct docs/walkthrough.md", m[1], m[2])
			}
		}
	}
	if walks := strings.Count(string(page), "\n1. "); walks != 3 || steps < 38 {
		t.Errorf("the page has %d walks with %d steps, want 3 walks and 38 steps", walks, steps)
	}
}

// functionsOf returns the functions that a file declares. A method is TYPE.NAME.
func functionsOf(path string) (names []string, err error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, declared := range file.Decls {
		f, ok := declared.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := f.Name.Name
		if f.Recv != nil {
			kind := f.Recv.List[0].Type
			if pointer, ok := kind.(*ast.StarExpr); ok {
				kind = pointer.X
			}
			if named, ok := kind.(*ast.Ident); ok {
				name = named.Name + "." + name
			}
		}
		names = append(names, name)
	}
	return names, nil
}
