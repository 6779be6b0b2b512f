// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"testing"

	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
)

// When the wall clock is set back, samples of 0 from before are later than each death, so they would prove an idle GPU.
// gpu-usage then reports one sample that is not 0, which may have an earlier time. The guard forgets the samples of 0.
//
// Contract: G2
func TestSamplesFromBeforeTheClockWasSetBack(t *testing.T) {
	const hour = 3_600_000_000
	var u usages
	u.take([]gauge.Usage{{Known: true, Samples: []gauge.Sample{{Micros: 2 * hour}, {Micros: 2*hour + 200_000}}}})
	if u.idle[0] != (span{2 * hour, 2*hour + 200_000}) {
		t.Fatalf("idle is %+v", u.idle[0])
	}
	u.take([]gauge.Usage{{Known: true, Samples: []gauge.Sample{{Micros: hour, Percent: 100}}}})
	if u.idle[0] != (span{}) {
		t.Errorf("after the clock was set back, the GPU is idle in %+v", u.idle[0])
	}
}
