// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/pause"
	"github.com/slurm-mps/slurm-mps/site/guard/take"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
)

// takerLine and pauserLine run this test's own program as a taker and as a process that pauses.
var takerLine, pauserLine = []string{"/proc/self/exe", "--take"}, []string{"/proc/self/exe", "--pause"}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		var err error
		switch os.Args[1] {
		case "--take":
			err = take.Run(0)
		case "--pause":
			var limit time.Duration
			if limit, err = time.ParseDuration(os.Args[2]); err == nil {
				err = pause.Run(limit)
			}
		case "--count":
			testproc.Count()
		case "--refuse":
			refuse()
		case "--job":
			heldGuard()
		case "--trace":
			err = trace(os.Args[2])
		default:
			os.Exit(m.Run())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}
