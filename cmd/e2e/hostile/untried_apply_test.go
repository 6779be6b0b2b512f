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

// Root applies a policy in a folder in which every user may make files. What another user puts beside the policy, or in
// its place, is not installed, and root's command ends soon, with one sentence.
func TestAPolicyInAFolderOfOthers(t *testing.T) {
	p := e2e.NewNode(t, "", node.H200)
	fifo := func(path string) error { return unix.Mkfifo(path, 0o666) }
	link := func(to string) func(string) error {
		return func(path string) error { return os.Symlink(to, path) }
	}
	const cases, foreign = "policy_test.hcl", "the owner of "
	for _, c := range []struct {
		name, file, want string
		plant            func(path string) error
	}{
		{"cases that are a fifo", cases, foreign, fifo},
		{"cases without end", cases, foreign, link("/dev/zero")},
		{"cases of another user", cases, foreign, func(path string) error { return os.WriteFile(path, nil, 0o644) }},
		{"cases that are a link to root's file", cases, foreign, link("/etc/shadow")},
		{"a policy that is a fifo", "policy.hcl", "Missing version", fifo},
		{"a policy without end", "policy.hcl", "larger than 4194304 bytes", link("/dev/zero")},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			p.Write(filepath.Join(dir, "policy.hcl"), e2e.Read(t, p.Paths().Policy()))
			planted := filepath.Join(dir, c.file)
			_ = os.Remove(planted)
			must.OK(t, c.plant(planted))
			must.OK(t, os.Lchown(planted, int(e2e.OtherUID), int(e2e.OtherUID)))
			ctx, cancel := e2e.Limited()
			defer cancel()
			result, err := p.Run(ctx, nil, "mpsctl", "policy", "apply", filepath.Join(dir, "policy.hcl"))
			if err != nil || ctx.Err() != nil || result.Code != 1 || !strings.Contains(result.Output, c.want) {
				t.Errorf("code %d, %v, %v: want 1 and %q: %.500q", result.Code, err, ctx.Err(), c.want, result.Output)
			}
			if _, err := os.Lstat(filepath.Join(filepath.Dir(p.Paths().Policy()), "policy_test.hcl")); err == nil {
				t.Error("the cases of another user are installed")
			}
		})
	}
}
