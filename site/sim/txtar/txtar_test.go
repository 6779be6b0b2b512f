// SPDX-License-Identifier: Apache-2.0

package txtar

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const text = "what it is\n-- a/1 --\nx\n\n-- y\n-- b --\n-- c --\n--  --\nz\n"
	want := Archive{Comment: "what it is\n", Files: map[string]string{"a/1": "x\n\n-- y\n", "b": "", "c": "--  --\nz\n"}}
	got, err := Parse(text)
	if err != nil || !reflect.DeepEqual(got, want) || got.Text() != text {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Parse("-- a --\n-- a --\n"); err == nil || !strings.Contains(err.Error(), "the file a twice") {
		t.Error(err)
	}
}

func TestPut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.txtar")
	for _, put := range [][2]string{{"b", "1\n"}, {"a", "2\n"}, {"b", "3\n"}} {
		if err := Put(path, put[0], put[1]); err != nil {
			t.Fatal(err)
		}
	}
	for _, wrong := range []string{"no newline", "x\n-- c --\ny\n"} {
		if err := Put(path, "a", wrong); err == nil {
			t.Errorf("%q is in an archive", wrong)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "-- a --\n2\n-- b --\n3\n" {
		t.Errorf("%q, %v", text, err)
	}
}
