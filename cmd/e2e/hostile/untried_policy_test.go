// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"golang.org/x/sys/unix"
)

// Root checks a policy in a folder in which every user may make files. If another user puts something in its place,
// root's command ends soon, with one sentence.
func TestAPolicyInAFolderOfOthers(t *testing.T) {
	p := e2e.NewNode(t, "", node.H200)
	fifo := func(path string) error { return unix.Mkfifo(path, 0o666) }
	link := func(to string) func(string) error {
		return func(path string) error { return os.Symlink(to, path) }
	}
	for _, c := range []struct {
		name, want string
		plant      func(path string) error
	}{
		{"a fifo", "Missing version", fifo},
		{"a policy without end", "larger than 4194304 bytes", link("/dev/zero")},
	} {
		t.Run(c.name, func(t *testing.T) {
			planted := filepath.Join(t.TempDir(), "policy.hcl")
			must.OK(t, c.plant(planted))
			must.OK(t, os.Lchown(planted, int(e2e.OtherUID), int(e2e.OtherUID)))
			ctx, cancel := e2e.Limited()
			defer cancel()
			result, err := p.Run(ctx, nil, "mpsctl", "policy", "check", planted)
			if err != nil || ctx.Err() != nil || result.Code != 1 || !strings.Contains(result.Output, c.want) {
				t.Errorf("code %d, %v, %v: want 1 and %q: %.500q", result.Code, err, ctx.Err(), c.want, result.Output)
			}
		})
	}
}
