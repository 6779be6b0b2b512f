// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
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
