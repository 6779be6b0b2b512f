// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPackagesAgree checks that install.sh installs the packages that Missing checks, in the same order.
func TestPackagesAgree(t *testing.T) {
	m := regexp.MustCompile(`(?m)^packages='([^']*)'`).FindStringSubmatch(readFile(t, "install.sh"))
	if m == nil {
		t.Fatal("install.sh has no list of packages")
	}
	var names []string
	for _, p := range packages {
		names = append(names, p.name)
	}
	if !slices.Equal(strings.Fields(m[1]), names) {
		t.Errorf("install.sh installs %q, the lab wants %q", m[1], names)
	}
}
