// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A user may have filled a folder: a part of it is listed at once, and all of it is removed.
func TestAFullFolderIsListedInParts(t *testing.T) {
	top := must.Get(os.OpenRoot(t.TempDir()))(t)
	defer top.Close()
	for _, folder := range []string{"full", "folders"} {
		must.OK(t, os.Mkdir(filepath.Join(top.Name(), folder), 0o755))
	}
	const files = 5000
	for n := range files {
		err := os.WriteFile(filepath.Join(top.Name(), "full", fmt.Sprint(n)), nil, 0o600)
		if err == nil && n%5 == 0 {
			err = os.Mkdir(filepath.Join(top.Name(), "folders", fmt.Sprint(n)), 0o755)
		}
		must.OK(t, err)
	}
	tr := tree{top: top}
	if listed, err := tr.list("full"); err != nil || len(listed) == 0 || len(listed) > files/2 {
		t.Errorf("%d files are listed at once: %v", len(listed), err)
	}
	must.OK(t, tr.clear())
	if left, err := os.ReadDir(top.Name()); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
