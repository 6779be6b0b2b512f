// SPDX-License-Identifier: Apache-2.0

// Package pkg checks that the files which a site installs match the documents and the sources. make test-packages
// builds and tests the packages themselves.
package pkg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/pkg/contents"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

func entries(t *testing.T) []contents.Entry {
	t.Helper()
	all, err := contents.Read("nfpm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestEntries checks that every file has the mode that slurmd and users need, and that root owns every file. A file
// that a site edits must be a configuration file, because an upgrade does not change those.
func TestEntries(t *testing.T) {
	programs, links := map[string]bool{}, map[string]string{}
	for _, e := range entries(t) {
		want := map[bool]fs.FileMode{true: 0o755, false: 0o644}[e.Program() || e.Kind == contents.Dir]
		if e.Kind != contents.Symlink && e.Mode != want {
			t.Errorf("%s has mode %v, want %v", e.Target, e.Mode, want)
		}
		if config := strings.HasPrefix(e.Target, "/etc/") && e.Kind != contents.Dir; config != (e.Kind == contents.Config) {
			t.Errorf("%s is of type %q", e.Target, e.Kind)
		}
		if e.Program() {
			programs[e.Target] = true
		}
		// nfpm makes a folder of a link if the link's target, seen from the source, is one: "epilog".
		if _, err := os.Stat(filepath.Join("../..", e.Source)); e.Kind == contents.Symlink && err == nil {
			t.Errorf("the target of the link %s is also a path in the source: %s", e.Target, e.Source)
		}
		if e.Kind == contents.Symlink && testnode.Links[filepath.Base(e.Target)] != "" {
			links[filepath.Base(e.Target)] = filepath.Join(filepath.Dir(e.Target), e.Source)
		}
		if local := e.Built() == "" && e.Kind != contents.Symlink && e.Kind != contents.Dir; local {
			if _, err := os.Stat(filepath.Join("../..", e.Source)); err != nil {
				t.Error(err)
			}
		}
	}
	for _, path := range []string{
		"/usr/libexec/slurm-mps/prolog", "/usr/libexec/slurm-mps/epilog", "/usr/libexec/slurm-mps/guard",
		"/usr/libexec/slurm-mps/task-prolog", "/usr/bin/mpirun-wrap", "/usr/sbin/mpsctl",
	} {
		if !programs[path] {
			t.Errorf("%s is not packaged", path)
		}
	}
	for link, program := range testnode.Links {
		if !programs[links[link]] || filepath.Base(links[link]) != program {
			t.Errorf("%s is a link to %q: want the installed %s", link, links[link], program)
		}
	}
	if len(programs)+len(links) != len(testnode.Programs) {
		t.Errorf("programs %v, links %v", programs, links)
	}
}

// TestLicenses checks that the packages contain the license of slurm-mps and the licenses of all modules in the
// programs. They must be where Debian and rpm keep licenses, because both can be told to install no documents.
func TestLicenses(t *testing.T) {
	all := entries(t)
	const doc, licenses, notices = "/usr/share/doc/slurm-mps/", "/usr/share/licenses/slurm-mps/", "${BUILT}/NOTICES"
	for _, want := range []contents.Entry{
		{Source: "LICENSE", Target: doc + "LICENSE"},
		{Source: notices, Target: doc + "NOTICES"},
		{Source: "${BUILT}/copyright", Target: doc + "copyright", Packager: "deb"},
		{Source: "LICENSE", Target: licenses + "LICENSE", Kind: contents.License, Packager: "rpm"},
		{Source: notices, Target: licenses + "NOTICES", Kind: contents.License, Packager: "rpm"},
	} {
		want.Mode = 0o644
		if !slices.Contains(all, want) {
			t.Errorf("not packaged: %+v", want)
		}
	}
	content, err := os.ReadFile("../../LICENSE")
	if err != nil || !strings.Contains(string(content), "Apache License\n                           Version 2.0, January 2004\n") {
		t.Errorf("LICENSE is not the Apache License 2.0: %v", err)
	}
}

// TestEveryFileOfTheSite checks that each file of site/etc is packaged, at the path that its first line names.
func TestEveryFileOfTheSite(t *testing.T) {
	files, err := filepath.Glob("../etc/*.*")
	copied, err2 := filepath.Glob("../etc/policies/*")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	files = append(files, copied...)
	for _, file := range files {
		if strings.HasSuffix(file, ".go") {
			continue
		}
		source := "site" + strings.TrimPrefix(file, "..")
		i := slices.IndexFunc(entries(t), func(e contents.Entry) bool { return e.Source == source })
		if i < 0 {
			t.Errorf("%s is not packaged", file)
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile(`^# (/(?:usr|etc)/\S+slurm-mps\S*):`).FindSubmatch(content)
		if dst := entries(t)[i].Target; named != nil && string(named[1]) != dst {
			t.Errorf("%s names the path %s, but the package installs it at %s", file, named[1], dst)
		}
	}
}

// TestScripts checks that the scripts are valid shell, and that they know the lease format of the programs.
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("scripts/*")
	if err != nil || len(scripts) != 6 {
		t.Errorf("scripts %q, %v", scripts, err)
	}
	for _, script := range scripts {
		if out, err := exec.Command("sh", "-n", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
	content, err := os.ReadFile("scripts/preinstall")
	if want := fmt.Sprintf("\nknows=%d # lease.Schema\n", lease.Schema); err != nil || !strings.Contains(string(content), want) {
		t.Errorf("preinstall has no line %q", want)
	}
}

// TestPurgeOfAMountPoint checks that a purge succeeds if a site has a file system of its own at a folder of the package. Its files are removed.
func TestPurgeOfAMountPoint(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts are root's")
	}
	const script = `set -e
mount --make-rprivate /
mount -t tmpfs none /var/log # the machine's own folders stay as they are
mount -t tmpfs none /var/lib
mkdir /var/log/slurm-mps /var/lib/slurm-mps
mount -t tmpfs none /var/log/slurm-mps
touch /var/log/slurm-mps/log /var/lib/slurm-mps/file
sh scripts/postremove purge
[ -z "$(ls -A /var/log/slurm-mps)" ] && [ ! -e /var/lib/slurm-mps ]`
	if out, err := exec.Command("unshare", "-m", "sh", "-c", script).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestSpankEntries checks that the package of the SPANK plugin installs the plugin and its line at the paths that
// docs/operator.md names.
func TestSpankEntries(t *testing.T) {
	all, err := contents.Read("spank.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const plugin = "/usr/lib/slurm-mps/slurm_mps.so"
	const doc, licenses = "/usr/share/doc/slurm-mps-spank-${RELEASE}", "/usr/share/licenses/slurm-mps-spank-${RELEASE}"
	want := []contents.Entry{
		{Target: "/usr/lib/slurm-mps", Kind: contents.Dir, Mode: 0o755},
		{Source: "${PLUGIN}/slurm_mps.so", Target: plugin, Mode: 0o644},
		{Source: "site/spank/plugstack.conf", Target: "/etc/slurm/plugstack.conf.d/slurm-mps.conf", Kind: contents.Config, Mode: 0o644},
		{Target: doc, Kind: contents.Dir, Mode: 0o755},
		{Source: "LICENSE", Target: doc + "/LICENSE", Mode: 0o644},
		{Source: "site/pkg/copyright", Target: doc + "/copyright", Packager: "deb", Mode: 0o644},
		{Source: "LICENSE", Target: licenses + "/LICENSE", Kind: contents.License, Packager: "rpm", Mode: 0o644},
	}
	if !slices.Equal(all, want) {
		t.Errorf("got %+v, want %+v", all, want)
	}
	line, err := os.ReadFile("../spank/plugstack.conf")
	if err != nil || !strings.HasSuffix(string(line), "\noptional "+plugin+"\n") {
		t.Errorf("plugstack.conf does not end with the plugin's line: %q, %v", line, err)
	}
}
