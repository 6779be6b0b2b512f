// SPDX-License-Identifier: Apache-2.0

package words

import "testing"

func TestCount(t *testing.T) {
	for want, n := range map[string]int{"0 jobs": 0, "1 job": 1, "2 jobs": 2} {
		if got := Count(n, "job"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := Count(2, "process"); got != "2 processes" {
		t.Errorf("got %q", got)
	}
}
