// SPDX-License-Identifier: Apache-2.0

package own

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site"
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
