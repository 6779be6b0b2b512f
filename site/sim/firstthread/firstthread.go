// SPDX-License-Identifier: Apache-2.0

// Package firstthread makes programs run without their first thread. POSIX allows that: main may call pthread_exit.
package firstthread

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed testdata/firstthread.c
var source string

// Build builds a library in a folder and returns its path. A program that loads it by LD_PRELOAD, and each program that
// it starts, runs in its second thread, after its first thread has ended.
func Build(folder string) (string, error) {
	path := filepath.Join(folder, "firstthread.so")
	draft := fmt.Sprintf("%s.%d", path, os.Getpid()) // several test programs may share the folder
	cmd := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-Wall", "-pthread", "-x", "c", "-o", draft, "-", "-ldl")
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build %s: %w: %s", path, err, out)
	}
	return path, os.Rename(draft, path)
}
