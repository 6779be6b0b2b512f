// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// packages are the Debian packages that a lab needs. Each has a file that no other package contains. install.sh
// installs the same packages; a test compares the two lists.
var packages = []struct{ name, file string }{
	{"slurm-wlm", "/usr/sbin/slurmctld"},
	{"munge", "/usr/sbin/munged"},
	{"openmpi-bin", "/usr/bin/mpirun.openmpi"},
	{"libopenmpi-dev", "/usr/lib/*/openmpi/include/mpi.h"},
	{"mpich", "/usr/bin/mpiexec.hydra"},
	{"libmpich-dev", "/usr/include/*/mpich/mpi.h"},
	{"libpmix-dev", "/usr/lib/*/pmix2/lib/libpmix.so"},
	{"libslurm-dev", "/usr/include/slurm/spank.h"},
	{"gcc", "/usr/bin/gcc"},
	{"libc6-dev", "/usr/include/stdio.h"},
	{"make", "/usr/bin/make"},
	{"xz-utils", "/usr/bin/xz"},
	{"patchelf", "/usr/bin/patchelf"},
	{"parallel", "/usr/bin/parallel"},
}

// Missing returns the Debian packages that a lab needs and that are not installed, in install.sh's order.
func Missing() []string {
	var names []string
	for _, p := range packages {
		if !present(p.file) {
			names = append(names, p.name)
		}
	}
	return names
}

func present(pattern string) bool {
	found, err := filepath.Glob(pattern)
	return err == nil && len(found) > 0
}

// Unfit returns why no lab can run here, in one sentence that also tells the user what to do, or nil. It checks the
// Debian packages, so it is not for a lab that runs from a bundle.
func Unfit() error {
	if os.Geteuid() != 0 {
		return errors.New("a lab starts Slurm's daemons and needs root; run the tests as root")
	}
	if missing := Missing(); len(missing) > 0 {
		return fmt.Errorf("a lab needs the Debian packages %s; site/lab/install.sh installs them", strings.Join(missing, ", "))
	}
	return nil
}
