// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/words"
)

// unified returns the difference of two texts as diff -u prints it, "" if there is none.
func unified(oldName, old, newName, updated string) (text string) {
	const context = 3
	all := edits(lines(old), lines(updated))
	shown := make([]bool, len(all)+1)
	for i, line := range all {
		for k := max(i-context, 0); line[0] != ' ' && k <= min(i+context, len(all)-1); k++ {
			shown[k] = true
		}
	}
	oldLine, newLine := 1, 1
	for i := 0; i < len(all); {
		hunk, oldLines, newLines := "", 0, 0
		for visible := shown[i]; i < len(all) && shown[i] == visible; i++ {
			hunk += words.Printable(strings.ReplaceAll(all[i], "\t", "    ")) + "\n"
			oldLines += strings.Count(" -", all[i][:1])
			newLines += strings.Count(" +", all[i][:1])
		}
		if shown[i-1] {
			text += fmt.Sprintf("@@ -%d,%d +%d,%d @@\n%s", oldLine, oldLines, newLine, newLines, hunk)
		}
		oldLine, newLine = oldLine+oldLines, newLine+newLines
	}
	if text != "" {
		text = "--- " + oldName + "\n+++ " + newName + "\n" + text
	}
	return text
}

// maxCompared bounds the product of the lines of two texts. Longer texts have no common line here.
const maxCompared = 4 << 20

// edits returns the lines that two texts share (after ' '), and those that only the old ('-') or the new one ('+') has.
func edits(a, b []string) (all []string) {
	common := make([][]int, len(a)+1) // the number of common lines behind line i of a and line j of b
	for i := len(a); i >= 0 && len(a)*len(b) <= maxCompared; i-- {
		common[i] = make([]int, len(b)+1)
		for j := len(b) - 1; j >= 0 && i < len(a); j-- {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	i, j, compared := 0, 0, common[0] != nil
	for i < len(a) || j < len(b) {
		switch {
		case compared && i < len(a) && j < len(b) && a[i] == b[j]:
			all, i, j = append(all, " "+a[i]), i+1, j+1
		case i < len(a) && (!compared || j == len(b) || common[i+1][j] >= common[i][j+1]):
			all, i = append(all, "-"+a[i]), i+1
		default:
			all, j = append(all, "+"+b[j]), j+1
		}
	}
	return all
}

// lines returns the lines of a text. The last one may have no line break.
func lines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
