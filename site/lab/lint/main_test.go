// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestThisSource checks that each file of this source names its license, and that no line is longer than the rules
// allow.
func TestThisSource(t *testing.T) {
	const top = "../../.."
	files, err := sources(top)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, name := range files {
		count[name[strings.LastIndex(name, ".")+1:]]++
	}
	if count["go"] < 100 || count["sh"] < 5 || count["c"] < 5 || count["h"] < 3 {
		t.Fatalf("the test sees only %v", count)
	}
	wrong, err := check(os.DirFS(top), files)
	if err != nil || len(wrong) > 0 {
		t.Errorf("%v\n%s", err, strings.Join(wrong, "\n"))
	}
}

func TestLicense(t *testing.T) {
	const line = "SPDX-License-Identifier: Apache-2.0"
	for content, ok := range map[string]bool{
		"a.go // " + line + "\n\npackage a\n":                     true,
		"a.go // " + line + "\n\n//go:build linux\n\npackage a\n": true,
		"a.go // " + line + "\npackage a\n":                       false,
		"a.go package a\n\n// " + line + "\n":                     false,
		"a.go package a\n\nconst b = 1\n":                         false,
		"a.sh #!/bin/sh\n# " + line + "\n":                        true,
		"a.sh # " + line + "\n":                                   true,
		"a.sh #!/bin/sh\nset -eu\n# " + line + "\n":               false,
		"a.c // " + line + "\nint a;\n":                           true,
		"a.c int a;\n":                                            false,
		"a.h /* " + line + " */\n":                                true,
		"a.h ":                                                    false,
		"a.lua -- " + line + "\n":                                 true,
		"a.py # SPDX-License-Identifier: MIT\n":                   false,
		"a.md # no license\n":                                     true,
	} {
		name, text, _ := strings.Cut(content, " ")
		wrong, err := check(fstest.MapFS{name: {Data: []byte(text)}}, []string{name})
		if err != nil || (len(wrong) == 0) != ok {
			t.Errorf("%q: %v, found %q", content, err, wrong)
		}
	}
}

func TestNames(t *testing.T) {
	const text = `package a

type T struct {
	// New is right. Of two fields, either name may come first.
	New, Other int
	// These are no name.
	Third int
	// Old is the name of yesterday.
	Fourth int
	// Gives returns something.
	Fifth func() int
}

func (t T) one()     {}
func (t *T) two()    {}
func (_ T) three()   {}
func (T) four()      {}
func (s *T) five()   {}
func (s *G[X]) six() {}
func (g G[X]) seven() {}
`
	n := newNames()
	want := []string{
		"b/a.go:9: the comment of Fourth begins with the name Old",
		"b/a.go:11: the comment of Fifth begins with the name Gives",
		"b/a.go:18: the receiver of T is s, and t at b/a.go:14:7",
		"b/a.go:20: the receiver of G is g, and s at b/a.go:19:7",
	}
	if found := n.check("b/a.go", []byte(text)); !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
	other := []byte("package a\n\nfunc (x T) eight() {}\n")
	if found := n.check("c/a.go", other); len(found) > 0 {
		t.Errorf("a type of another package: %q", found)
	}
	if found := n.check("b/b.go", other); len(found) != 1 {
		t.Errorf("a second file of the package: %q", found)
	}
}

func TestLengths(t *testing.T) {
	text := "// SPDX-License-Identifier: Apache-2.0\n\n"
	for _, width := range []int{columns, columns + 1, longest, longest + 1} {
		text += "//" + strings.Repeat("é", width-2) + "\n"
	}
	text += "// https://" + strings.Repeat("x", longest) + "\n"
	long, wrong := lengths("a.go", []byte(text))
	want := fmt.Sprintf("a.go:6: the line has %d columns, and %d is the limit", longest+1, longest)
	if long != 3 || !slices.Equal(wrong, []string{want}) {
		t.Errorf("%d long lines, %q", long, wrong)
	}
	line := "//" + strings.Repeat("x", columns) + "\n"
	many := "// SPDX-License-Identifier: Apache-2.0\n\n" + strings.Repeat(line, allowed+1)
	if found, err := check(fstest.MapFS{"a.go": {Data: []byte(many)}}, []string{"a.go"}); err != nil || len(found) != 1 {
		t.Errorf("%v, found %q", err, found)
	}
}

func TestGroups(t *testing.T) {
	text := []byte("package a\n\nfunc end(pid int) { _ = unix.Kill(" + "-pid, 9) }\n")
	if wrong := groups("a.go", text); len(wrong) != 1 || !strings.HasPrefix(wrong[0], "a.go:3: ") {
		t.Errorf("found %q", wrong)
	}
	if wrong := groups("site/sim/node/group.go", text); len(wrong) > 0 {
		t.Errorf("found %q", wrong)
	}
}
