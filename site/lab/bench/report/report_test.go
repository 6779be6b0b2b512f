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

// The committed document and plots are what the program makes of the committed measurements.
func TestTheDocumentIsWhatTheProgramMakes(t *testing.T) {
	files, err := makeAll(docs)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		got, err := os.ReadFile(filepath.Join(docs, path))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/%s is not what its measurements say (%v): run make benchmarks", path, err)
		}
	}
	plots, err := filepath.Glob(filepath.Join(docs, "plots", "*"))
	if err != nil || len(plots) != len(files)-1 {
		t.Errorf("docs/plots has %d files, %d are made (%v)", len(plots), len(files)-1, err)
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

func TestAPartWithoutItsMarkersIsRefused(t *testing.T) {
	for _, page := range []string{"", "<!-- made: bars -->", "<!-- made: other -->\n<!-- made -->"} {
		if _, err := replace([]byte(page), "bars", "x"); err == nil {
			t.Errorf("%q: no error", page)
		}
	}
	got, err := replace([]byte("a\n<!-- made: bars -->\nold\n<!-- made -->\nb\n"), "bars", "new\n")
	if want := "a\n<!-- made: bars -->\nnew\n<!-- made -->\nb\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}
