// SPDX-License-Identifier: Apache-2.0

package clientenv

import (
	"strings"
	"testing"
	"time"
)

// Root reads the environment of each process of a user. A long list of devices or limits costs it little.
func TestLongListsCostLittle(t *testing.T) {
	began := time.Now()
	e := environmentIn(map[string]string{
		visibleVariable: strings.Repeat(",", 16_000), memoryVariable: strings.Repeat("x=1,", 4_000),
	})
	if took := time.Since(began); took > 20*time.Millisecond || len(e.visible) > maxDevices || len(e.memory) > 0 {
		t.Errorf("%v, %d devices, %d limits", took, len(e.visible), len(e.memory))
	}
}
