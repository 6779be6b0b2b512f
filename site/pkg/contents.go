// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// entry is a file, a folder or a link in the list.
type entry struct {
	Source   string      // path in the source, or, after "${BUILT}/", in the build folder; for a link, its target
	Target   string      // absolute path on a node
	Kind     string      // Dir, Config, Symlink, License, or "" for another file
	Mode     fs.FileMode // 0 for a link
	Packager string      // "deb" or "rpm" if only this packager uses the entry
}

// Dir, Config, Symlink and License are the kinds of an entry, in nfpm's words.
const (
	Dir     = "dir"
	Config  = "config|noreplace" // an upgrade does not overwrite an existing file
	Symlink = "symlink"
	License = "license" // rpm marks it as %license
)

var field = regexp.MustCompile(`(src|dst|type|mode|packager): (?:"([^"]+)"|([^,}\s]+))`)

// readList reads the list of files that slurm-mps installs on a node. The list is the contents of site/pkg/nfpm.yaml,
// which has one entry on each line.
func readList(path string) ([]entry, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read list of files: %w", err)
	}
	var all []entry
	for line := range strings.Lines(string(content)) {
		if !strings.HasPrefix(line, "  - {") {
			continue
		}
		e, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("cannot read list of files: %s: %w: %s", path, err, strings.TrimSpace(line))
		}
		all = append(all, e)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("cannot read list of files: %s has none", path)
	}
	return all, nil
}

func parse(line string) (entry, error) {
	var e entry
	var mode string
	fields := map[string]*string{
		"src": &e.Source, "dst": &e.Target, "type": &e.Kind, "mode": &mode, "packager": &e.Packager,
	}
	for _, m := range field.FindAllStringSubmatch(line, -1) {
		*fields[m[1]] = m[2] + m[3]
	}
	if !strings.HasPrefix(e.Target, "/") || e.Source == "" && e.Kind != Dir {
		return e, errors.New("an entry has no absolute dst or no src")
	}
	if e.Kind == Symlink {
		return e, nil
	}
	bits, err := strconv.ParseUint(mode, 8, 9)
	if err != nil {
		return e, fmt.Errorf("an entry has no mode: %w", err)
	}
	e.Mode = fs.FileMode(bits)
	return e, nil
}

// Built returns the path of an entry's source in the build folder, or "" if the source is not built.
func (e entry) Built() string {
	path, found := strings.CutPrefix(e.Source, "${BUILT}/")
	if !found {
		return ""
	}
	return path
}

// Program reports whether an entry is a program.
func (e entry) Program() bool { return strings.HasPrefix(e.Built(), "bin/") }
