// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
)

func TestFeaturesOfANode(t *testing.T) {
	dir := t.TempDir()
	more := filepath.Join(dir, "nodes.conf")
	for name, content := range map[string]string{
		"slurm.conf": `ClusterName=lab
NodeName=DEFAULT Features=slow CPUs=4 MemSpecLimit=100
NodeName=n[1-2] Gres=gpu:4
NodeName=n3 feature=mps,fast Features=other memspeclimit=0
NodeName=n4 Features=a,,b \
  CPUs=8
NodeName=DEFAULT Features=late
include nodes.conf
NodeName=n7 Features="x,y"
`,
		"nodes.conf": "NodeName=n5\n",
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	path := filepath.Join(dir, "slurm.conf")
	for node, want := range map[string][]string{
		"n1": {"slow"}, "n2": {"slow"}, "n3": {"mps", "fast"}, "n4": {"a", "b"}, "n5": {"late"}, "n7": {"x", "y"},
	} {
		got, err := ReadNode(path, node)
		if err != nil || !slices.Equal(got.Features, want) || (got.Reserved == "MemSpecLimit=100") == (node == "n3") {
			t.Errorf("%s: %q, %q, %v, want %q", node, got.Features, got.Reserved, err, want)
		}
	}
	if _, err := ReadNode(path, "n9"); !errors.Is(err, ErrNoNode) || !strings.HasPrefix(recorded.Message(err), "cannot read node n9 in "+path) {
		t.Errorf("a node that is not there: %v", err)
	}
	must.OK(t, os.WriteFile(more, []byte("NodeName=n[5 Features=x\n"), 0o644))
	if _, err := ReadNode(path, "n7"); err == nil || !strings.Contains(err.Error(), more+":1") {
		t.Errorf("a line that cannot be read: %v", err)
	}
}
