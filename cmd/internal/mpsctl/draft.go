// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Draft is a new file beside the one that it will replace, so that a page or a picture is whole or absent.
type Draft struct {
	file *os.File
	path string
}

// NewDraft makes a draft, which proves that the file can be written. It refuses a path that is a link, a device or a
// folder, because a rename would replace the link, the device or the folder.
func NewDraft(path string) (Draft, error) {
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		return Draft{}, fmt.Errorf("cannot write %s: it is not a regular file: give another name", path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Draft{}, fmt.Errorf("cannot write: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".slurm-mps-*")
	var cause *fs.PathError // its path is that of the draft
	if errors.As(err, &cause) {
		err = cause.Err
	}
	if err != nil {
		return Draft{}, fmt.Errorf("cannot write %s: %w", path, err)
	}
	return Draft{file, path}, nil
}

// Finish writes the content and renames the draft to the path of the file.
func (d Draft) Finish(content []byte) error {
	_, err := d.file.Write(content)
	err = errors.Join(err, d.file.Chmod(0o644), d.file.Close())
	if err == nil {
		err = os.Rename(d.file.Name(), d.path)
	}
	if err != nil {
		d.Drop()
		return fmt.Errorf("cannot write %s: %w", d.path, err)
	}
	return nil
}

// Drop removes a draft that was not finished.
func (d Draft) Drop() {
	_ = d.file.Close()
	_ = os.Remove(d.file.Name())
}

// writeFile writes a file, which is whole or absent.
func writeFile(path string, content []byte) error {
	d, err := NewDraft(path)
	if err != nil {
		return err
	}
	return d.Finish(content)
}
