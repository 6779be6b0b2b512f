// SPDX-License-Identifier: Apache-2.0

package real_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestRealCodes runs LAMMPS, or programs in Python, in jobs in turns: without MPS, by a control daemon that the user
// starts, and by slurm-mps with the shipped share (site/lab/codes). CODES is the folder with the programs, CODES_SCRIPT
// the script in it that makes a turn, and PYTHON the interpreter. A line for each run goes into the file CODES_RESULTS;
// no job begins that would outlast CODES_MINUTES.
func TestRealCodes(t *testing.T) {
	codes := os.Getenv("CODES")
	if codes == "" {
		t.Skip("needs programs: site/lab/gpu-codes.sh has them and sets CODES")
	}
	minutes, err := time.ParseDuration(os.Getenv("CODES_MINUTES") + "m")
	if err != nil {
		t.Fatal(err)
	}
	results, err := os.OpenFile(os.Getenv("CODES_RESULTS"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer results.Close()
	p := newPrograms(t)
	modes := strings.Fields(os.Getenv("CODES_MODES"))
	line := regexp.MustCompile(`(?m)^\d+ (slices|bare|ours) \S+ \d+ .*$`)
	var slowest time.Duration
	for turn, end := 1, time.Now().Add(minutes); ; turn++ {
		for i := range modes {
			began := time.Now()
			if began.Add(slowest).After(end) {
				return // the last turn may lack a mode, but no mode lacks a number of ranks
			}
			mode := modes[(i+turn)%len(modes)] // no mode is always the first
			var args []string
			if mode == "ours" {
				args = append(args, "--constraint=mps")
			}
			script := fmt.Sprintf("export CODES=%s RANKS=%q PYTHON=%s FIRST_CORE=%s ONLY_GPU=%s\n%s/%s %s %d",
				codes, os.Getenv("RANKS"), os.Getenv("PYTHON"), os.Getenv("FIRST_CORE"), os.Getenv("ONLY_GPU"), codes, os.Getenv("CODES_SCRIPT"), mode, turn)
			out, _ := p.run(script, args...)
			lines := line.FindAllString(out, -1)
			if len(lines) == 0 {
				t.Errorf("turn %d of %s has no result", turn, mode)
			}
			for _, result := range lines {
				fmt.Fprintln(results, result)
			}
			slowest = max(slowest, time.Since(began))
		}
	}
}
