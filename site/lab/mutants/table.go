// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// groups are the clauses of docs/contract.md, and what else a fault can break.
var groups = strings.Fields(`exit R1 R2 R3 R4 R5 R6 R7 R8 R9 R10 R11 R12 R13 I1 I2 I3 D1 D2 D3 D4 D5
	K1 K2 K3 K4 K5 K6 K7 G1 G2 G3 S1 S2 S3 M1 M2 M3 U1 U2 U3 U4 T1 T2 security docs`)

// without are the clauses that have no fault, with the reason.
var without = map[string]string{
	"R10": "scripts of the packages: `make test-packages`",
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
	fmt.Fprintf(w, "%d faults\n\n| clause | faults | |\n|---|---|---|\n", len(faults))
	for _, group := range groups {
		names, reason := of[group], without[group]
		if delete(of, group); len(names) == 0 && reason == "" {
			const sentence = "no fault breaks %s: add one to site/lab/mutants/faults, or its reason to table.go"
			return fmt.Errorf(sentence, group)
		}
		slices.Sort(names)
		fmt.Fprintf(w, "| %s | %d | %s |\n", group, len(names), cmp.Or(strings.Join(names, ", "), reason))
	}
	for promise, names := range of {
		return fmt.Errorf("%s breaks %q, which is no clause", names[0], promise)
	}
	return nil
}
