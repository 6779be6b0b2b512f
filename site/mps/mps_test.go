// SPDX-License-Identifier: Apache-2.0

package mps

import "testing"

func TestClients(t *testing.T) {
	for _, c := range []struct {
		files   uint64
		devices int
		want    int
	}{
		{1 << 20, 8, 60}, {16384, 16, 60}, {16383, 1, 60}, {4096, 1, 50}, {1024, 1, 12}, {1024, 4, 3}, {1024, 16, 0}, {120,
			1, 1}, {119, 1, 0}, {64, 1, 0}, {12, 1, 0},
	} {
		if got := Clients(c.files, c.devices); got != c.want {
			t.Errorf("%d files, %d devices: %d clients, want %d", c.files, c.devices, got, c.want)
		}
	}
}
