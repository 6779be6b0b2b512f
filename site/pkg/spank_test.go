// SPDX-License-Identifier: Apache-2.0

package pkg

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// spankPackages are the packages of the SPANK plugin that make packages has made, by the release of Slurm.
func spankPackages(t *testing.T, dir string) (debs, rpms map[string]string) {
	t.Helper()
	debs, rpms = map[string]string{}, map[string]string{}
	found, err := filepath.Glob(filepath.Join(dir, "packages", "slurm-mps-spank-*"))
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`^slurm-mps-spank-([0-9]{2}\.[0-9]{2})[-_].*\.(deb|rpm)$`)
	for _, path := range found {
		m := name.FindStringSubmatch(filepath.Base(path))
		if m == nil {
			t.Fatalf("what is %s?", path)
		}
		map[string]map[string]string{"deb": debs, "rpm": rpms}[m[2]][m[1]] = path
	}
	if len(debs) < 2 || len(rpms) != len(debs) {
		t.Skipf("packages %q: want two releases of Slurm: make packages says why there are none", found)
	}
	return debs, rpms
}

// The package of a release goes onto a machine with that Slurm or none, and takes the place of another release's. The
// site's own line in plugstack.conf.d stays.
func TestRootSpankPackages(t *testing.T) {
	dir := built(t)
	debs, rpms := spankPackages(t, dir)
	old, other := "22.05", "24.11"
	if debs[old] == "" || debs[other] == "" {
		t.Skipf("packages %q: want %s and %s", debs, old, other)
	}
	for _, c := range []struct {
		name            string
		files           map[string]string
		prepare         string
		install, remove string // FILE stands for the package
	}{
		{"apt", debs, "cp /old /old.deb && cp /new /new.deb", "apt-get -y -o Dpkg::Options::=--force-confold install FILE.deb", "true"},
		{"rpm", rpms, "apt-get -qq update && apt-get -qq install --no-install-recommends rpm >/dev/null", "rpm -i --nodeps FILE", "rpm -e slurm-mps-spank-22.05"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRoot(t, filepath.Join(dir, "debian-bookworm"))
			r.t = t
			r.bring(c.files[old], "/old")
			r.bring(c.files[other], "/new")
			r.must(0, c.prepare)
			install := func(file string) string { return strings.ReplaceAll(c.install, "FILE", file) }
			r.spankLives(install("/old"), c.remove, install("/new"))
		})
	}
}

// slurm puts a Slurm of this version into the root, as far as the package's script asks for it.
func (r root) slurm(version string) {
	r.t.Helper()
	r.write("/usr/bin/srun", "#!/bin/sh\necho slurm-wlm "+version+"\n")
	r.must(0, "chmod 755 /usr/bin/srun")
}

func (r root) spankLives(install, remove, next string) {
	t := r.t
	const (
		told    = "write this line there: include /etc/slurm/plugstack.conf.d/*.conf"
		snippet = "/etc/slurm/plugstack.conf.d/slurm-mps.conf"
		sum     = "sha256sum /usr/lib/slurm-mps/slurm_mps.so"
		refused = "slurm-mps-spank-24.11: cannot be installed: the Slurm of this machine is 22.05: install slurm-mps-spank-22.05"
	)
	r.slurm("22.05.8")
	if code, out := r.run(nil, next); code == 0 || !strings.Contains(out, refused) {
		t.Errorf("on another Slurm: code %d: %s", code, out)
	}
	r.must(2, "ls /usr/lib/slurm-mps/slurm_mps.so")

	if out := r.must(0, install); !strings.Contains(out, told) { // there is no plugstack.conf
		t.Errorf("without a plugstack.conf it says %s", out)
	}
	r.must(0, "grep -qx 'optional /usr/lib/slurm-mps/slurm_mps.so' "+snippet)
	before := r.must(0, sum)

	r.slurm("24.11.5")
	r.write("/etc/slurm/plugstack.conf", "include /etc/slurm/plugstack.conf.d/*.conf\n")
	r.must(0, "sed -i 's/[.]so$/.so auto_wrap=1/' "+snippet)
	r.must(0, remove)
	if out := r.must(0, next); strings.Contains(out, told) {
		t.Errorf("with Debian's plugstack.conf it says %s", out)
	}
	if r.must(0, sum) == before {
		t.Error("the plugin is still the old one")
	}
	r.must(0, "cat "+snippet+"* | grep -qx 'optional /usr/lib/slurm-mps/slurm_mps.so auto_wrap=1'")
	if _, err := os.Stat(r.path("/usr/share/doc/slurm-mps-spank-22.05")); err == nil {
		t.Error("the package of the old release is still there")
	}
}
