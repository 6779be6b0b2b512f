// SPDX-License-Identifier: Apache-2.0

package own

import (
	"fmt"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
)

// What CUDA would show of a list.
func TestVisible(t *testing.T) {
	all := []site.Device{{UUID: "GPU-00"}, {UUID: "GPU-11"}, {UUID: "GPU-22"}}
	for list, want := range map[string]string{
		"0,1,2": "[GPU-00 GPU-11 GPU-22]", "2,0": "[GPU-22 GPU-00]", "1,-1,0": "[GPU-11]", "GPU-2, GPU-00": "[GPU-22 GPU-00]",
		"1,7,0": "[GPU-11]", "-1": "[]", "": "[]", "MIG-1": "[]",
	} {
		shown, err := visible(all, list)
		uuids := []site.UUID{}
		for _, d := range shown {
			uuids = append(uuids, d.UUID)
		}
		if fmt.Sprint(uuids) != want || (err != nil) != (want == "[]") {
			t.Errorf("%q: %v, %v; want %s", list, uuids, err, want)
		}
	}
}
