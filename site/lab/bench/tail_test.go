// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPercentiles(t *testing.T) {
	thousand := make([]float64, 1000)
	for i := range thousand {
		thousand[i] = float64(i + 1)
	}
	for p, want := range map[float64]float64{50: 500, 99: 990, 99.9: 999, 100: 1000, 0: 1} {
		if got := percentile(thousand, p); got != want {
			t.Errorf("percentile %v of 1 to 1000 is %v, want %v", p, got, want)
		}
	}
	if got := percentile([]float64{7}, 99.9); got != 7 {
		t.Errorf("percentile of one value is %v", got)
	}
}

// Raw files of several runs are one table.
func TestAddUp(t *testing.T) {
	files := []string{filepath.Join(t.TempDir(), "1"), filepath.Join(t.TempDir(), "2")}
	lines := []string{
		`{"beside_load":false,"prolog":{"ms":10},"epilog":{"ms":20}}` + "\n" + `{"beside_load":true,"prolog":{"ms":40},"epilog":{"ms":50}}` + "\n",
		`{"beside_load":false,"prolog":{"ms":12},"epilog":{"ms":22}}` + "\n",
	}
	for i, file := range files {
		if err := os.WriteFile(file, []byte(lines[i]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var printed strings.Builder
	if err := addUp(&printed, files); err != nil {
		t.Fatal(err)
	}
	want := tailHeader + `prolog  nothing          2   10.0    12.0    12.0    12.0
epilog  nothing          2   20.0    22.0    22.0    22.0
prolog  load             1   40.0    40.0    40.0    40.0
epilog  load             1   50.0    50.0    50.0    50.0
`
	if printed.String() != want {
		t.Errorf("got\n%swant\n%s", printed.String(), want)
	}
	if err := os.WriteFile(files[0], []byte("{\"prolog\""), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := addUp(io.Discard, files[:1]); err == nil {
		t.Error("half a line is no error")
	}
}

func TestWhatTheMachineDid(t *testing.T) {
	read := func(line string) moment {
		read, err := parseTicks(line)
		if err != nil {
			t.Fatal(err)
		}
		return moment{read, "1.25"}
	}
	// user nice system idle iowait irq softirq steal guest guest_nice
	before := read("cpu  100 1 50 1000 10 2 3 4 0 0\ncpu0 1 2 3\n")
	after := read("cpu  110 2 55 1010 12 3 5 11 0 0\n")
	if got, want := after.since(before), (activity{Busy: 68, Wait: 20, Steal: 70, Load: "1.25"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := after.since(after); got.Busy != 0 {
		t.Errorf("no time is %d %% busy", got.Busy)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9", "cpu 1 2 3 4 5 6 7 x"} {
		if _, err := parseTicks(bad); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
}
