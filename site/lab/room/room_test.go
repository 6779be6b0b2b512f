// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A run continues after the valid records of its own folder and of an earlier run's, also if the last line is cut.
func TestARunContinues(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	own := write("room.jsonl", `{"part":"oom","method":"guard","trial":0,"valid":true}`+"\n"+
		`{"part":"oom","method":"guard","trial":1,"valid":false,"note":"no time"}`+"\n"+`{"part":"oom","method":"gu`+"\n")
	earlier := write("earlier.jsonl", `{"part":"next","method":"guard","trial":0,"valid":true,"values":{"alive":2}}`+"\n"+
		`{"part":"oom","method":"guard","trial":0,"valid":true,"note":"twice"}`+"\n")
	r, err := openRecords(own, earlier)
	if err != nil {
		t.Fatal(err)
	}
	defer r.file.Close()
	for _, c := range []struct {
		part, method string
		trial        int
		want         bool
	}{
		{"oom", "guard", 0, true}, {"oom", "guard", 1, false}, {"oom", "bare", 0, false}, {"next", "guard", 0, true},
	} {
		if got := r.has(c.part, c.method, c.trial); got != c.want {
			t.Errorf("%s %s %d has a record: %t", c.part, c.method, c.trial, got)
		}
	}
	again, err := readRecords(own)
	if err != nil || len(again) != 3 || again[2].number("alive") != 2 {
		t.Errorf("%+v, %v: want the earlier record of the part next, once", again, err)
	}
}

// The length of a pause is found whatever the guard calls it.
func TestPauseTimes(t *testing.T) {
	var one record
	for _, line := range []string{
		`{"job":7,"paused_ms":812.5,"pid":3}`, `{"gpu":0,"ms":40,"message":"paused the neighbours"}`, `{"message":"pause over"}`,
	} {
		one.Pauses = append(one.Pauses, []byte(line))
	}
	if got := one.pauseTimes(); !slices.Equal(got, []float64{812.5, 40, 0}) {
		t.Errorf("%v", got)
	}
}

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
