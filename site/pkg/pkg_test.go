// SPDX-License-Identifier: Apache-2.0

// Package pkg checks that the files which a site installs match the documents and the sources. make test-packages
// builds and tests the packages themselves.
package main

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
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

func entries(t *testing.T) []entry {
	t.Helper()
	all := must.Get(readList("nfpm.yaml"))(t)
	return all
}

// TestEntries checks that every file has the mode that slurmd and users need, and that root owns every file. A file
// that a site edits must be a configuration file, because an upgrade does not change those.
func TestEntries(t *testing.T) {
	programs, links := map[string]bool{}, map[string]string{}
	for _, e := range entries(t) {
		want := map[bool]fs.FileMode{true: 0o755, false: 0o644}[e.Program() || e.Kind == Dir]
		if e.Kind != Symlink && e.Mode != want {
			t.Errorf("%s has mode %v, want %v", e.Target, e.Mode, want)
		}
		if config := strings.HasPrefix(e.Target, "/etc/") && e.Kind != Dir; config != (e.Kind == Config) {
			t.Errorf("%s is of type %q", e.Target, e.Kind)
		}
		if e.Program() {
			programs[e.Target] = true
		}
		// nfpm makes a folder of a link if the link's target, seen from the source, is one: "epilog".
		if _, err := os.Stat(filepath.Join("../..", e.Source)); e.Kind == Symlink && err == nil {
			t.Errorf("the target of the link %s is also a path in the source: %s", e.Target, e.Source)
		}
		if e.Kind == Symlink && testnode.Links[filepath.Base(e.Target)] != "" {
			links[filepath.Base(e.Target)] = filepath.Join(filepath.Dir(e.Target), e.Source)
		}
		if local := e.Built() == "" && e.Kind != Symlink && e.Kind != Dir; local {
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

// TestEveryFileOfTheSite checks that each file of site/etc is packaged, at the path that its first line names.
func TestEveryFileOfTheSite(t *testing.T) {
	files, err := filepath.Glob("../etc/*.*")
	copied, err2 := filepath.Glob("../etc/policies/*")
	must.OK(t, errors.Join(err, err2))
	files = append(files, copied...)
	for _, file := range files {
		if strings.HasSuffix(file, ".go") {
			continue
		}
		source := "site" + strings.TrimPrefix(file, "..")
		i := slices.IndexFunc(entries(t), func(e entry) bool { return e.Source == source })
		if i < 0 {
			t.Errorf("%s is not packaged", file)
			continue
		}
		content := must.Get(os.ReadFile(file))(t)
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

// dpkgs makes a package of the files below /etc and /usr/share/slurm-mps that the .deb has, with the scripts of the
// packages, and adds a line to each file. dpkg asks about a configuration file that a site and a package have changed.
func dpkgs(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	put := func(path, content string, mode os.FileMode) {
		path = filepath.Join(dir, path)
		must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), mode)))
	}
	conffiles := ""
	for _, e := range entries(t) {
		switch below := strings.HasPrefix(e.Target, "/etc/") || strings.HasPrefix(e.Target, "/usr/share/slurm-mps"); {
		case !below || e.Packager == "rpm":
		case e.Kind == Dir:
			must.OK(t, os.MkdirAll(filepath.Join(dir, e.Target), 0o755))
		default:
			put(e.Target, readFile(t, filepath.Join("../..", e.Source))+"# version "+version+"\n", e.Mode)
			if e.Kind == Config {
				conffiles += e.Target + "\n"
			}
		}
	}
	put("DEBIAN/conffiles", conffiles, 0o644)
	put("DEBIAN/control", "Package: slurm-mps\nVersion: "+version+"\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n", 0o644)
	for deb, ours := range map[string]string{
		"preinst": "preinstall", "postinst": "postinstall", "prerm": "preremove", "postrm": "postremove",
	} {
		put("DEBIAN/"+deb, readFile(t, "scripts/"+ours), 0o755)
	}
	file := filepath.Join(t.TempDir(), version+".deb")
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", dir, file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// TestConfigurationByDpkg checks with dpkg itself that an upgrade asks nothing and keeps a site's files, that a first
// installation has ours, that a removal leaves them and a purge does not, and that an upgrade puts no shipped policy in
// place of a deleted one whose copy decides.
func TestConfigurationByDpkg(t *testing.T) {
	if _, err := exec.LookPath("dpkg"); err != nil || os.Geteuid() != 0 {
		t.Skip("it needs root and dpkg")
	}
	const script = `set -e
mount --make-rprivate /
for dir in /etc /usr/share /var/lib /var/log; do mount -t tmpfs none $dir; done # the machine's own stay as they are
mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates
touch /var/lib/dpkg/status /var/lib/dpkg/available
cd /etc
install() { dpkg -i "$1" </dev/null; }
install "$1"
for file in policy.hcl site.hcl; do
    cmp slurm-mps/$file /usr/share/slurm-mps/$file
    [ "$(stat -c %a slurm-mps/$file)" = 644 ]
    echo '# ours' >>slurm-mps/$file
done
install "$2"
grep -qx '# version 2' logrotate.d/slurm-mps
ours() {
    for file in policy.hcl site.hcl; do tail -n 1 slurm-mps/$file | grep -qx '# ours'; done
    [ "$(ls -A slurm-mps | grep -vx policy.d)" = "$(printf 'policy.hcl\nsite.hcl')" ]
}
ours
dpkg -r slurm-mps
ours
install "$2"
ours
mkdir -p /var/lib/slurm-mps
touch /var/lib/slurm-mps/policy.json
rm slurm-mps/policy.hcl
install "$1"
[ "$(ls -A slurm-mps)" = "$(printf 'policy.d\nsite.hcl')" ]
touch slurm-mps/policy.d/own.hcl
dpkg --purge slurm-mps
[ "$(ls -A slurm-mps slurm-mps/policy.d | tr '\n' ' ')" = 'slurm-mps: policy.d  slurm-mps/policy.d: own.hcl ' ]
rm slurm-mps/policy.d/own.hcl
install "$1"
dpkg --purge slurm-mps
[ ! -e slurm-mps ]`
	cmd := exec.Command("unshare", "-m", "sh", "-xc", script, "sh", dpkgs(t, "1"), dpkgs(t, "2"))
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
