// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// tree is the place where a Slurm is installed: the paths of the Debian packages, or the root of a bundle.
type tree struct {
	root    string // "" for the packages
	release string // of Slurm, "22.05"
}

// systemPath is the PATH of every process that the lab starts. The caller's PATH has no effect.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// newTree checks the Slurm below root and reads its release.
func newTree(ctx context.Context, root string) (tree, error) {
	t := tree{root: root}
	if root != "" && !filepath.IsAbs(root) {
		return tree{}, fmt.Errorf("Bundle is %q: it must be an absolute path", root)
	}
	for _, name := range []string{"munged", "slurmctld", "slurmd", "slurmstepd"} {
		if _, err := os.Stat(t.sbin(name)); err != nil {
			return tree{}, fmt.Errorf("cannot find Slurm: %w (install.sh beside this package installs it)", err)
		}
	}
	out, err := exec.CommandContext(ctx, t.sbin("slurmd"), "-V").Output()
	if err != nil {
		return tree{}, fmt.Errorf("cannot ask %s for its version: %w", t.sbin("slurmd"), err)
	}
	if t.release = parseRelease(string(out)); t.release == "" {
		return tree{}, fmt.Errorf("cannot read Slurm's version: %q is not like \"slurm 22.05.8\"", strings.TrimSpace(string(out)))
	}
	return t, nil
}

// parseRelease returns the release in the output of a command of Slurm with -V: "22.05" of "slurm-wlm 22.05.8", as
// Debian has it, and "24.11" of "slurm 24.11.5". It returns "" for another text.
func parseRelease(printed string) string {
	program, version, _ := strings.Cut(strings.TrimSpace(printed), " ")
	year, rest, _ := strings.Cut(version, ".")
	month, _, patched := strings.Cut(rest, ".")
	if _, err := slurm.Digits(year + month); err != nil || !patched || len(year) != 2 || len(month) != 2 || !strings.HasPrefix(program, "slurm") {
		return ""
	}
	return year + "." + month
}

// Release returns the release that a cluster of this bundle would have. An empty bundle means the Debian packages.
func Release(ctx context.Context, bundle string) (string, error) {
	t, err := newTree(ctx, bundle)
	return t.release, err
}

func (t tree) sbin(name string) string {
	if t.root == "" {
		return "/usr/sbin/" + name
	}
	return filepath.Join(t.root, "sbin", name)
}

func (t tree) path() string {
	if t.root == "" {
		return systemPath
	}
	return strings.Join([]string{t.root + "/bin", t.root + "/ompi/bin", t.root + "/mpich/bin", t.root + "/sbin", systemPath}, ":")
}

// env returns the environment that programs of the tree, and MPI programs that use its libraries, need to find their
// files.
func (t tree) env() []string {
	env := []string{"PATH=" + t.path()}
	if _, err := os.Stat(t.root + "/ompi"); t.root == "" || err != nil {
		return env // the MPIs are the machine's own, and they must not load another release's libraries
	}
	pmix := t.root + "/pmix2"
	return append(env,
		"LD_LIBRARY_PATH="+t.root+"/mpilib",
		"OPAL_PREFIX="+t.root+"/ompi",
		// Debian's PMIx has a full path for each of its folders built in. Its prefix alone changes none of these
		// paths.
		"PMIX_PREFIX="+pmix,
		"PMIX_LIBDIR="+pmix+"/lib",
		"PMIX_PKGLIBDIR="+pmix+"/lib/pmix",
		"PMIX_DATADIR="+pmix+"/share",
		"PMIX_PKGDATADIR="+pmix+"/share/pmix",
	)
}

// look searches for a program in the tree's PATH.
func (t tree) look(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range filepath.SplitList(t.path()) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && !info.IsDir() && info.Mode().Perm()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("cannot find %s in %s", name, t.path())
}

// HasPMIx reports whether the Slurm of a bundle has "srun --mpi=pmix". An empty bundle means the Debian packages.
// Debian's 26.05 has no such plugin.
func HasPMIx(bundle string) bool {
	pattern := "/usr/lib/*/slurm*/mpi_pmix.so"
	if bundle != "" {
		pattern = filepath.Join(bundle, "plugins", "mpi_pmix.so")
	}
	found, err := filepath.Glob(pattern)
	return err == nil && len(found) > 0
}

func hasRemoteShell() bool {
	for _, name := range []string{"ssh", "rsh"} {
		if _, err := (tree{}).look(name); err == nil {
			return true
		}
	}
	return false
}
