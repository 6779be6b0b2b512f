// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/slurm-mps/slurm-mps/site/osfile"
	"golang.org/x/sys/unix"
)

// state is a file of a store that is written often, so it does not wait for the disk. Each file of a store has one
// writer at a time.
func state(content []byte, mode fs.FileMode) osfile.File {
	return osfile.File{Content: append(content, '\n'), Mode: mode, Alone: true}
}

// record is a file that is on the disk before what it records is done.
func record(content []byte, mode fs.FileMode, gid uint32) osfile.File {
	return osfile.File{Content: append(content, '\n'), Mode: mode, GID: gid, Sync: true, Alone: true}
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
	content, err := found(osfile.ReadRootOwned(path))
	if err != nil {
		return err
	}
	var head header
	torn := json.Unmarshal(content, &head)
	if torn == nil {
		if err := head.check(path, boot); err != nil {
			return err
		}
		torn = json.Unmarshal(content, value)
	}
	if torn != nil {
		return fmt.Errorf("cannot read %s: %w: %w", path, ErrCorrupt, torn)
	}
	return nil
}

// found returns what was read of a record. The error is ErrNotFound if there is no record.
func found(content []byte, err error) ([]byte, error) {
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
		return fmt.Errorf("cannot read %s: %w: %d, and this program knows %d", path, errSchema, h.Schema, Schema)
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
