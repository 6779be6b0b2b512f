// SPDX-License-Identifier: Apache-2.0

package own

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// visible returns the GPUs that CUDA shows a program with this CUDA_VISIBLE_DEVICES: indexes in the order of PCI bus
// ids, or the beginnings of UUIDs. As CUDA does, it ignores the rest of the list from the first wrong entry on.
func visible(all []site.Device, list string) (shown []site.Device, err error) {
	for entry := range strings.SplitSeq(list, ",") {
		i := index(all, strings.TrimSpace(entry))
		if i < 0 {
			break
		}
		shown = append(shown, all[i])
	}
	if len(shown) == 0 {
		return nil, fmt.Errorf("cannot find a GPU: no GPU can be opened: CUDA_VISIBLE_DEVICES is %q", list)
	}
	return shown, nil
}

// checkOrder is an error if the user's choice of a GPU depends on an order that only CUDA knows: outside of Slurm, CUDA
// counts the fastest GPU first, and this package the first one on the bus.
func checkOrder(all []site.Device, env slurm.Env) error {
	list, given := env["CUDA_VISIBLE_DEVICES"]
	other := slices.IndexFunc(all, func(d site.Device) bool { return d.Name != all[0].Name })
	numbers := !given || slices.ContainsFunc(strings.Split(list, ","), func(entry string) bool {
		_, err := strconv.Atoi(strings.TrimSpace(entry))
		return err == nil
	})
	bySlurm := given && env["SLURM_JOB_ID"] != ""
	if other < 0 || !numbers || bySlurm || env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" {
		return nil
	}
	return fmt.Errorf("cannot choose a GPU: this node has GPUs of more than one model (%s, %s), and CUDA counts the fastest first: "+
		"set CUDA_VISIBLE_DEVICES to UUIDs of nvidia-smi -L, or set CUDA_DEVICE_ORDER=PCI_BUS_ID", all[0].Name, all[other].Name)
}

func index(all []site.Device, entry string) int {
	if n, err := strconv.Atoi(entry); err == nil {
		if n < 0 || n >= len(all) {
			return -1
		}
		return n
	}
	return slices.IndexFunc(all, func(d site.Device) bool {
		return strings.HasPrefix(entry, "GPU-") && strings.HasPrefix(string(d.UUID), entry)
	})
}
