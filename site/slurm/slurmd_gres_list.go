// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// prefix is the beginning of each line of slurmd -G: "slurmd: ", or a time since 26.05 (run: 22.05, 24.11 and 26.05).
var prefix = regexp.MustCompile(`^(slurmd: |\[[^]]*\] )`)

// filesOf returns File= of a line of slurmd -G, without its prefix. It reports whether the line is about GPUs.
func filesOf(line string) (files string, about bool) {
	rest, about := strings.CutPrefix(line, "Gres Name=gpu ")
	if !about {
		return "", false
	}
	for word := range strings.FieldsSeq(rest) {
		if value, is := strings.CutPrefix(word, "File="); is {
			files = value
		}
	}
	return files, true
}

// ParseGresList parses the output of slurmd -G: the minor numbers of the node's GPUs, in the order of Slurm's
// positions. It returns nil if no line is about GPUs: slurmd has none, or prints them in a form that is not known. If
// slurmd failed, the error contains its messages. The files of a MIG instance are an error, too.
func ParseGresList(printed string) (list []int, err error) {
	var complaints []string
	for _, line := range strings.Split(printed, "\n") {
		line = line[len(prefix.FindString(line)):]
		if why, is := strings.CutPrefix(line, "error: "); is {
			complaints = append(complaints, why)
		}
		if why, is := strings.CutPrefix(line, "fatal: "); is {
			return nil, errors.New(strings.Join(append(complaints, why), "; "))
		}
		named, about := filesOf(line)
		if about && list == nil {
			list = []int{}
		}
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
