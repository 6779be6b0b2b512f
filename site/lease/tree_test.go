// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A user may have filled a folder: a part of it is listed at once, and all of it is removed.
func TestAFullFolderIsListedInParts(t *testing.T) {
	top, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	for _, folder := range []string{"full", "folders"} {
		if err := os.Mkdir(filepath.Join(top.Name(), folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const files = 5000
	for n := range files {
		err := os.WriteFile(filepath.Join(top.Name(), "full", fmt.Sprint(n)), nil, 0o600)
		if err == nil && n%5 == 0 {
			err = os.Mkdir(filepath.Join(top.Name(), "folders", fmt.Sprint(n)), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	tr := tree{top: top}
	if listed, err := tr.list("full"); err != nil || len(listed) == 0 || len(listed) > files/2 {
		t.Errorf("%d files are listed at once: %v", len(listed), err)
	}
	if err := tr.clear(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(top.Name()); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
