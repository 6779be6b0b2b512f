// SPDX-License-Identifier: Apache-2.0

package clientenv

import (
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// Root reads the environment of each process of a user. A long list of devices or limits costs it little: sees, which
// walks the devices, is asked once for each limit that is read.
func TestLongListsCostLittle(t *testing.T) {
	for _, entry := range []string{"x=1", "0=1G"} {
		e := environmentIn(map[string]string{
			visibleVariable: strings.Repeat(",", 16_000), memoryVariable: strings.Repeat(entry+",", 4_000),
		})
		must.Hold(t, len(e.visible) <= maxDevices && len(e.memory) <= 0,
			"%q: %d devices, %d limits", entry, len(e.visible), len(e.memory))
	}
}
