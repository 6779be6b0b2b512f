// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// spankPackages returns the packages of the SPANK plugin that make packages has made, by the release of Slurm.
func spankPackages(t *testing.T, dir string) (debs, rpms map[string]string) {
	t.Helper()
	debs, rpms = map[string]string{}, map[string]string{}
	found := must.Get(filepath.Glob(filepath.Join(dir, "packages", "slurm-mps-spank-*")))(t)
	name := regexp.MustCompile(`^slurm-mps-spank-([0-9]{2}\.[0-9]{2})[-_].*\.(deb|rpm)$`)
	for _, path := range found {
		m := name.FindStringSubmatch(filepath.Base(path))
		must.Have(t, m != nil, "what is %s?", path)
		map[string]map[string]string{"deb": debs, "rpm": rpms}[m[2]][m[1]] = path
	}
	if len(debs) < 2 || len(rpms) != len(debs) {
		t.Skipf("packages %q: want two releases of Slurm: make packages prints why there are none", found)
	}
	return debs, rpms
}

// TestRootSpankPackages checks that the package of a release can be installed on a machine with that Slurm or without
// Slurm, and that it replaces the package of another release. The site's own line in plugstack.conf.d must stay.
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
		install, remove string // FILE is replaced by the package's path
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

// slurm installs a replacement for a Slurm of this version in the root. It has only the commands that the package's
// script calls.
func (r root) slurm(version string) {
	r.t.Helper()
	r.write("/usr/bin/srun", "#!/bin/sh\necho slurm-wlm "+version+"\n")
	r.must(0, "chmod 755 /usr/bin/srun")
}

func (r root) spankLives(install, remove, next string) {
	t := r.t
	const (
		advice  = "write this line there: include /etc/slurm/plugstack.conf.d/*.conf"
		snippet = "/etc/slurm/plugstack.conf.d/slurm-mps.conf"
		sum     = "sha256sum /usr/lib/slurm-mps/slurm_mps.so"
		refused = "slurm-mps-spank-24.11: cannot be installed: the Slurm of this machine is 22.05: install slurm-mps-spank-22.05"
	)
	r.slurm("22.05.8")
	if code, out := r.run(nil, next); code == 0 || !strings.Contains(out, refused) {
		t.Errorf("on another Slurm: code %d: %s", code, out)
	}
	r.must(2, "ls /usr/lib/slurm-mps/slurm_mps.so")

	if out := r.must(0, install); !strings.Contains(out, advice) { // there is no plugstack.conf
		t.Errorf("without a plugstack.conf, the installation prints %s", out)
	}
	r.must(0, "grep -qx 'optional /usr/lib/slurm-mps/slurm_mps.so' "+snippet)
	before := r.must(0, sum)

	r.slurm("24.11.5")
	r.write("/etc/slurm/plugstack.conf", "include /etc/slurm/plugstack.conf.d/*.conf\n")
	r.must(0, "sed -i 's/[.]so$/.so auto_wrap=1/' "+snippet)
	r.must(0, remove)
	if out := r.must(0, next); strings.Contains(out, advice) {
		t.Errorf("with Debian's plugstack.conf, the installation prints %s", out)
	}
	must.Hold(t, r.must(0, sum) != before, "the new package did not replace the plugin")
	r.must(0, "cat "+snippet+"* | grep -qx 'optional /usr/lib/slurm-mps/slurm_mps.so auto_wrap=1'")
	if _, err := os.Stat(r.path("/usr/share/doc/slurm-mps-spank-22.05")); err == nil {
		t.Error("the package of the old release is still there")
	}
}
