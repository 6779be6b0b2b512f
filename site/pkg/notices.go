// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// printNotices prints the licenses of the code that programs link besides slurm-mps itself. This is each Go module with
// its version, and Go's standard library. A folder is a main package of this module, such as ./cmd/prolog. The same
// modules give the same bytes. A module without a license file is an error.
func printNotices(folders []string, out io.Writer) error {
	modules, err := linked(folders)
	if err != nil {
		return err
	}
	text, err := notices(modules)
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, text)
	return err
}

// module is a module that the programs link.
type module struct {
	path, version string
	dir           string   // folder of its source
	packages      []string // folders of its linked packages
}

// listed is the output of go list for a package.
type listed struct {
	Dir      string
	Standard bool
	Module   *struct {
		Path, Version, Dir string
		Main               bool
		Replace            *struct{ Path, Version string }
	}
}

// linked returns the modules that the programs link, sorted by path, without this module. It lists all programs with
// cgo, although some are built without cgo. Those link no additional module.
func linked(folders []string) ([]module, error) {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=Dir,Standard,Module"}, folders...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list packages of %s: %w", strings.Join(folders, " "), err)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("cannot find Go's own source: %w", err)
	}
	return gather(json.NewDecoder(bytes.NewReader(out)), strings.TrimSpace(string(root)))
}

// standard is the name of the standard library in the notices.
const standard = "Go's standard library"

func gather(packages *json.Decoder, root string) ([]module, error) {
	found := map[string]*module{}
	for {
		var p listed
		if err := packages.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("cannot read list of packages: %w", err)
		}
		m := p.module(root)
		if m.path == "" {
			continue
		}
		if found[m.path] == nil {
			found[m.path] = &m
		}
		found[m.path].packages = append(found[m.path].packages, p.Dir)
	}
	var all []module
	for _, m := range found {
		all = append(all, *m)
	}
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return all, nil
}

// module returns the module of a package. If its path is empty, it needs no notice.
func (p listed) module(root string) module {
	switch {
	case p.Standard:
		return module{path: standard, version: runtime.Version(), dir: root}
	case p.Module == nil || p.Module.Main:
		return module{}
	}
	m := module{path: p.Module.Path, version: p.Module.Version, dir: p.Module.Dir}
	if m.dir == "" { // Go names no folder of a vendored module, which has its licenses there
		below := strings.LastIndex(p.Dir, "/vendor/"+m.path)
		m.dir = p.Dir[:max(below, 0)+len("/vendor/"+m.path)]
	}
	if r := p.Module.Replace; r != nil {
		m.path, m.version = m.path+" (replaced by "+r.Path+")", r.Version
	}
	return m
}

const head = `The programs of slurm-mps are under the Apache License 2.0. They contain the Go modules below.
Each module is under its own license.
"go mod download PATH@VERSION" fetches the source of a module, unchanged.
`

func notices(modules []module) (string, error) {
	if len(modules) == 0 {
		return "", errors.New("cannot print notices: the programs link no module")
	}
	var b strings.Builder
	b.WriteString(head)
	for _, m := range modules {
		files, err := m.licenses()
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "\n%s\n%s %s\n", strings.Repeat("=", 80), m.path, m.version)
		for _, name := range files {
			content, err := os.ReadFile(filepath.Join(m.dir, name))
			if err != nil {
				return "", fmt.Errorf("cannot read license of %s: %w", m.path, err)
			}
			text := strings.Trim(strings.ReplaceAll(string(content), "\r\n", "\n"), "\n")
			if text == "" {
				return "", fmt.Errorf("cannot print license of %s %s: %s is empty", m.path, m.version, name)
			}
			fmt.Fprintf(&b, "%s\n%s\n\n%s\n", strings.Repeat("-", 80), name, text)
		}
	}
	return b.String(), nil
}

var (
	license = regexp.MustCompile(`(?i)^(licen[cs]e|copying)([.-][a-z0-9.-]*)?$`)
	notice  = regexp.MustCompile(`(?i)^(notice|patents)([.-][a-z]*)?$`)
)

// licenses returns the files with a module's licenses and notices, as paths below its folder. It reads the root of
// the module, and each folder between the root and a linked package.
func (m module) licenses() ([]string, error) {
	folders := []string{m.dir}
	for _, dir := range m.packages {
		for ; dir != m.dir && strings.HasPrefix(dir, m.dir+"/"); dir = filepath.Dir(dir) {
			folders = append(folders, dir)
		}
	}
	slices.Sort(folders)
	var files []string
	licensed := false
	for _, folder := range slices.Compact(folders) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, fmt.Errorf("cannot find license of %s %s: %w", m.path, m.version, err)
		}
		for _, entry := range entries {
			known := license.MatchString(entry.Name())
			source := entry.IsDir() || filepath.Ext(entry.Name()) == ".go"
			if source || !known && !notice.MatchString(entry.Name()) {
				continue
			}
			licensed = licensed || known && folder == m.dir
			name, err := filepath.Rel(m.dir, filepath.Join(folder, entry.Name()))
			if err != nil {
				return nil, err
			}
			files = append(files, name)
		}
	}
	if !licensed {
		return nil, fmt.Errorf("cannot find license of %s %s: no file LICENSE or COPYING is in %s", m.path, m.version, m.dir)
	}
	return files, nil
}
