// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// destination names the folders from which files are copied and to which they are copied.
type destination struct{ top, list, built, destdir, prefix string }

// install installs the files of the packages on a machine without a package manager, or in a folder. An existing
// configuration file stays unchanged.
func (d destination) install(out io.Writer) error {
	if d.built == "" || !filepath.IsAbs(d.prefix) {
		return errors.New("cannot install: give -built FOLDER, and an absolute -prefix")
	}
	d.prefix = strings.TrimRight(filepath.Clean(d.prefix), "/")
	all, err := readList(filepath.Join(d.top, d.list))
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(e entry) bool { return e.Packager == "deb" }) // for Debian's zsh folder
	moved := d.moved(all)
	for _, e := range all {
		if err := d.put(e, moved, out); err != nil {
			return fmt.Errorf("cannot install %s: %w", d.path(e.Target), err)
		}
	}
	return nil
}

// path returns the path at which an entry is installed.
func (d destination) path(target string) string {
	if rest, found := strings.CutPrefix(target, "/usr/"); found {
		target = d.prefix + "/" + rest
	}
	return filepath.Join(d.destdir, target)
}

// moved returns a replacer for texts. It replaces the paths of all files by their paths below another prefix than
// /usr.
func (d destination) moved(all []entry) *strings.Replacer {
	longest := slices.SortedFunc(slices.Values(all), func(a, b entry) int {
		return cmp.Compare(len(b.Target), len(a.Target))
	})
	here := destination{prefix: d.prefix}
	var pairs []string
	for _, e := range longest {
		pairs = append(pairs, e.Target, here.path(e.Target))
	}
	return strings.NewReplacer(pairs...)
}

func (d destination) put(e entry, moved *strings.Replacer, out io.Writer) error {
	path := d.path(e.Target)
	if e.Kind == Dir {
		return errors.Join(os.MkdirAll(path, e.Mode), os.Chmod(path, e.Mode))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	draft := path + ".slurm-mps-new"
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if e.Kind == Symlink {
		return errors.Join(os.Symlink(e.Source, draft), os.Rename(draft, path))
	}
	content, err := d.content(e, moved)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(path); e.Kind == Config && err == nil {
		if !bytes.Equal(old, content) {
			fmt.Fprintf(out, "install: left as it is: %s\n", path)
		}
		return nil
	}
	// The rename replaces the file in one step, so a running program keeps its old file.
	return errors.Join(os.WriteFile(draft, content, e.Mode), os.Chmod(draft, e.Mode), os.Rename(draft, path))
}

// content returns the content of an entry's file. In a site's files, it replaces the paths of programs.
func (d destination) content(e entry, moved *strings.Replacer) ([]byte, error) {
	if built := e.Built(); built != "" {
		return os.ReadFile(filepath.Join(d.built, built))
	}
	content, err := os.ReadFile(filepath.Join(d.top, e.Source))
	if err == nil && strings.HasPrefix(e.Source, "site/etc/") {
		content = []byte(moved.Replace(string(content)))
	}
	return content, err
}
