// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const docs = "../../../../docs"

// TestThePagesAreWhatTheProgramMakes checks that the program makes the committed pages and plots from the committed
// measurements.
func TestThePagesAreWhatTheProgramMakes(t *testing.T) {
	files, err := makeAll(docs)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		got, err := os.ReadFile(filepath.Join(docs, path))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/%s does not match its measurements (%v): run make benchmarks", path, err)
		}
	}
	plots, err := filepath.Glob(filepath.Join(docs, "plots", "*"))
	if err != nil || len(plots) != len(files)-len(pages) {
		t.Errorf("docs/plots has %d files, want %d (%v)", len(plots), len(files)-len(pages), err)
	}
}

func TestPlotsAreWellFormed(t *testing.T) {
	files, err := makeAll(docs)
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range files {
		if !strings.HasSuffix(path, ".svg") {
			continue
		}
		decoder := xml.NewDecoder(bytes.NewReader(content))
		for err = nil; err == nil; {
			_, err = decoder.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", path, err)
		}
		if bytes.Contains(content, []byte("NaN")) || bytes.Contains(content, []byte("+Inf")) || bytes.Contains(content, []byte("-Inf")) {
			t.Errorf("%s has a point that is no number", path)
		}
	}
}

func TestAPageWithWrongMarkersIsRefused(t *testing.T) {
	parts := func() map[string]string { return map[string]string{"bars": "new\n"} }
	bars := "<!-- made: bars -->\n"
	for _, page := range []string{bars, "<!-- made: other -->\n<!-- made -->", bars + end + bars + end} {
		if got, err := fill([]byte(page), parts()); err == nil {
			t.Errorf("%q: got %q and no error", page, got)
		}
	}
	left := parts()
	got, err := fill([]byte("a\n"+bars+"old\n"+end+"\nb\n"), left)
	if want := "a\n" + bars + "new\n" + end + "\nb\n"; err != nil || string(got) != want || len(left) != 0 {
		t.Errorf("got %q, %v, left %v; want %q", got, err, left, want)
	}
}

// TestEndsAreThoseOfTheDocument checks that the endings in the plot are those of the table in benchmarks.md.
func TestEndsAreThoseOfTheDocument(t *testing.T) {
	ends, err := readEnds(filepath.Join(docs, "measurements"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][2]int{{0, 591 + 397 + 381}, {120, 660}, {4, 11}, {9, 14}} {
		if got := [2]int{ends[i].harmful, ends[i].endings}; got != want {
			t.Errorf("%s: %v, the document has %v", ends[i].name, got, want)
		}
	}
}

// TestLabelsOfAxesAreShort checks that no label of an axis has more digits than the axis's step.
func TestLabelsOfAxesAreShort(t *testing.T) {
	for _, most := range []float64{0.87, 1.05, 1.3, 2.6, 6, 14, 27, 140, 620} {
		f := frame{picture: begin("", ""), top: top, bottom: height - bottom, maxY: most}
		f.axes()
		if text := f.String(); strings.Contains(text, "0000") || strings.Contains(text, "9999") {
			t.Errorf("%g: %s", most, text)
		}
	}
}

// The picture of endings has only the two methods that ran in turns, as soon as both are measured on a GPU. Trials that
// could not be made, other parts, and simulated GPUs do not count.
func TestEndingsInTurns(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, "15", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(folder, "15"), 0o755); err != nil {
		t.Fatal(err)
	}
	line := func(part, method, ranks string, valid bool, alive int) string {
		return fmt.Sprintf(`{"part":%q,"method":%q,"ranks":%q,"valid":%t,"values":{"alive":%d,"of":2,"took":1.5}}`+"\n",
			part, method, ranks, valid, alive)
	}
	write("room.jsonl", line("endings", "guard", "torch", true, 2))
	if ways, err := readTurns(folder); ways != nil || err != nil {
		t.Errorf("one method alone: %v, %v", ways, err)
	}
	write("room-2.jsonl", line("endings", "bare", "torch", true, 0)+line("endings", "bare", "torch", true, 2)+
		line("endings", "bare", "driver", true, 0)+line("endings", "bare", "torch", false, 0)+line("rate", "bare", "torch", true, 1))
	ways, err := readTurns(folder)
	if err != nil || len(ways) != 2 {
		t.Fatalf("%v, %v", ways, err)
	}
	if got := [4]int{ways[0].harmful, ways[0].endings, ways[1].harmful, ways[1].endings}; got != [4]int{0, 1, 1, 2} {
		t.Errorf("harmful and endings are %v", got)
	}
	pic := string(data{turns: ways, ends: []endsOf{{name: "an old row", endings: 1}}}.endsPlot())
	if !strings.Contains(pic, "bare MPS") || strings.Contains(pic, "an old row") {
		t.Error("the picture has other rows than the two in turns")
	}
	write("room-3.jsonl", "no record\n")
	if _, err := readTurns(folder); err == nil {
		t.Error("a file that is no record is accepted")
	}
}

// The tables that no page has are of the same data.
func TestLongTables(t *testing.T) {
	d, err := readData(filepath.Join(docs, "measurements"))
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Join(d.long(), "\n")
	for _, want := range []string{
		"**Saturating FMA kernel**", "| overlap 2 | 95.8 %", "| 1 | nbody | overlap 3 |", "a rank's first call of CUDA", ": 166 shares,",
	} {
		if !strings.Contains(long, want) {
			t.Errorf("the long tables lack %q", want)
		}
	}
}
