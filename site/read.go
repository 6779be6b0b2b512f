// SPDX-License-Identifier: Apache-2.0

package site

import "golang.org/x/sys/unix"

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
