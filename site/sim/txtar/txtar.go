// SPDX-License-Identifier: Apache-2.0

// Package txtar reads and writes the archives of text files that tests use, in the format of golang.org/x/tools/txtar:
// a line "-- NAME --" begins a file.
package txtar

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// Archive is the text before the first file, and the files.
type Archive struct {
	Comment string
	Files   map[string]string
}

// Parse reads an archive.
func Parse(text string) (Archive, error) {
	a := Archive{Files: map[string]string{}}
	name := ""
	for line := range strings.SplitAfterSeq(text, "\n") {
		if next := nameIn(line); next != "" {
			if _, twice := a.Files[next]; twice {
				return Archive{}, fmt.Errorf("cannot read archive: it has the file %s twice", next)
			}
			name = next
			a.Files[name] = ""
		} else if name == "" {
			a.Comment += line
		} else {
			a.Files[name] += line
		}
	}
	return a, nil
}

// nameIn returns the name of the file that a line begins, "" for a line of a file.
func nameIn(line string) string {
	rest, begins := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "-- ")
	name, ends := strings.CutSuffix(rest, " --")
	if !begins || !ends {
		return ""
	}
	return strings.TrimSpace(name)
}

// Names returns the names of the files in order.
func (a Archive) Names() []string { return slices.Sorted(maps.Keys(a.Files)) }

// Text is the archive as a text, with its files in the order of their names.
func (a Archive) Text() string {
	var out strings.Builder
	out.WriteString(a.Comment)
	for _, name := range a.Names() {
		out.WriteString("-- " + name + " --\n" + a.Files[name])
	}
	return out.String()
}

// Read reads the archive in a file.
func Read(path string) (Archive, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Archive{}, err
	}
	return Parse(string(text))
}

// Put writes a file into the archive at path, which it makes if there is none. Two calls at a time lose one's file.
func Put(path, name, text string) error {
	a, err := Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		a, err = Archive{Files: map[string]string{}}, nil
	}
	if err != nil {
		return err
	}
	a.Files[name] = text
	if again, err := Parse(a.Text()); err != nil || again.Comment != a.Comment || !maps.Equal(again.Files, a.Files) {
		return fmt.Errorf("cannot put %s into %s: an archive's file ends with a newline and has no line -- NAME --", name, path)
	}
	return os.WriteFile(path, []byte(a.Text()), 0o644)
}
