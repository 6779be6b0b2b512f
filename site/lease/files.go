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

	"github.com/slurm-mps/slurm-mps/site/osfile"
	"golang.org/x/sys/unix"
)

// writeWhole writes content to path. A reader sees the old file, the new one or none, but never a part. The temporary
// file has a fixed name, because there is one writer: the next one overwrites the file that a killed writer left.
func writeWhole(path string, content []byte, mode fs.FileMode, gid int) error {
	if err := replace(path, content, mode, gid, true); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// replace is writeWhole without the sync of the folder. Without sync, a crash of the node may lose the file.
func replace(path string, content []byte, mode fs.FileMode, gid int, sync bool) error {
	temporary := temporaryOf(path)
	err := writeFile(temporary, content, mode, gid, sync)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		err = osfile.ExplainFull(path, err)
		_ = os.Remove(temporary) // on a full disk its blocks are needed
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

// remove removes path. A missing path is not an error.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove %s: %w", path, errors.Unwrap(err))
	}
	return nil
}

// header is the beginning of every record. It is read first, so that a record of a newer form is refused as such.
type header struct {
	Schema int    `json:"schema"`
	Boot   string `json:"boot"`
}

// readRecord reads a record, which root wrote, into value.
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

// readOwned returns a record's content. The error is ErrNotFound if there is not a record.
func readOwned(path string) ([]byte, error) { return readOwnedBy(path, osfile.ReadRootOwned) }

func readOwnedBy(path string, read func(path string) ([]byte, error)) ([]byte, error) {
	content, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	return content, err
}

// check fails if the record is of another boot or of another schema.
func (h header) check(path, boot string) error {
	if h.Boot == "" {
		return fmt.Errorf("cannot read %s: %w: it names no boot", path, ErrCorrupt)
	}
	if h.Boot != boot {
		return ErrStaleBoot
	}
	if h.Schema != Schema {
		return fmt.Errorf("cannot read %s: %w: %d, and this program knows %d", path, ErrSchema, h.Schema, Schema)
	}
	return nil
}

// flock opens path and takes its lock, and waits until ctx ends. If another process removed or replaced the file
// during the wait, the lock would be on a file that no other process opens. flock then starts again.
func flock(ctx context.Context, path string) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cannot lock %s: %w", path, osfile.ExplainFull(path, errors.Unwrap(err)))
		}
		if err := osfile.Flock(ctx, file); err != nil {
			holder := readHolder(file)
			file.Close()
			if errors.Is(err, osfile.ErrLocked) {
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
	atPath, err2 := os.Lstat(path)
	return err1 == nil && err2 == nil && os.SameFile(open, atPath)
}

func readHolder(file *os.File) holderNote {
	var holder holderNote
	buffer := make([]byte, 256)
	n, _ := file.ReadAt(buffer, 0)
	_ = json.Unmarshal(buffer[:n], &holder) // the holder is unknown until it has written its pid
	return holder
}
