// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/osfile"
)

// FileStatus reports whether an admin's file can be used, and its substitute (docs/decisions.md, 25).
type FileStatus struct {
	Err  error     // why it cannot be used, nil if it can
	Kept time.Time // when the copy in use was kept; zero if there is none
	// Hidden is true if this user may not read the copy, so that Kept is not known.
	Hidden bool
}

// Instead describes the substitute of a file that cannot be used. without describes the case without a copy.
func (s FileStatus) Instead(without string) string {
	if s.Hidden {
		return "the last one that could be used is used if it was kept, which root can see"
	}
	if s.Kept.IsZero() {
		return "no copy of one that could be used was kept: " + without
	}
	return "the one that was kept on " + s.Kept.Format("2006-01-02 15:04:05") + " is used"
}

// These are the names of the copies.
const (
	keptPolicy = "policy.json" // of several files
	keptConfig = "site.hcl"
)

// copies is the form in which a policy is kept: {"files": [{"name": "/etc/…/policy.hcl", "text": "version = 1\n…"}]}
type copies struct {
	Files []source `json:"files"`
}

// ReadPolicy reads the node's policy, or the last one that could be used. It is nil if there is neither.
func ReadPolicy(paths site.Paths) (*Compiled, FileStatus) {
	compiled, err := Load(paths.Policy())
	return orKept(paths, keptPolicy, compiled, err, nil, func(content []byte) (*Compiled, error) {
		var kept copies
		if err := json.Unmarshal(content, &kept); err != nil {
			return nil, err
		}
		files := make([]file, len(kept.Files))
		for i, f := range kept.Files {
			files[i] = file{name: f.Name, source: []byte(f.Text)}
		}
		return compile(files)
	})
}

// KeepPolicy keeps a policy that can be used. It writes only if the policy has changed.
func KeepPolicy(paths site.Paths, compiled *Compiled) error {
	content, err := json.MarshalIndent(copies{compiled.Sources()}, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot keep policy: %w", err)
	}
	return keep(paths, keptPolicy, append(content, '\n'))
}

// orKept returns a value that was read. If err is set, it returns the copy that was kept, or without if there is none.
func orKept[T any](
	paths site.Paths, name string, value T, err error, without T, parse func([]byte) (T, error),
) (T, FileStatus) {
	if err == nil {
		return value, FileStatus{}
	}
	content, modified, keptErr := readKept(paths, name)
	if keptErr == nil {
		value, keptErr = parse(content)
	}
	if keptErr != nil {
		return without, FileStatus{Err: err, Hidden: errors.Is(keptErr, fs.ErrPermission)}
	}
	return value, FileStatus{Err: err, Kept: modified}
}

func readKept(paths site.Paths, name string) (content []byte, modified time.Time, err error) {
	path := filepath.Join(paths.Kept(), name)
	if content, err = osfile.ReadRootOwned(path); err != nil {
		return nil, modified, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, modified, err
	}
	return content, info.ModTime(), nil
}

func keep(paths site.Paths, name string, content []byte) error {
	if kept, _, err := readKept(paths, name); err == nil && bytes.Equal(kept, content) {
		return nil
	}
	if err := os.MkdirAll(paths.Kept(), 0o755); err != nil {
		return fmt.Errorf("cannot keep a copy: %w", err)
	}
	dir, err := osfile.OpenFolder(paths.Kept())
	if err != nil {
		return err
	}
	defer dir.Close()
	return osfile.File{Content: content, Mode: 0o600, Sync: true}.Write(dir, name)
}
