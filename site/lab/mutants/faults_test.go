// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var source, _ = filepath.Abs(filepath.Join("..", "..", ".."))

func all(t *testing.T) []fault {
	t.Helper()
	faults, err := readFaults()
	if err != nil {
		t.Fatal(err)
	}
	return faults
}

// A fault whose text is no longer in the source, or that does not build, checks no promise.
func TestEveryFaultBuilds(t *testing.T) {
	if err := wellFormed(source, all(t)); err != nil {
		t.Error(err)
	}
}

// What does not build, or is not found exactly once, is reported.
func TestFaultsThatAreWrong(t *testing.T) {
	const file = "site/lease/store.go"
	for _, c := range []struct{ old, new, want string }{
		{"l.Job.ID != job {", "l.Job.ID != 7 {", ""},
		{"l.Job.ID != job {", `l.Job.ID != "7" {`, "does not build"},
		{"l.Job.ID != job {", "l.Job.ID != job", "does not build"},
		{"l.Job.ID != job {", "func() bool { unused := 1; return true }() {", "does not build"},
		{"no such text", "", "0 times"},
		{"return", "", "cannot plant"},
	} {
		err := wellFormed(source, []fault{{name: "f", file: file, old: c.old, new: c.new}})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %v, want %q", c.new, err, c.want)
		}
	}
}

// A list that is not well formed is an error.
func TestListsThatAreWrong(t *testing.T) {
	const whole = "a: R1\nf.go\n- x\n- y\n+\n./f TestA TestB\n"
	found, err := parse("# A title\n\n" + whole + "\n\n" + whole)
	want := fault{"a", "R1", "f.go", "x\ny", "", "./f", "TestA TestB"}
	if err != nil || len(found) != 2 || found[0] != want || found[1] != want {
		t.Errorf("%+v, %v", found, err)
	}
	for _, text := range []string{
		"a\nf.go\n- x\n+ y\n./f TestA", "a: R1\nf.go\n- x\n+ y\n./f", "a: R1\nf.go\n+ y\n./f TestA",
		"a: R1\nf.go\n- x\n./f TestA", "a: R1\nf.go\n- x\n+ y\n./f TestA\nb: R1",
	} {
		if found, err := parse(text); err == nil {
			t.Errorf("%q: %+v", text, found)
		}
	}
}

// Each fault has a name of its own, and tests.
func TestFaultsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range all(t) {
		if seen[f.name] || f.name == "" || f.tests == "" || f.folder == "" {
			t.Errorf("%q: no name of its own, no folder or no test", f.name)
		}
		seen[f.name] = true
	}
}

// The tests that must notice a fault exist. Otherwise, go test runs nothing and fails for that.
func TestFaultsNameTests(t *testing.T) {
	sources := map[string]string{}
	for _, f := range all(t) {
		if _, read := sources[f.folder]; !read {
			files, err := filepath.Glob(filepath.Join(source, f.folder, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				content, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				sources[f.folder] += string(content)
			}
		}
		for _, test := range strings.Fields(f.tests) {
			name, _, _ := strings.Cut(test, "/")
			if !strings.Contains(sources[f.folder], "func "+name+"(") {
				t.Errorf("%s: %s has no %s", f.name, f.folder, name)
			}
		}
	}
}

// Each clause has a fault, or a reason for having none.
func TestEachClauseHasAFault(t *testing.T) {
	if err := printTable(io.Discard, all(t)); err != nil {
		t.Error(err)
	}
}
