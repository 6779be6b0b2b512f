// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

func TestParseNumber(t *testing.T) {
	for _, c := range []struct {
		name string
		want int
		ok   bool
	}{
		{"0\x00", 0, true}, {"7\x00", 7, true}, {"4194304\x00garbage", 4194304, true}, {"007\x00", 7, true},
		{"", 0, false}, {"\x00", 0, false}, {"7", 0, false}, {"7a\x00", 0, false}, {"-7\x00", 0, false}, {" 7\x00", 0, false},
		{".\x00", 0, false}, {"..\x00", 0, false}, {"self\x00", 0, false}, {"99999999999999999999\x00", 0, false},
	} {
		if got, ok := parseNumber([]byte(c.name)); ok != c.ok || ok && got != c.want {
			t.Errorf("%q: %d, %v", c.name, got, ok)
		}
	}
}

// A folder with more entries than one read returns yields every number once, and stops when the callback returns false.
func TestEachNumber(t *testing.T) {
	folder, want := t.TempDir(), map[int]bool{}
	for i := range 2000 {
		name := strconv.Itoa(i)
		if i%4 == 0 {
			name += ".json"
		} else {
			want[i] = true
		}
		must.OK(t, os.WriteFile(filepath.Join(folder, name), nil, 0o600))
	}
	got := map[int]bool{}
	if err := eachNumber(folder, func(_, n int) bool {
		must.Hold(t, !got[n], "%d comes twice", n)
		got[n] = true
		return true
	}); err != nil || len(got) != len(want) {
		t.Errorf("%d numbers, want %d, %v", len(got), len(want), err)
	}
	count := 0
	if err := eachNumber(folder, func(int, int) bool { count++; return count < 5 }); err != nil || count != 5 {
		t.Errorf("%d calls, %v", count, err)
	}
	if err := eachNumber(folder+"/none", func(int, int) bool { return true }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that does not exist: %v", err)
	}
}

// The status file of a process in a container has a pid for each namespace.
func TestParseStatus(t *testing.T) {
	const text = "Name:\ta\\nUid:\nState:\tZ (zombie)\nPid:\t7\nPPid:\t4100\nTracerPid:\t12\nUid:\t1\t2\t3\t4\nNSpid:\t7\t1\nThreads:\t5\n"
	want := Status{State: 'Z', Parent: 4100, Tracer: 12, Threads: 5, UIDs: [4]uint32{1, 2, 3, 4}, Nested: true}
	if got, err := parseStatus([]byte(text)); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := parseStatus([]byte(strings.Replace(text, "\t7\t1\n", "\t7\n", 1))); err != nil || got.Nested {
		t.Errorf("without a namespace of its own: %+v, %v", got, err)
	}
	for _, broken := range []string{"", strings.Replace(text, "PPid", "Ppid", 1), strings.Replace(text, "\t4\n", "\n", 1)} {
		if got, err := parseStatus([]byte(broken)); err == nil {
			t.Errorf("%q: %+v", broken, got)
		}
	}
}

// What is known of this process and of the node agrees with what the kernel says by other ways.
func TestThisProcess(t *testing.T) {
	if uid, ok := Owner(os.Getpid()); !ok || uid != uint32(os.Geteuid()) {
		t.Errorf("owner %d, %v", uid, ok)
	}
	if _, ok := Owner(1 << 30); ok {
		t.Error("a process that does not exist has an owner")
	}
	if bytes := Resident(os.Getpid()); bytes < 1<<20 || bytes > 1<<34 || Resident(1<<30) != 0 {
		t.Errorf("%d bytes are resident", bytes)
	}
	total, used, ok := NodeMemory()
	must.Hold(t, ok && total >= 1<<27 && used < total, "the node's memory: %d, %d, %v", total, used, ok)
	threads := 0
	if err := EachThread(os.Getpid(), func(thread int) bool { threads++; return Exists(thread) }); err != nil || threads < 2 {
		t.Errorf("%d threads, %v", threads, err)
	}
}
