// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// writeWhole puts content at path so that a reader sees the old file, the new one or none, never a part. The temporary
// file's name is fixed: there is one writer, and what a killed one left is overwritten by the next.
func writeWhole(path string, content []byte, mode fs.FileMode, gid int) error {
	if err := replace(path, content, mode, gid, true); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// replace is writeWhole without the folder. Without the sync it is for what a crash of the node may take.
func replace(path string, content []byte, mode fs.FileMode, gid int, sync bool) error {
	temporary := temporaryOf(path)
	err := writeFile(temporary, content, mode, gid, sync)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary) // a full disk wants its blocks back
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

func temporaryOf(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
}

func writeFile(path string, content []byte, mode fs.FileMode, gid int, sync bool) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if gid >= 0 {
		if err := file.Chown(-1, gid); err != nil {
			return err
		}
	}
	if err := file.Chmod(mode); err != nil {
		return err
	}
	if _, err := file.Write(content); err != nil {
		return err
	}
	if !sync {
		return nil
	}
	return file.Sync()
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot sync %s: %w", path, err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("cannot sync %s: %w", path, err)
	}
	return nil
}

// remove makes path absent; that it was so already is no error.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove %s: %w", path, errors.Unwrap(err))
	}
	return nil
}

// header is what every record begins with, read before the rest so that a newer form is refused as such.
type header struct {
	Schema int    `json:"schema"`
	Boot   string `json:"boot"`
}

// readRecord reads a record that root wrote into value.
func readRecord(path, boot string, value any) error {
	content, err := readOwned(path)
	if err != nil {
		return err
	}
	var head header
	if err := json.Unmarshal(content, &head); err != nil {
		return fmt.Errorf("cannot read %s: %w: %w", path, ErrCorrupt, err)
	}
	if err := head.check(path, boot); err != nil {
		return err
	}
	if err := json.Unmarshal(content, value); err != nil {
		return fmt.Errorf("cannot read %s: %w: %w", path, ErrCorrupt, err)
	}
	return nil
}

// readOwned is a record's content. The error is ErrNotFound if there is none.
func readOwned(path string) ([]byte, error) {
	content, err := site.ReadRootOwned(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	return content, err
}

// check holds a record to this boot and this program.
func (head header) check(path, boot string) error {
	if head.Boot == "" {
		return fmt.Errorf("cannot read %s: %w: it names no boot", path, ErrCorrupt)
	}
	if head.Boot != boot {
		return ErrStaleBoot
	}
	if head.Schema != Schema {
		return fmt.Errorf("cannot read %s: %w: %d, and this program knows %d", path, ErrSchema, head.Schema, Schema)
	}
	return nil
}

// flock opens path and takes its lock, waiting until ctx ends. Where the file was removed or replaced while waiting, the
// lock is on nothing that others see, so it is taken again.
func flock(ctx context.Context, path string) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cannot lock %s: %w", path, errors.Unwrap(err))
		}
		if err := site.Flock(ctx, file); err != nil {
			holder := readHolder(file)
			file.Close()
			if errors.Is(err, site.ErrLocked) {
				return nil, &BusyError{path, holder.Process, holder.Closing}
			}
			return nil, fmt.Errorf("cannot lock %s: %w", path, err)
		}
		if sameFile(file, path) {
			return file, nil
		}
		file.Close()
	}
}

func sameFile(file *os.File, path string) bool {
	open, err1 := file.Stat()
	there, err2 := os.Lstat(path)
	return err1 == nil && err2 == nil && os.SameFile(open, there)
}

func readHolder(file *os.File) holderNote {
	var holder holderNote
	buffer := make([]byte, 256)
	n, _ := file.ReadAt(buffer, 0)
	_ = json.Unmarshal(buffer[:n], &holder) // a holder that has not signed yet is nobody
	return holder
}
