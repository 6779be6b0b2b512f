// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A user may have made a report. Reading it takes no more than a few times its bytes, whatever its lists have.
func TestALongListIsNotMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "1.json")
	gpus := strings.Repeat(`{"samples":[`+strings.Repeat("{},", MaxSamples-1)+"{}]},", MaxGPUs-1)
	for name, body := range map[string]string{
		"clients":      `"clients":[` + strings.Repeat("{},", 1e6) + "{}]",
		"no clients":   `"clients":[` + strings.Repeat("null,", 7e5) + "null]",
		"no objects":   `"clients":[` + strings.Repeat("1,", 1e6) + "1]",
		"GPUs":         `"gpus":[` + strings.Repeat("{},", 1e6) + "{}]",
		"many samples": `"gpus":[{"samples":[` + strings.Repeat("{},", 1e6) + "{}]}]",
		"faults":       `"gpus":[{}],"faults":[` + strings.Repeat("{},", 1e6) + "{}]",
		"the most":     `"gpus":[` + gpus + "{}]",
	} {
		content := fmt.Sprintf(`{"schema":%d,"job":1,%s}`, Schema, body)
		must.OK(t, os.WriteFile(file, []byte(content), 0o600))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ReadOwn(file, uint32(os.Getuid()))
		runtime.ReadMemStats(&after)
		if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 48 || (err == nil) != (name == "the most") {
			t.Errorf("%s: %d MiB for %d KiB, %v", name, took, len(content)>>10, err)
		}
	}
}
