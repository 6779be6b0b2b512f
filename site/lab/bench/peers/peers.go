// SPDX-License-Identifier: Apache-2.0

// Package peers has the hooks and the wrapper with which the benchmarks compare ours. They are written in bash, like
// those of sites and other projects, but leave the compute modes unchanged. They make no promises and are not
// shipped.
package peers

import (
	"embed"
	"os"
	"path/filepath"
)

//go:embed *.sh
var scripts embed.FS

// realSMI calls the real nvidia-smi. The loader may not find the driver's library by itself, because slurmd gives its
// hooks no LD_LIBRARY_PATH.
const realSMI = "#!/bin/sh\nLD_LIBRARY_PATH=/usr/local/nvidia/lib64 exec nvidia-smi \"$@\"\n"

// Install writes the scripts into a folder. smi.sh calls the real nvidia-smi, or replaces it on a simulated node.
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
