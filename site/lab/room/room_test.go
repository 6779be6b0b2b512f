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

// A pause is a line with paused_ms. The guard's first line has the limit of a pause, which is no pause.
func TestPauseTimes(t *testing.T) {
	var one record
	for _, line := range []string{
		`{"program":"guard","job":7,"hold":30000,"pause":5000,"gpus":1}`,
		`{"program":"guard","job":7,"neighbours":6,"paused_ms":812.5,"idle":true,"message":"paused the neighbours of a dead client"}`,
		`{"program":"guard","job":7,"held_ms":40,"message":"let go of a dead client's files"}`,
	} {
		one.Pauses = append(one.Pauses, []byte(line))
	}
	if got := one.pauseTimes(); !slices.Equal(got, []float64{812.5}) {
		t.Errorf("%v", got)
	}
}

// The lines of pauses are copied from the log into the record, and no other lines.
func TestALogsPauses(t *testing.T) {
	folder := t.TempDir()
	log := filepath.Join(folder, "log")
	lines := `{"program":"guard","job":7,"hold":30000,"pause":5000,"gpus":1}` + "\n" +
		`{"program":"guard","pid":3,"reason":"work done","held_ms":40,"message":"let go of a dead client's files"}` + "\n" +
		`{"program":"guard","job":7,"error":"x","message":"cannot pause the neighbours of a dead client"}` + "\n" +
		`{"program":"guard","job":7,"neighbours":6,"paused_ms":812.5,"idle":true}` + "\n"
	if err := os.WriteFile(log, []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	copied, err := appendTo(filepath.Join(folder, "copy"))
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	r := &room{guardLog: copied}
	released, pauses := r.copyLog(log, "oom", 0)
	if len(pauses) != 1 || !strings.Contains(string(pauses[0]), "812.5") {
		t.Errorf("the pauses are %s", pauses)
	}
	if released["work done"] != 1 || len(released) != 1 {
		t.Errorf("the reasons are %v", released)
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

// The memory of a trial's ranks and their contexts fits the GPU, and fills it, whatever its size.
func TestMemoryOfEachSize(t *testing.T) {
	for _, total := range []int{leastMiB, 15360, 24576, 40960, 81920, 143155, 183359} {
		r := room{total: total}
		for name, asked := range map[string]int{
			"six neighbours and one that takes the rest": 6*r.mib(15<<10) + r.mib(30<<10),
			"two members": 2 * r.mib(66000),
			"six members": 6 * r.mib(22000),
		} {
			if used := asked + ofContexts; used > total || used < total*85/100 {
				t.Errorf("%d MiB: %s take %d", total, name, used)
			}
		}
		if 2*r.mib(70<<10)+ofContexts <= total {
			t.Errorf("%d MiB: the next rank has room beside the dead one's %d MiB", total, r.mib(70<<10))
		}
	}
}
