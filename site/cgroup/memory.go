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

// Memory returns a group's limit and the used bytes, without memory that the kernel can reclaim. limited is false if
// the group has no limit.
func Memory(dir string) (limit, used uint64, limited bool) {
	for _, names := range [][2]string{{"memory.max", "memory.current"}, {"memory.limit_in_bytes", "memory.usage_in_bytes"}} {
		if used, ok := number(dir, names[1]); ok {
			limit, known := number(dir, names[0])
			return limit, used - min(used, fileCache(dir)), known && limit < 1<<60 // version 1: near 2^63 for no limit
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
