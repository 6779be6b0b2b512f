// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/slurm-mps/slurm-mps/site/osfile"
)

// replaceFile writes a file, which is whole or absent, and keeps the mode of the old one. It refuses a link, a device
// and a folder, because a rename would replace these.
func replaceFile(path string, content []byte) error {
	mode := fs.FileMode(0o644)
	info, err := os.Lstat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("cannot write %s: it is not a regular file: give another name", path)
	case err == nil:
		mode = info.Mode().Perm()
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot write: %w", err)
	}
	return osfile.File{Content: content, Mode: mode, Sync: true}.WriteTo(path)
}
