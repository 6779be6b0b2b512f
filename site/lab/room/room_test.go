// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Two trials on a simulated GPU, one with the product and one on a plain daemon. The endings of the latter harm the
// neighbours; otherwise the trial would show nothing.
func TestTrialsOnASimulatedGPU(t *testing.T) {
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("REQUIRE_LAB") != "":
		t.Fatal("prologs are root's: run as root")
	default:
		t.Skip("prologs are root's: run as root")
	}
	folder := t.TempDir()
	parts := regexp.MustCompile(`^endings$`)
	if err := run(settings{results: folder, parts: parts, trials: 1, minutes: 2, simulated: true}); err != nil {
		log, _ := os.ReadFile(filepath.Join(folder, "room-log.txt"))
		t.Fatalf("%v\n%s", err, log)
	}
	all, err := readRecords(filepath.Join(folder, "room.jsonl"))
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, one := range all {
		want := map[string]float64{withGuard: 2, bare: 0}[one.Method]
		if !one.Valid || one.number("of") != 2 || one.number("alive") != want {
			t.Errorf("%+v: want %g of 2 neighbours alive", one, want)
		}
	}
	summary, err := os.ReadFile(filepath.Join(folder, "room-summary.txt"))
	if err != nil || strings.Count(string(summary), "\n") != 2 {
		t.Errorf("the summary is %q, %v", summary, err)
	}
}
