// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"fmt"
	"strings"
)

// filesOf returns File= of a line of slurmd -G about GPUs. The lines have the same form from 22.05 to 24.11.
func filesOf(line string) (files string) {
	rest, _ := strings.CutPrefix(line, "slurmd: Gres Name=gpu ")
	for word := range strings.FieldsSeq(rest) {
		if value, is := strings.CutPrefix(word, "File="); is && rest != line {
			files = value
		}
	}
	return files
}

// ParseGresList parses the output of slurmd -G: the minor numbers of the node's GPUs, in the order of Slurm's
// positions. It returns an empty list if there are none. If slurmd failed, the error contains its messages. A line
// without File=, or with the files of a MIG instance, is an error, too.
func ParseGresList(printed string) ([]int, error) {
	list := []int{}
	var complaints []string
	for _, line := range strings.Split(printed, "\n") {
		if _, why, is := strings.Cut(line, "slurmd: error: "); is {
			complaints = append(complaints, why)
		}
		if _, why, is := strings.Cut(line, "slurmd: fatal: "); is {
			return nil, errors.New(strings.Join(append(complaints, why), "; "))
		}
		named := filesOf(line)
		if named == "" {
			continue
		}
		files, err := ExpandHostlist(named)
		if err != nil {
			return nil, fmt.Errorf("cannot read slurmd's list: %w", err)
		}
		for _, file := range files {
			minor, err := DeviceMinor(file)
			if err != nil {
				return nil, fmt.Errorf("cannot read slurmd's list: %w", err)
			}
			list = append(list, minor)
		}
	}
	return list, nil
}
