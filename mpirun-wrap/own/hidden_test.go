// SPDX-License-Identifier: Apache-2.0

package own

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// Programs whose processes the kernel hides are named, and all others are not. What root may not read is in
// cmd/e2e/own.
func TestHiddenBy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	path := filepath.Join(base(t), "program")
	if ignoresPrivileges(filepath.Dir(path)) {
		t.Skip("a file has no rights here")
	}
	const program, script = "\x7fELF", "#!/bin/sh\n"
	permitted := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // version 2: CAP_NET_BIND_SERVICE
	give := func(mode os.FileMode) func() error {
		return func() error { return errors.Join(os.Chown(path, 2002, 2002), os.Chmod(path, mode)) }
	}
	for name, c := range map[string]struct {
		content string
		change  func() error
		want    string
	}{
		"plain":                   {program, func() error { return nil }, ""},
		"another user's":          {program, give(0o755), ""},
		"set-user-ID":             {program, give(0o755 | os.ModeSetuid), "set-user-ID"},
		"set-group-ID":            {program, give(0o755 | os.ModeSetgid), "set-group-ID"},
		"set-group-ID, no x":      {program, give(0o745 | os.ModeSetgid), ""},
		"one's own set-user-ID":   {program, func() error { return os.Chmod(path, 0o755|os.ModeSetuid) }, ""},
		"capabilities":            {program, func() error { return unix.Setxattr(path, "security.capability", permitted, 0) }, "capabilities"},
		"a script":                {script, give(0o755), ""},
		"a script of set-user-ID": {script, give(0o755 | os.ModeSetuid), ""},
	} {
		t.Run(name, func(t *testing.T) {
			defer os.Remove(path)
			must.OK(t, errors.Join(os.WriteFile(path, []byte(c.content), 0o755), c.change()))
			if got := hiddenBy(path); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	must.Equal(t, "a program that is not found", hiddenBy(""), "")
}
