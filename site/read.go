// SPDX-License-Identifier: Apache-2.0

package site

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// readFile reads a file of /proc, up to limit bytes. It does not use os.File, whose poller costs six system calls at
// the start of every rank.
func readFile(path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	content, err := ReadOpen(fd, limit)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return content, nil
}

// ReadOpen reads an open file to its end, up to limit bytes.
func ReadOpen(fd, limit int) ([]byte, error) {
	content := make([]byte, 0, min(limit, 2048))
	for len(content) < limit {
		if len(content) == cap(content) {
			content = append(content, 0)[:len(content)]
		}
		n, err := unix.Read(fd, content[len(content):min(cap(content), limit)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return content, err
		}
		content = content[:len(content)+n]
	}
	return content, nil
}
