// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ReadFile reads a file that the kernel writes, up to limit bytes. It does not use os.File, whose poller costs six
// system calls at the start of every rank.
func ReadFile(path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
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

// Numbers parses lines of a name and a number, as in /proc/meminfo and in a control group's memory.stat:
//
//	MemTotal:       16265904 kB
//	file 4096
func Numbers(content []byte) map[string]uint64 {
	values := map[string]uint64{}
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) > 1 {
			if n, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
				values[strings.TrimSuffix(fields[0], ":")] = n
			}
		}
	}
	return values
}
