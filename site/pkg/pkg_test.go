// SPDX-License-Identifier: Apache-2.0

// Package pkg holds what a site installs to what the house says of it. The packages themselves are made and tried by
// make test-packages.
package pkg

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lease"
)

// entry is a line of nfpm.yaml's contents.
type entry struct{ src, dst, kind, mode string }

var field = regexp.MustCompile(`(src|dst|type|mode): (?:"([^"]+)"|([^,}\s]+))`)

func entries(t *testing.T) (all []entry) {
	t.Helper()
	content, err := os.ReadFile("nfpm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		if !strings.HasPrefix(line, "  - {") {
			continue
		}
		var e entry
		for _, m := range field.FindAllStringSubmatch(line, -1) {
			*map[string]*string{"src": &e.src, "dst": &e.dst, "type": &e.kind, "mode": &e.mode}[m[1]] = m[2] + m[3]
		}
		all = append(all, e)
	}
	return all
}

// Every file has the mode that slurmd and users need, no file is another's than root's, and all that a site edits is a
// configuration file that an upgrade leaves alone.
func TestEntries(t *testing.T) {
	programs := map[string]bool{}
	for _, e := range entries(t) {
		program := strings.Contains(e.src, "/bin/")
		want := map[bool]string{true: "0755", false: "0644"}[program || e.kind == "dir"]
		if e.kind != "symlink" && e.mode != want {
			t.Errorf("%s has mode %s, want %s", e.dst, e.mode, want)
		}
		if config := strings.HasPrefix(e.dst, "/etc/") && e.kind != "dir"; config != (e.kind == "config|noreplace") {
			t.Errorf("%s is of type %q", e.dst, e.kind)
		}
		if program {
			programs[e.dst] = true
		}
		if local := !strings.Contains(e.src, "${BUILT}") && e.kind != "symlink" && e.kind != "dir"; local {
			if _, err := os.Stat(filepath.Join("../..", e.src)); err != nil {
				t.Error(err)
			}
		}
	}
	for _, path := range []string{"/usr/libexec/slurm-mps/prolog", "/usr/libexec/slurm-mps/epilog", "/usr/libexec/slurm-mps/guard", "/usr/libexec/slurm-mps/gpu-usage", "/usr/libexec/slurm-mps/task-prolog", "/usr/bin/mpirun-wrap", "/usr/sbin/mpsctl"} {
		if !programs[path] {
			t.Errorf("%s is not packaged", path)
		}
	}
	if len(programs) != 7 {
		t.Errorf("programs %v", programs)
	}
}

// The packages hold the license of slurm-mps, and those of all modules in the programs.
func TestLicenses(t *testing.T) {
	all := entries(t)
	for src, dst := range map[string]string{"LICENSE": "/usr/share/doc/slurm-mps/LICENSE", "${BUILT}/NOTICES": "/usr/share/doc/slurm-mps/NOTICES"} {
		if !slices.Contains(all, entry{src: src, dst: dst, mode: "0644"}) {
			t.Errorf("%s is not packaged as %s", src, dst)
		}
	}
	content, err := os.ReadFile("../../LICENSE")
	if err != nil || !strings.Contains(string(content), "Apache License\n                           Version 2.0, January 2004\n") {
		t.Errorf("LICENSE is not the Apache License 2.0: %v", err)
	}
}

// No file of site/etc is forgotten, and what its first line says of its place is where it is put.
func TestEveryFileOfTheSite(t *testing.T) {
	files, err := filepath.Glob("../etc/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".go") {
			continue
		}
		i := slices.IndexFunc(entries(t), func(e entry) bool { return e.src == "site/etc/"+filepath.Base(file) })
		if i < 0 {
			t.Errorf("%s is not packaged", file)
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		said := regexp.MustCompile(`^# (/(?:usr|etc)/\S+slurm-mps\S*):`).FindSubmatch(content)
		if dst := entries(t)[i].dst; said != nil && string(said[1]) != dst {
			t.Errorf("%s says it is %s, and is put at %s", file, said[1], dst)
		}
	}
}

// The scripts are the shell's language, and know the form of a lease that the programs know.
func TestScripts(t *testing.T) {
	for _, script := range []string{"scripts/preinstall", "scripts/postinstall", "scripts/preremove", "scripts/postremove"} {
		if out, err := exec.Command("sh", "-n", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
	content, err := os.ReadFile("scripts/preinstall")
	if want := fmt.Sprintf("\nknows=%d # lease.Schema\n", lease.Schema); err != nil || !strings.Contains(string(content), want) {
		t.Errorf("preinstall has no line %q", want)
	}
}
