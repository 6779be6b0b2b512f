package site_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
)

func TestMayOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nvidia0")
	if site.MayOpen(path) {
		t.Error("a device that is not there may be opened")
	}
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if !site.MayOpen(path) {
		t.Error("a device that is there may not be opened")
	}
}

func TestEnviron(t *testing.T) {
	got := site.Environ(os.Getpid())
	if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, "PATH=") }) {
		t.Errorf("this process was started without PATH: %q", got)
	}
	if got := site.Environ(1 << 30); got != nil {
		t.Errorf("a process that is not there has %q", got)
	}
}
