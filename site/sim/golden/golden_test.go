// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

type recorder struct {
	testing.TB
	printed string
}

func (r *recorder) Errorf(form string, args ...any) { r.printed += fmt.Sprintf(form, args...) }
func (r *recorder) Fatalf(form string, args ...any) { r.printed += fmt.Sprintf(form, args...) }
func (r *recorder) Helper()                         {}

func TestCompare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(path, []byte("a\n"), 0o644))
	r := &recorder{TB: t}
	if Compare(r, path, "a\n"); r.printed != "" {
		t.Errorf("equal texts differ: %s", r.printed)
	}
	Compare(r, path, "b\n")
	want := path + " (-) differs from the result (+):\nline 1:\n- a\n+ b\n" +
		"to write it again: go test ./site/sim/golden -run '^TestCompare$' -update"
	if r.printed != want {
		t.Errorf("got\n%s\nwant\n%s", r.printed, want)
	}
}
