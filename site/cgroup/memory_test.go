// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A group has used what the kernel cannot reclaim, in both versions of control groups.
func TestMemory(t *testing.T) {
	for _, c := range []struct {
		name        string
		files       map[string]string
		limit, used uint64
		ok          bool
	}{
		{"version 2", map[string]string{"memory.max": "1000\n", "memory.current": "900\n", "memory.stat": "anon 600\nfile 300\nshmem 100\n"}, 1000, 700, true},
		{"version 2 without a limit", map[string]string{"memory.max": "max\n", "memory.current": "900\n"}, 0, 900, false},
		{"version 1", map[string]string{"memory.limit_in_bytes": "1000\n", "memory.usage_in_bytes": "900\n",
			"memory.stat": "cache 1\ntotal_cache 300\ntotal_shmem 300\n"}, 1000, 900, true},
		{"version 1 without a limit", map[string]string{"memory.limit_in_bytes": "9223372036854771712\n", "memory.usage_in_bytes": "900\n"}, 0, 900, false},
		{"without statistics", map[string]string{"memory.max": "1000", "memory.current": "900"}, 1000, 900, true},
		{"more cache than used", map[string]string{"memory.max": "1000", "memory.current": "10", "memory.stat": "file 300\n"}, 1000, 0, true},
		{"empty", nil, 0, 0, false},
		{"no numbers", map[string]string{"memory.max": "x", "memory.current": "-1"}, 0, 0, false},
	} {
		folder := t.TempDir()
		for name, content := range c.files {
			must.OK(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644))
		}
		if limit, used, ok := Memory(folder); ok && limit != c.limit || used != c.used || ok != c.ok {
			t.Errorf("%s: %d, %d, %v", c.name, limit, used, ok)
		}
	}
}
