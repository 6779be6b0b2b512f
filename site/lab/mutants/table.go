// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// groups are the clauses of docs/contract.md, and what else a fault can break. The text says why a clause has no fault.
var groups = []struct{ name, none string }{
	{"exit", ""},
	{"R1", ""}, {"R2", ""}, {"R3", ""}, {"R4", ""}, {"R5", ""}, {"R6", ""}, {"R7", ""}, {"R8", ""}, {"R9", "`make sweep` kills at each effect"},
	{"R10", "scripts of the packages: `make test-packages`"}, {"R11", ""}, {"R12", ""}, {"R13", ""},
	{"I1", ""}, {"I2", ""}, {"I3", ""},
	{"D1", ""}, {"D2", ""}, {"D3", ""}, {"D4", ""}, {"D5", ""},
	{"K1", ""}, {"K2", ""}, {"K3", ""}, {"K4", ""}, {"K5", ""}, {"K6", ""}, {"K7", ""},
	{"G1", ""}, {"G2", ""}, {"G3", ""},
	{"M1", ""}, {"M2", ""}, {"M3", ""}, {"U1", ""}, {"U2", ""}, {"T1", ""}, {"T2", ""},
	{"security", ""}, {"docs", ""},
}

// printTable prints the faults of each clause. A fault of no clause is an error, and so is a clause without a fault,
// unless its reason is known.
func printTable(w io.Writer, faults []fault) error {
	of := map[string][]string{}
	for _, f := range faults {
		for _, promise := range strings.Fields(f.promise) {
			of[promise] = append(of[promise], "`"+f.name+"`")
		}
	}
	fmt.Fprintf(w, "# Planted faults\n\n%d faults of site/lab/mutants/faults.go, by the clause of [the contract](contract.md) that they break. ", len(faults))
	fmt.Fprint(w, "`make mutants` plants each of them, and fails if a test that is named for it passes.\n\n| clause | faults | |\n|---|---|---|\n")
	for _, g := range groups {
		names := of[g.name]
		if delete(of, g.name); len(names) == 0 && g.none == "" {
			return fmt.Errorf("no fault breaks %s: add one, or say in site/lab/mutants/table.go why there is none", g.name)
		}
		slices.Sort(names)
		text := strings.Join(names, ", ")
		if len(names) == 0 {
			text = g.none
		}
		fmt.Fprintf(w, "| %s | %d | %s |\n", g.name, len(names), text)
	}
	for promise, names := range of {
		return fmt.Errorf("%s breaks %q, which is no clause", names[0], promise)
	}
	return nil
}
