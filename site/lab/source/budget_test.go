// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

// lower writes the budget again, if the sums have not grown.
var lower = flag.Bool("lower", false, "lower the budget of lines to the present values, also in the README")

const budgetFile = "testdata/budget.txt"

// rootPrograms are the programs that slurmd or the prolog starts as root.
var rootPrograms = []string{"cmd/prolog", "cmd/epilog", "cmd/guard"} // gpu-usage is a link to epilog

// readmeLinked is the sentence of the README with the lines that root's programs link.
var readmeLinked = regexp.MustCompile(`root's programs link ([0-9,]+) lines`)

// size is the size of one package, or the sum of several.
type size struct {
	lines    int // of its files in Go without tests, comments included
	exported int // exported names of the package's level, and exported methods of its exported types
}

// budget is the size of the product.
type budget struct {
	packages map[string]size
	root     int // lines of all packages that root's programs link
}

func (b budget) sum() size {
	var sum size
	for _, s := range b.packages {
		sum.lines += s.lines
		sum.exported += s.exported
	}
	return sum
}

func (b budget) String() string {
	var out bytes.Buffer
	out.WriteString("# lines, exported names, package; written by: go test ./site/lab/source -run TestBudget -lower\n")
	sum := b.sum()
	fmt.Fprintf(&out, "%d %d all\n%d 0 root\n", sum.lines, sum.exported, b.root)
	for _, name := range slices.Sorted(maps.Keys(b.packages)) {
		fmt.Fprintf(&out, "%d %d %s\n", b.packages[name].lines, b.packages[name].exported, name)
	}
	return out.String()
}

// No package grows, and the sums do not. A package may grow only if others shrink by as much: -lower writes the new
// values, and refuses larger sums. So each feature pays with a deletion.
func TestBudget(t *testing.T) {
	allowed, counted := readBudget(t), countBudget(t)
	readme := e2e.Read(t, "../../../README.md")
	if counted.sum().lines > allowed.sum().lines || counted.sum().exported > allowed.sum().exported || counted.root > allowed.root {
		t.Fatalf("%d lines, %d exported names, and %d lines in root's programs: the budget is %d, %d and %d. Delete before you add.",
			counted.sum().lines, counted.sum().exported, counted.root, allowed.sum().lines, allowed.sum().exported, allowed.root)
	}
	if *lower {
		write(t, budgetFile, counted.String())
		write(t, "../../../README.md", readmeLinked.ReplaceAllString(readme, "root's programs link "+thousands(counted.root)+" lines"))
		return
	}
	for name, s := range counted.packages {
		if a := allowed.packages[name]; s.lines > a.lines || s.exported > a.exported {
			t.Errorf("package %s has %d lines and %d exported names: its budget is %d and %d. If others have shrunk as much, use -lower",
				name, s.lines, s.exported, a.lines, a.exported)
		}
	}
	if m := readmeLinked.FindStringSubmatch(readme); m == nil || m[1] != thousands(allowed.root) {
		t.Errorf("README.md has %q, want: root's programs link %s lines", m, thousands(allowed.root))
	}
}

// A number in the budget's file holds: a larger package, a larger sum and a new package are noticed.
func TestCountOfAPackage(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.go"), "package a\n\nfunc F() {}\n\ntype T struct{}\n\nfunc (T) M() {}\n\nfunc (T) m() {}\n\nfunc (*t[A]) M() {}\n\nvar A, b = 1, 2\n")
	write(t, filepath.Join(dir, "a_test.go"), "package a\n\nfunc G() {}\n")
	if got, want := countPackage(t, dir), (size{13, 4}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

func readBudget(t *testing.T) budget {
	t.Helper()
	b := budget{packages: map[string]size{}}
	for line := range strings.Lines(e2e.Read(t, budgetFile)) {
		var s size
		var name string
		if strings.HasPrefix(line, "#") {
			continue
		}
		if _, err := fmt.Sscan(line, &s.lines, &s.exported, &name); err != nil {
			t.Fatalf("%s: %q: %v", budgetFile, line, err)
		}
		switch name {
		case "all":
		case "root":
			b.root = s.lines
		default:
			b.packages[name] = s
		}
	}
	return b
}

func countBudget(t *testing.T) budget {
	t.Helper()
	b := budget{packages: map[string]size{}}
	for _, name := range list(t, "-f", "{{.ImportPath}}", e2e.Module+"...") {
		if name = strings.TrimPrefix(name, e2e.Module); !tool(name) {
			b.packages[name] = countPackage(t, filepath.Join("../../..", name))
		}
	}
	linked := map[string]bool{}
	for _, program := range rootPrograms {
		for _, name := range list(t, "-deps", "-f", "{{.ImportPath}}", "../../../"+program) {
			if name = strings.TrimPrefix(name, e2e.Module); !linked[name] {
				linked[name] = true
				b.root += b.packages[name].lines
			}
		}
	}
	return b
}

func countPackage(t *testing.T, dir string) size {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var s size
	for _, path := range paths {
		if !strings.HasSuffix(path, "_test.go") {
			text := e2e.Read(t, path)
			s.lines += strings.Count(text, "\n")
			s.exported += exported(t, text)
		}
	}
	return s
}

func exported(t *testing.T, text string) int {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	add := func(name *ast.Ident) {
		if name.IsExported() {
			count++
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || receiver(d.Recv.List[0].Type).IsExported() {
				add(d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add(spec.Name)
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						add(name)
					}
				}
			}
		}
	}
	return count
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) *ast.Ident {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr: // a type with a parameter
		return receiver(e.X)
	}
	return e.(*ast.Ident)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// thousands returns 18700 as "18,700".
func thousands(n int) string { return fmt.Sprintf("%d,%03d", n/1000, n%1000) }
