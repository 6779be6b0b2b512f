// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	file, err := os.CreateTemp(filepath.Dir(path), ".slurm-mps-*")
	var cause *fs.PathError // its path is that of the temporary file
	if errors.As(err, &cause) {
		err = cause.Err
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot write %s: %w", path, err), os.Remove(file.Name()))
	}
	return nil
}
