// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"path/filepath"
	"strconv"

	"github.com/slurm-mps/slurm-mps/site/proc"
)

// maxText limits the read of one of a group's files.
const maxText = 16 << 10

// Memory returns a group's limit and the used bytes, without memory that the kernel can reclaim. ok is false if the
// group has no limit.
func Memory(dir string) (limit, used uint64, ok bool) {
	for _, names := range [][2]string{{"memory.max", "memory.current"}, {"memory.limit_in_bytes", "memory.usage_in_bytes"}} {
		limit, ok1 := number(dir, names[0])
		used, ok2 := number(dir, names[1])
		if ok1 && ok2 && limit < 1<<60 { // in version 1, a number near 2^63 means no limit
			return limit, used - min(used, fileCache(dir)), true
		}
	}
	return 0, 0, false
}

func number(dir, name string) (uint64, bool) {
	content, err := proc.ReadFile(filepath.Join(dir, name), maxText)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(content)), 10, 64)
	return n, err == nil
}

// fileCache returns the bytes of cached files from memory.stat. It knows the names of both versions.
func fileCache(dir string) (bytesOfFiles uint64) {
	content, err := proc.ReadFile(filepath.Join(dir, "memory.stat"), maxText)
	if err != nil {
		return 0
	}
	values := proc.Numbers(content)
	if cache, v1 := values["total_cache"]; v1 {
		return cache - min(cache, values["total_shmem"])
	}
	return values["file"] - min(values["file"], values["shmem"])
}
