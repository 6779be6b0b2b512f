// SPDX-License-Identifier: Apache-2.0

// Command install puts the files of the packages onto a machine that takes no package, or into a folder: for
// "make install". It runs at the top of the source.
//
//	install -built FOLDER [-destdir FOLDER] [-prefix /usr]
//
// A configuration file that is there stays as it is.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site/pkg/contents"
)

func main() {
	var d destination
	flag.StringVar(&d.built, "built", "", "folder of what site/pkg/parts.sh has made")
	flag.StringVar(&d.destdir, "destdir", "", "folder in place of /")
	flag.StringVar(&d.prefix, "prefix", "/usr", "folder in place of /usr")
	flag.Parse()
	d.top = "."
	syscall.Umask(0o022) // folders between those of the list are for all to enter
	if err := d.run(flag.NArg(), os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "install: %v\n", err)
		os.Exit(1)
	}
}

// destination is where files come from and go to.
type destination struct{ top, built, destdir, prefix string }

func (d destination) run(operands int, out io.Writer) error {
	if operands > 0 || d.built == "" || !filepath.IsAbs(d.prefix) {
		return errors.New("cannot install: usage: install -built FOLDER [-destdir FOLDER] [-prefix /FOLDER]")
	}
	d.prefix = strings.TrimRight(filepath.Clean(d.prefix), "/")
	all, err := contents.Read(filepath.Join(d.top, "site/pkg/nfpm.yaml"))
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(e contents.Entry) bool { return e.Packager == "deb" }) // Debian's own place for zsh
	moved := d.moved(all)
	for _, e := range all {
		if err := d.put(e, moved, out); err != nil {
			return fmt.Errorf("cannot install %s: %w", d.path(e.Target), err)
		}
	}
	return nil
}

// path is where an entry goes.
func (d destination) path(target string) string {
	if rest, found := strings.CutPrefix(target, "/usr/"); found {
		target = d.prefix + "/" + rest
	}
	return filepath.Join(d.destdir, target)
}

// moved replaces the paths of all files by those that they have below another prefix than /usr.
func (d destination) moved(all []contents.Entry) *strings.Replacer {
	longest := slices.SortedFunc(slices.Values(all), func(a, b contents.Entry) int {
		return cmp.Compare(len(b.Target), len(a.Target))
	})
	here := destination{prefix: d.prefix}
	var pairs []string
	for _, e := range longest {
		pairs = append(pairs, e.Target, here.path(e.Target))
	}
	return strings.NewReplacer(pairs...)
}

func (d destination) put(e contents.Entry, moved *strings.Replacer, out io.Writer) error {
	path := d.path(e.Target)
	if e.Kind == contents.Dir {
		return errors.Join(os.MkdirAll(path, e.Mode), os.Chmod(path, e.Mode))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	draft := path + ".slurm-mps-new"
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if e.Kind == contents.Symlink {
		return errors.Join(os.Symlink(e.Source, draft), os.Rename(draft, path))
	}
	content, err := d.content(e, moved)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(path); e.Kind == contents.Config && err == nil {
		if !bytes.Equal(old, content) {
			fmt.Fprintf(out, "install: left as it is: %s\n", path)
		}
		return nil
	}
	// The file takes its place as a whole: a program that runs keeps its old file.
	return errors.Join(os.WriteFile(draft, content, e.Mode), os.Chmod(draft, e.Mode), os.Rename(draft, path))
}

// content is what an entry's file holds. A site's files name programs by path.
func (d destination) content(e contents.Entry, moved *strings.Replacer) ([]byte, error) {
	if built := e.Built(); built != "" {
		return os.ReadFile(filepath.Join(d.built, built))
	}
	content, err := os.ReadFile(filepath.Join(d.top, e.Source))
	if err == nil && strings.HasPrefix(e.Source, "site/etc/") {
		content = []byte(moved.Replace(string(content)))
	}
	return content, err
}
