// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

const nfpmList = "site/pkg/nfpm.yaml"

// list returns the packages' list, without the entries that are only for Debian.
func list(t *testing.T) []entry {
	t.Helper()
	all := must.Get(readList(filepath.Join(top, nfpmList)))(t)
	return slices.DeleteFunc(all, func(e entry) bool { return e.Packager == "deb" })
}

// planted returns a build folder with a file for each built entry.
func planted(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, e := range list(t) {
		if e.Built() == "" {
			continue
		}
		path := filepath.Join(dir, e.Built())
		must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(e.Built()), 0o600)))
	}
	return dir
}

// want returns the files, links and folders of the list, with their permissions.
func want(t *testing.T, prefix string) map[string]fs.FileMode {
	t.Helper()
	modes := map[string]fs.FileMode{}
	for _, e := range list(t) {
		mode := e.Mode
		switch e.Kind {
		case Dir:
			mode |= fs.ModeDir
		case Symlink:
			mode = fs.ModeSymlink
		}
		path := e.Target
		if rest, found := strings.CutPrefix(path, "/usr/"); found {
			path = prefix + "/" + rest
		}
		modes[path] = mode
	}
	return modes
}

// got returns the files and links below a folder, and the folders that are in the list.
func got(t *testing.T, dir string, listed map[string]fs.FileMode) map[string]fs.FileMode {
	t.Helper()
	modes := map[string]fs.FileMode{}
	must.OK(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		name := strings.TrimPrefix(path, dir)
		if _, known := listed[name]; err != nil || entry.IsDir() && !known {
			return err
		}
		modes[name] = info.Mode()
		if info.Mode()&fs.ModeSymlink != 0 {
			modes[name] = fs.ModeSymlink
		}
		return nil
	}))
	return modes
}

func same(t *testing.T, dir, prefix string) {
	t.Helper()
	want := want(t, prefix)
	got := got(t, dir, want)
	for _, path := range slices.Sorted(maps.Keys(want)) {
		must.Equal(t, fmt.Sprintf("%s has mode", path), got[path], want[path])
	}
	for path := range got {
		if _, known := want[path]; !known {
			t.Errorf("%s is in no package", path)
		}
	}
}

// TestInstall checks that an installation writes the files to the same paths as the packages. A second installation
// must not change an admin's configuration.
func TestInstall(t *testing.T) {
	d := destination{top: top, list: nfpmList, built: planted(t), destdir: t.TempDir(), prefix: "/usr"}
	var output bytes.Buffer
	must.OK(t, d.install(&output))
	same(t, d.destdir, "/usr")
	policy := filepath.Join(d.destdir, "etc/slurm-mps/policy.hcl")
	must.OK(t, os.WriteFile(policy, []byte("ours"), 0o600))
	must.OK(t, d.install(&output))
	kept, err := os.ReadFile(policy)
	if err != nil || string(kept) != "ours" || output.String() != "install: left as it is: "+policy+"\n" {
		t.Errorf("after the second installation, the policy is %q, %v; it printed %q", kept, err, output.String())
	}
}

// TestPrefix checks an installation below another prefix. Units and examples must name the installed programs, and
// paths of other programs must not change.
func TestPrefix(t *testing.T) {
	d := destination{top: top, list: nfpmList, built: planted(t), destdir: t.TempDir(), prefix: "/opt/mps/"}
	must.OK(t, d.install(&bytes.Buffer{}))
	same(t, d.destdir, "/opt/mps")
	for path, want := range map[string]string{
		"opt/mps/lib/systemd/system/slurm-mps-reap.service": "\nExecStart=/opt/mps/sbin/mpsctl reap",
		"opt/mps/share/doc/slurm-mps/examples/slurm.conf":   "\nProlog=/opt/mps/libexec/slurm-mps/prolog\n",
		"etc/slurm-mps/site.hcl":                            `"/usr/bin/nvidia-cuda-mps-control"`,
	} {
		content, err := os.ReadFile(filepath.Join(d.destdir, path))
		must.Hold(t, err == nil && strings.Contains(string(content), want), "%s lacks %q, %v:\n%s", path, want, err, content)
	}
}

// A user's programs need no root, and nothing outside their folder: gpu-usage is beside mpirun-wrap, which looks for it
// there.
func TestInstallOfAUser(t *testing.T) {
	dir := t.TempDir()
	d := destination{top: top, list: "site/pkg/user.yaml", built: planted(t), prefix: dir}
	must.OK(t, d.install(&bytes.Buffer{}))
	found := slices.Sorted(maps.Keys(got(t, filepath.Join(dir, "bin"), nil)))
	if want := []string{"/gpu-usage", "/mpirun-wrap", "/mps-tune", "/mpsctl"}; !slices.Equal(found, want) {
		t.Errorf("the programs are %q, want %q", found, want)
	}
	for path, want := range map[string]string{
		"bin/gpu-usage": "bin/epilog", "bin/mps-tune": "bin/mpsctl", "share/man/man1/mps-tune.1.gz": "man/mps-tune.1.gz",
		"share/bash-completion/completions/mps-tune": "completion/mps-tune.bash", "share/licenses/slurm-mps/NOTICES": "NOTICES",
	} {
		if content, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(content) != want {
			t.Errorf("%s holds %q, %v, want %q", path, content, err, want)
		}
	}
}

// TestMakeInstall checks that make install installs the same files as the packages.
func TestMakeInstall(t *testing.T) {
	if os.Getenv("PACKAGES") == "" {
		t.Skip("PACKAGES is not set: run make test-packages")
	}
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("there is no make")
	}
	dir := t.TempDir()
	cmd := exec.Command("make", "-s", "-C", top, "install", "DESTDIR="+dir)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKEFLAGS=") })
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	same(t, dir, "/usr")
	for _, program := range []string{"usr/sbin/mpsctl", "usr/bin/mps-tune", "usr/libexec/slurm-mps/gpu-usage"} {
		out, err := exec.Command(filepath.Join(dir, program), "--version").Output()
		name, _, _ := strings.Cut(string(out), " ")
		must.Hold(t, err == nil && (name == "slurm-mps" || name == filepath.Base(program)),
			"the installed %s prints %q, %v", program, out, err)
	}
	small(t, dir)
}

// maxInstalled is the size of an installation in bytes. A node that boots from the network has it in its memory.
const maxInstalled = 40e6

// small checks the size of an installation.
func small(t *testing.T, dir string) {
	t.Helper()
	size := int64(0)
	for path := range got(t, dir, nil) {
		info := must.Get(os.Lstat(filepath.Join(dir, path)))(t)
		size += info.Size()
	}
	if size > maxInstalled || size < maxInstalled/4 {
		t.Errorf("%d bytes are installed: want %d at most", size, int64(maxInstalled))
	}
	t.Logf("%.1f MB are installed", float64(size)/1e6)
}
