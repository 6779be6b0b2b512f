// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/osfile"
)

// writePage writes a page into a file. The file is whole or absent.
func writePage(path string, write func(io.Writer) error) error {
	var html bytes.Buffer
	err := write(&html)
	if err == nil {
		err = replaceFile(path, html.Bytes())
	}
	if err != nil {
		return cli.RuntimeError{Err: err}
	}
	return nil
}

// replaceFile writes a file, which is whole or absent, and keeps the mode of the old one. It refuses a link, a device
// and a folder, because a rename would replace these.
func replaceFile(path string, content []byte) error {
	mode := fs.FileMode(0o644)
	info, err := os.Lstat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("cannot write %s: it is not a regular file: remove it, or give another name", path)
	case err == nil:
		mode = info.Mode().Perm()
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot write: %w", err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	defer dir.Close()
	return osfile.File{Content: content, Mode: mode, Sync: true}.Write(dir, filepath.Base(path))
}
