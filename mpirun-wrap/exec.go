// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// execError means that a program could not be run. Code is the wrapper's exit code.
type execError struct {
	Code int // 126: not executable, 127: not found
	err  error
}

func (e *execError) Error() string { return e.err.Error() }
func (e *execError) Unwrap() error { return e.err }

func notRun(path string, err error) error {
	if err == nil {
		return nil
	}
	code := 126
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		code = notFound
	}
	return &execError{code, fmt.Errorf("cannot run %s: %w%s", path, err, repair(path, err))}
}

// repair says what to do about an error of exec whose words do not tell.
func repair(path string, err error) string {
	var st unix.Stat_t
	there := unix.Stat(path, &st) == nil
	switch {
	case there && err == unix.ENOENT:
		return ": the file is there, but not the interpreter of its first line (#!), or the loader of the binary"
	case there && err == unix.EACCES && st.Mode&0o111 == 0:
		return ": make it executable: chmod +x " + path
	case err == unix.ENOEXEC:
		return ": a script begins with a line like #!/bin/sh, and a binary must be made for this machine"
	}
	return ""
}

const notFound = 127

// lookPath finds a program. A name with a slash is a path; any other name is looked up in PATH. The error is a
// *execError.
func lookPath(program string, env []string) (string, error) {
	if strings.Contains(program, "/") {
		return program, executable(program)
	}
	if program == "" {
		return "", &execError{notFound, errors.New("cannot run a program: its name is empty")}
	}
	var refused error
	for _, dir := range filepath.SplitList(pathOf(env)) {
		path := filepath.Join(dir, program)
		err := executable(path)
		if err == nil {
			return path, nil
		}
		if refused == nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			refused = err
		}
	}
	if refused == nil {
		refused = &execError{notFound, fmt.Errorf("cannot run %s: not found in PATH", program)}
	}
	return "", refused
}

func pathOf(env []string) string {
	for _, entry := range env {
		if path, ok := strings.CutPrefix(entry, "PATH="); ok {
			return path
		}
	}
	return "/usr/local/bin:/usr/bin:/bin"
}

func executable(path string) error {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = errors.New("it is a directory")
	}
	if err == nil {
		err = unix.Access(path, unix.X_OK)
	}
	return notRun(path, err)
}
