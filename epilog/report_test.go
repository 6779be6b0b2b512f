// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// At most 1,000 reports are kept, for 30 days.
//
// Contract: U2
func TestReportsAreBounded(t *testing.T) {
	needsRoot(t)
	for _, c := range []struct {
		name      string
		of        int           // reports that are there
		age, want time.Duration // of the oldest, and of the oldest that is left
		left      int
	}{
		{"few and new", 3, time.Hour, time.Hour, 4},
		{"one is too old", 3, 30*24*time.Hour + time.Hour, 24 * time.Hour, 3},
		{"one is not too old", 3, 30*24*time.Hour - time.Hour, 30*24*time.Hour - time.Hour, 4},
		{"too many", 1000, 20 * 24 * time.Hour, 24 * time.Hour, 1000},
	} {
		folder := t.TempDir()
		for i := range c.of {
			path, at := filepath.Join(folder, strconv.Itoa(100+i)+".json"), time.Now().Add(-24*time.Hour)
			if i == 0 {
				at = time.Now().Add(-c.age)
			}
			if err := errors.Join(os.WriteFile(path, nil, 0o640), os.Chtimes(path, at, at)); err != nil {
				t.Fatal(err)
			}
		}
		if err := keepReportIn(folder, usage.Report{Job: 7}, 2001); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(folder)
		if err != nil || len(entries) != c.left {
			t.Errorf("%s: %d reports are left, %v", c.name, len(entries), err)
		}
		_, err = os.Lstat(filepath.Join(folder, "100.json"))
		if oldest := err == nil; oldest != (c.want == c.age) {
			t.Errorf("%s: the oldest is left: %v", c.name, oldest)
		}
		if _, err := os.Lstat(filepath.Join(folder, "7.json")); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A report is kept only in a folder that no user can change, because root would follow a link of the user's there.
//
// Contract: U2
func TestReportsInAFolderOfAUser(t *testing.T) {
	needsRoot(t)
	for name, prepare := range map[string]func(folder string) error{
		"of a user": func(folder string) error { return errors.Join(os.Mkdir(folder, 0o755), os.Chown(folder, 2001, 2001)) },
		"of all":    func(folder string) error { return errors.Join(os.Mkdir(folder, 0o755), os.Chmod(folder, 0o777)) },
		"a link":    func(folder string) error { return os.Symlink(t.TempDir(), folder) },
	} {
		folder := filepath.Join(t.TempDir(), "reports")
		if err := prepare(folder); err != nil {
			t.Fatal(err)
		}
		if err := keepReportIn(folder, usage.Report{Job: 7}, 2001); !errors.Is(err, site.ErrNotRootOwned) {
			t.Errorf("a folder %s: %v", name, err)
		}
		if entries, _ := os.ReadDir(folder); len(entries) > 0 {
			t.Errorf("a folder %s: %v", name, entries)
		}
	}
}

// A report belongs to root and the job's group.
//
// Contract: U2
func TestWhoReadsAKeptReport(t *testing.T) {
	needsRoot(t)
	folder := t.TempDir()
	if err := keepReportIn(folder, usage.Report{Job: 7}, 2001); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(filepath.Join(folder, "7.json"))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Mode&0o7777 != 0o640 || st.Uid != 0 || st.Gid != 2001 {
		t.Errorf("mode %o, owner %d, group %d", st.Mode, st.Uid, st.Gid)
	}
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}
