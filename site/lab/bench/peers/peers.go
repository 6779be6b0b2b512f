// SPDX-License-Identifier: Apache-2.0

// Package peers is what the benchmarks compare with: hooks and a wrapper as sites write them in bash, in the manner of
// others' but with the compute modes left alone. They promise nothing and are not shipped.
package peers

import (
	"embed"
	"os"
	"path/filepath"
)

//go:embed *.sh
var scripts embed.FS

// realSMI is the real nvidia-smi where the driver's library may be out of the loader's way: slurmd gives its hooks no
// LD_LIBRARY_PATH.
const realSMI = "#!/bin/sh\nLD_LIBRARY_PATH=/usr/local/nvidia/lib64 exec nvidia-smi \"$@\"\n"

// Install writes the scripts into a folder; smi.sh is the real nvidia-smi, or on a simulated node what stands for it.
func Install(dir string, real bool) error {
	for _, name := range []string{"prolog.sh", "epilog.sh", "wrapper.sh", "smi.sh"} {
		text, err := scripts.ReadFile(name)
		if err != nil {
			return err
		}
		if real && name == "smi.sh" {
			text = []byte(realSMI)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o755); err != nil {
			return err
		}
	}
	return nil
}
