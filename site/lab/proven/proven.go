// SPDX-License-Identifier: Apache-2.0

// Package proven is the file site/doctor/known.json as a whole: the drivers on which slurm-mps was proven, and the
// releases with the fixes of known vulnerabilities. Doctor reads some of its fields.
package proven

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// Driver is one trial of a driver: a row of the table, and the line that site-check prints.
type Driver struct {
	Driver string `json:"driver"`
	GPU    string `json:"gpu"`    // its name as NVML reports it
	Commit string `json:"commit"` // of slurm-mps; "" if it was not recorded
	Date   string `json:"date"`
	Mode   string `json:"mode"` // the GPUs' compute mode
	Ran    string `json:"ran"`  // what was run
	Data   string `json:"data"` // the section of docs/measurements.md, or the address of the issue
}

// Patched is the first release that has the fixes, of a branch or, if branches ended before, of a later one.
type Patched struct {
	What     string `json:"what"`     // driver or Slurm
	Branches string `json:"branches"` // divided by blanks
	First    string `json:"first"`
	Source   string `json:"source"`
}

// Own reports whether the release is of the branch itself.
func (p Patched) Own() bool { return strings.HasPrefix(p.First, p.Branches+".") }

// File is known.json.
type File struct {
	Date    string    `json:"date"` // of the last change
	Source  string    `json:"source"`
	Proven  []Driver  `json:"proven"`
	Patched []Patched `json:"patched"`
}

// Read reads known.json. An unknown field is an error.
func Read(path string) (f File, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return f, err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		return f, fmt.Errorf("cannot read %s: %w", path, err)
	}
	return f, nil
}

// Table returns the section of docs/measurements.md.
func (f File) Table() string {
	var b strings.Builder
	b.WriteString("| driver | GPU | compute mode | what was run | commit | data |\n|---|---|---|---|---|---|\n")
	for _, d := range f.Proven {
		data := fmt.Sprintf("[%s](#%[1]s)", d.Data)
		if strings.HasPrefix(d.Data, "https://") {
			data = "<" + d.Data + ">"
		}
		fmt.Fprintf(&b, "| %s | %s | `%s` | %s | %s | %s, %s |\n",
			d.Driver, d.GPU, d.Mode, d.Ran, cmp.Or(d.Commit, "not recorded"), data, d.Date)
	}
	b.WriteString("\n`mpsctl doctor` warns below the first release of a branch with the fixes of known vulnerabilities")
	sign := ": "
	for _, p := range f.Patched {
		if p.Own() { // older branches have no such release
			fmt.Fprintf(&b, "%s%s %s", sign, p.What, p.First)
			sign = ", "
		}
	}
	fmt.Fprintf(&b, " (as of %s).\n", f.Date)
	return b.String()
}
