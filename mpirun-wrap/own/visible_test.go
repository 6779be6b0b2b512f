// SPDX-License-Identifier: Apache-2.0

package own

import (
	"fmt"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm"
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
		must.Hold(t, fmt.Sprint(uuids) == want && (err != nil) == (want == "[]"),
			"%q: %v, %v; want %s", list, uuids, err, want)
	}
}

// A number of a GPU is taken only where it is certain which GPU that is.
func TestCheckOrder(t *testing.T) {
	mixed := []site.Device{{UUID: "GPU-00", Name: "T4"}, {UUID: "GPU-11", Name: "H200"}}
	same := []site.Device{{UUID: "GPU-00", Name: "H200"}, {UUID: "GPU-11", Name: "H200"}}
	const list, order, job = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SLURM_JOB_ID"
	for name, c := range map[string]struct {
		all     []site.Device
		env     slurm.Env
		refused bool
	}{
		"no list":           {mixed, slurm.Env{}, true},
		"a number":          {mixed, slurm.Env{list: "0"}, true},
		"FASTEST_FIRST":     {mixed, slurm.Env{list: "0", order: "FASTEST_FIRST"}, true},
		"a job, no list":    {mixed, slurm.Env{job: "7"}, true},
		"a job's numbers":   {mixed, slurm.Env{list: "0", job: "7"}, false},
		"the bus":           {mixed, slurm.Env{list: "0", order: "PCI_BUS_ID"}, false},
		"UUIDs":             {mixed, slurm.Env{list: "GPU-11,GPU-00"}, false},
		"one model":         {same, slurm.Env{list: "0"}, false},
		"one model, no env": {same, slurm.Env{}, false},
	} {
		if err := checkOrder(c.all, c.env); (err != nil) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
