// SPDX-License-Identifier: Apache-2.0

package contents

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(`name: x
contents:
  - {dst: /etc/x, type: dir, file_info: {mode: 0755}}
  - {src: "${BUILT}/bin/p", dst: /usr/bin/p, file_info: {mode: 0755}, expand: true}
  - {src: etc/x.conf, dst: /etc/x/x.conf, type: config|noreplace, file_info: {mode: 0644}}

  - {src: ../x, dst: /usr/lib/y, type: symlink}
  - {src: "${BUILT}/z", dst: /usr/share/z, packager: deb, file_info: {mode: 0644}, expand: true}
scripts:
  preinstall: x
`)
	got, err := Read(path)
	want := []Entry{
		{Target: "/etc/x", Kind: Dir, Mode: 0o755},
		{Source: "${BUILT}/bin/p", Target: "/usr/bin/p", Mode: 0o755},
		{Source: "etc/x.conf", Target: "/etc/x/x.conf", Kind: Config, Mode: 0o644},
		{Source: "../x", Target: "/usr/lib/y", Kind: Symlink},
		{Source: "${BUILT}/z", Target: "/usr/share/z", Mode: 0o644, Packager: "deb"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %+v, %v, want %+v", got, err, want)
	}
	if !got[1].Program() || got[1].Built() != "bin/p" || got[4].Program() || got[2].Built() != "" {
		t.Errorf("%+v: wrong about what is built", got)
	}
	for text, want := range map[string]string{
		"contents:\n": "has none",
		"  - {src: a, dst: usr/bin/p, file_info: {mode: 0755}}\n":  "no absolute dst",
		"  - {dst: /usr/bin/p, file_info: {mode: 0755}}\n":         "no src",
		"  - {src: a, dst: /usr/bin/p}\n":                          "no mode",
		"  - {src: a, dst: /usr/bin/p, file_info: {mode: 4755}}\n": "no mode",
	} {
		write(text)
		if got, err := Read(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %+v, %v, want an error %q", text, got, err, want)
		}
	}
}
