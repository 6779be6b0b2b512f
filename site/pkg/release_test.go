// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// in runs a script in a folder, with more variables, and returns what it prints.
func in(t *testing.T, folder string, env []string, script string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 55*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = folder, append(os.Environ(), env...), 5*time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustIn(t *testing.T, folder string, env []string, script string, args ...string) string {
	t.Helper()
	out, err := in(t, folder, env, script, args...)
	must.Have(t, err == nil, "%s %q: %v: %s", script, args, err, out)
	return out
}

// A wrong version and a checkout with changes are refused by one sentence, before anything is made.
func TestReleaseRefuses(t *testing.T) {
	dir := t.TempDir()
	mustIn(t, ".", nil, `mkdir -p "$1/site/pkg" && cp release.sh "$1/site/pkg/" && cd "$1" && git init -q && git add . &&
git -c user.name=test -c user.email=test@localhost commit -q -m all`, dir)
	refused := func(version, want string, env ...string) {
		t.Helper()
		out, err := in(t, dir, env, `site/pkg/release.sh "$1" built`, version)
		must.Hold(t, err != nil && strings.Count(out, "\n") == 1 && strings.Contains(out, want),
			"version %q: %v: %q, want one line with %q", version, err, out, want)
		if _, err := os.Stat(filepath.Join(dir, "built", "release")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("version %q: there is a folder: %v", version, err)
		}
	}
	for _, version := range []string{
		"", "1", "0.1", "v0.1.0", "0.1.0-rc1", "0.1.0~rc", "0.1.0~rc01", "0.1.0~git1", "00.1.0", "0.1.0.1", "0.1.0 ",
	} {
		refused(version, "that is no version: make release VERSION=X.Y.Z, or X.Y.Z~rcN")
	}
	refused("0.1.0", "cannot read the key /nowhere", "RELEASE_KEY=/nowhere")
	refused("0.1.0", "there is no pdp11-gcc", "ARCHES=pdp11")
	mustIn(t, dir, nil, "touch more")
	refused("0.1.0~rc1", "cannot release 0.1.0~rc1: this checkout has changes")
}

// TestRelease checks a whole release: two builds in two folders, the second with a cache of its own, have the same
// bytes; a stranger can verify them and notices a changed file; fresh roots of Debian 12 and 13 install them and run
// jobs; the tar of the source builds without network; the user's tar has a static program.
func TestRelease(t *testing.T) {
	built := os.Getenv("RELEASE")
	if built == "" {
		t.Skip("RELEASE is not set: run make test-release")
	}
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	mustIn(t, dir, nil, `ssh-keygen -q -t ed25519 -N '' -C '' -f "$1"`, key)
	mustIn(t, ".", nil, `git clone -q --local "$(git rev-parse --show-toplevel)" "$1/a" &&
git clone -q --local "$1/a" "$1/a-longer-name"`, dir)
	var made []string
	for _, b := range []struct{ place, version, arches, cache string }{
		{"a", "0.1.0", "amd64 arm64", ""},
		{"a", "0.1.0~rc1", runtime.GOARCH, ""}, // only for the roots
		{"a-longer-name", "0.1.0", "amd64 arm64", "GOCACHE=" + filepath.Join(dir, "cache")},
	} {
		began := time.Now()
		out := mustIn(t, filepath.Join(dir, b.place), strings.Fields(b.cache), `make release VERSION="$1" ARCHES="$2" RELEASE_KEY="$3" &&
mv .build/release "$4"`, b.version, b.arches, key, filepath.Join(dir, fmt.Sprint(len(made))))
		t.Logf("%s in %s, after %s:\n%s", b.version, b.place, time.Since(began).Round(time.Second), out)
		made = append(made, filepath.Join(dir, fmt.Sprint(len(made))))
	}
	older := made[1]
	made = slices.Delete(made, 1, 2)
	sums := mustIn(t, made[0], nil, "sha256sum *")
	if other := mustIn(t, made[1], nil, "sha256sum *"); sums != other || strings.Count(sums, "\n") < 10 {
		t.Errorf("two builds differ:\n%s%s", sums, other)
	}
	stranger := verifies(t, made[0], key)
	for _, suite := range []string{"bookworm", "trixie"} {
		t.Log(mustIn(t, ".", nil, `timeout 1200 ./walk.sh "$@"`, built, suite, stranger, older))
	}
	const name = "slurm-mps-0.1.0"
	commit := mustIn(t, filepath.Join(dir, "a"), nil, "git rev-parse HEAD | tr -d '\\n'")
	version := "slurm-mps 0.1.0+" + commit[:12] + " (go"
	provenance := mustIn(t, made[0], nil, "cat "+name+".provenance.json")
	if !strings.Contains(provenance, commit) || !strings.Contains(provenance, "pkg:golang/github.com/hashicorp/hcl/v2@") {
		t.Errorf("provenance without the commit %s or without a module: %s", commit, provenance)
	}
	inventory(t, filepath.Join(made[0], name+".cdx.json"))
	filled(t, made[0], name)

	mustIn(t, dir, nil, "mkdir source user && tar -xzf "+filepath.Join(made[0], name+".tar.gz")+" -C source && tar -xzf "+
		filepath.Join(made[0], name+"-user-amd64.tar.gz")+" -C user")
	none := "GOMODCACHE=" + filepath.Join(dir, "none")
	alone := []string{"GOFLAGS=-mod=vendor", "GOPROXY=off", "GOTOOLCHAIN=local", none}
	source := filepath.Join(dir, "source", name)
	mustIn(t, source, alone, "unshare -n make parts && unshare -n go test -vet=off ./policy/plan")
	for _, program := range []string{source + "/.build/package/bin/mpsctl", "user/" + name + "-user-amd64/mpirun-wrap"} {
		if out := mustIn(t, dir, nil, program+" --version"); !strings.HasPrefix(out, version) {
			t.Errorf("%s prints %q, want %q", program, out, version)
		}
	}
	out := mustIn(t, dir, nil, "readelf -l user/*/mpirun-wrap")
	must.Hold(t, strings.Contains(out, "LOAD") && !strings.Contains(out, "INTERP"), "mpirun-wrap is not static: %s", out)
}

// verifies checks the commands of docs/RELEASES.md by which a stranger verifies files, on these and on changed ones. It
// returns a stranger's folder with the unchanged files.
func verifies(t *testing.T, made, key string) (stranger string) {
	t.Helper()
	dir, stranger := t.TempDir(), t.TempDir()
	mustIn(t, dir, nil, `cp "$1"/* . && printf 'slurm-mps %s\n' "$(cat "$2.pub")" >release-signers`, made, key)
	page, err := os.ReadFile("../../docs/RELEASES.md")
	_, page, _ = bytes.Cut(page, []byte("```sh\n"))
	lines := strings.Split(string(page), "\n")
	if err != nil || len(lines) < 3 || !strings.HasPrefix(lines[2], "make release ") { // this one is done
		t.Fatalf("docs/RELEASES.md has the commands %q, %v", lines, err)
	}
	signature, sums := lines[0], lines[1]
	mustIn(t, dir, nil, signature+" && "+sums+` && cp * "$1/"`, stranger)
	mustIn(t, dir, nil, `for file in slurm-mps_*_amd64.deb; do printf x >>"$file"; done; rm slurm-mps_*_arm64.deb`)
	if out, err := in(t, dir, nil, sums); err == nil {
		t.Errorf("a changed package has its sum: %s", out)
	}
	mustIn(t, dir, nil, "sha256sum slurm-mps_*.deb >SHA256SUMS && "+sums)
	if out, err := in(t, dir, nil, signature); err == nil {
		t.Errorf("changed sums have their signature: %s", out)
	}
	return stranger
}

// filled checks that a release's recipes have its version and the sum of its source, and nothing left to fill in.
func filled(t *testing.T, made, name string) {
	t.Helper()
	dir := t.TempDir()
	mustIn(t, dir, nil, `tar -xzf "$1" --strip-components 1`, filepath.Join(made, name+"-recipes.tar.gz"))
	if out, err := in(t, dir, nil, `grep -rE '@[A-Z0-9]+@' .`); err == nil {
		t.Errorf("not filled in: %s", out)
	}
	const address = "https://github.com/slurm-mps/slurm-mps/releases/download/v0.1.0-rc1"
	sum, _, _ := strings.Cut(mustIn(t, made, nil, `sha256sum "$1"`, name+".tar.gz"), " ")
	for _, path := range []string{"spack/spack_repo/slurm_mps/packages/slurm_mps/package.py", "easybuild/slurm-mps-0.1.0rc1.eb", "conda/meta.yaml"} {
		text := readFile(t, filepath.Join(dir, path))
		for _, want := range []string{sum, address, name + ".tar.gz", `0.1.0rc1`} {
			must.Hold(t, strings.Contains(text, want), "%s lacks %s", path, want)
		}
	}
}

// listedModule is a component of an SBOM.
type listedModule struct{ Name, Version string }

// inventory checks that the SBOM names this version and the modules that the programs link.
func inventory(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	var bom struct {
		BOMFormat string
		Metadata  struct {
			Component struct{ Name, Version string }
		}
		Components []listedModule
	}
	must.OK(t, errors.Join(err, json.NewDecoder(bytes.NewReader(content)).Decode(&bom)))
	ours := listedModule{"github.com/slurm-mps/slurm-mps", "v0.1.0"}
	must.Hold(t, bom.BOMFormat == "CycloneDX" && bom.Metadata.Component == ours,
		"the SBOM is of %+v, %s", bom.Metadata.Component, bom.BOMFormat)
	for _, name := range []string{"github.com/NVIDIA/go-nvml", "github.com/hashicorp/hcl/v2", "golang.org/x/sys", "std"} {
		if !slices.ContainsFunc(bom.Components, func(m listedModule) bool { return m.Name == name && m.Version != "" }) {
			t.Errorf("the SBOM lacks %s: %+v", name, bom.Components)
		}
	}
}
