// SPDX-License-Identifier: Apache-2.0

package osfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

func TestMayOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nvidia0")
	must.Hold(t, !osfile.CanOpen(path), "a device that does not exist may be opened")
	must.OK(t, os.WriteFile(path, nil, 0o666))
	must.Hold(t, osfile.CanOpen(path), "a device that exists may not be opened")
}
