// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
)

const fourRanks = `rank 0: 66 SMs of GPU-0000000a, 10 kernels
rank 1: 66 SMs of GPU-0000000b, 10 kernels
rank 2: 66 SMs of GPU-0000000a, 10 kernels
rank 3: 66 SMs of GPU-0000000b, 10 kernels
`

func TestThePictureOfShares(t *testing.T) {
	parts, err := readParts(fourRanks)
	if err != nil {
		t.Fatal(err)
	}
	half := strings.Repeat("=", 12)
	const want = "    GPU 0  [HALFrank 0HALF=][HALFrank 2HALF=]\n                        66 SMs                           66 SMs\n" +
		"    GPU 1  [HALFrank 1HALF=][HALFrank 3HALF=]\n                        66 SMs                           66 SMs\n"
	if got := draw(parts); got != strings.ReplaceAll(want, "HALF", half) {
		t.Errorf("got\n%s", got)
	}
	if err := checkParts(parts, 4, 2); err != nil {
		t.Error(err)
	}
}

// An act fails if the ranks did not have what the picture shows.
func TestSharesThatAreWrong(t *testing.T) {
	for name, printed := range map[string]string{
		"a rank is missing":     strings.TrimSuffix(fourRanks, "rank 3: 66 SMs of GPU-0000000b, 10 kernels\n"),
		"a share is too large":  strings.Replace(fourRanks, "66", "132", 1),
		"all are on one GPU":    strings.ReplaceAll(fourRanks, "GPU-0000000b", "GPU-0000000a"),
		"a rank fails":          fourRanks + "rank 4: CUDA fails: err=46\n",
		"a rank has no kernels": strings.Replace(fourRanks, "10 kernels", "0 kernels", 1),
	} {
		parts, err := readParts(printed)
		if err == nil {
			err = checkParts(parts, 4, 2)
		}
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestNeighboursThatAreNotAsShown(t *testing.T) {
	const killed, ends, dies = "rank 2: killed with SIGKILL while its kernel ran\n", "rank 0: finished, 9 kernels\n", "rank 1: died of CUDA error 700\n"
	for _, c := range []struct {
		name, printed string
		exit          int
		right         bool
	}{
		{"both finish", killed + ends + ends, 137, true},
		{"one dies", killed + ends + dies, 137, false},
		{"one does not report", killed + ends, 137, false},
		{"no rank is killed", ends + ends, 137, false},
		{"the step ends well", killed + ends + ends, 0, false},
	} {
		err := checkKilled(lab.Result{Stdout: c.printed, Exit: c.exit}, 2, "finished")
		if (err == nil) != c.right {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
