// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// packInto writes this executable and, behind it, a zip archive of a folder into a file. The loader reads the beginning
// of such a file, and zip its end.
func packInto(path, folder string) (err error) {
	if path == "" {
		return errors.New("cannot pack: give the file as the argument")
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	if err := errors.Join(archive.AddFS(os.DirFS(folder)), archive.Close()); err != nil {
		return fmt.Errorf("cannot pack %s: %w", folder, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return errors.Join(writeAll(path, self, os.O_TRUNC), writeAll(path, &packed, os.O_APPEND))
}

// unpack writes the programs behind this executable into a folder.
func unpack(folder string) error {
	archive, err := zip.OpenReader("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("cannot find the programs: this is no output of make site-check: %w", err)
	}
	defer archive.Close()
	for _, f := range archive.File {
		if f.FileInfo().IsDir() {
			continue
		}
		path := filepath.Join(folder, filepath.Clean("/"+f.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		from, err := f.Open()
		if err != nil {
			return err
		}
		err = errors.Join(writeAll(path, from, os.O_TRUNC), from.Close())
		if err != nil {
			return fmt.Errorf("cannot unpack %s: %w", f.Name, err)
		}
	}
	return nil
}

// writeAll writes a stream into an executable file.
func writeAll(path string, from io.Reader, flags int) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flags, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	return errors.Join(err, file.Close())
}
