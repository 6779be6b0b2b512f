// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"fmt"
	"strings"
)

// ParseGresList parses the output of slurmd -G: the minor numbers of the node's GPUs, in the order of Slurm's
// positions. It returns nil if no line is about GPUs: slurmd has none, or prints them in a form that is not known. If
// slurmd failed, the error contains its messages. The files of a MIG instance are an error, too. A time precedes the
// lines since 26.05 (run: 22.05, 24.11 and 26.05).
//
//	slurmd: Gres Name=gpu Type=(null) Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Flags=HAS_FILE,ENV_NVML
//	[2026-11-21T05:26:29] Gres Name=gpu Type=h200 Count=2 ID=7696487 File=/dev/nvidia[0-1] Flags=HAS_FILE
func ParseGresList(printed string) (list []int, err error) {
	var complaints []string
	for line := range strings.SplitSeq(printed, "\n") {
		line = withoutPrefix(line)
		if why, ok := strings.CutPrefix(line, "error: "); ok {
			complaints = append(complaints, why)
		}
		if why, ok := strings.CutPrefix(line, "fatal: "); ok {
			return nil, errors.New(strings.Join(append(complaints, why), "; "))
		}
		entry, ok := strings.CutPrefix(line, "Gres Name=gpu ")
		if !ok {
			continue
		}
		if list == nil {
			list = []int{}
		}
		for word := range strings.FieldsSeq(entry) {
			files, ok := strings.CutPrefix(word, "File=")
			if !ok {
				continue
			}
			minors, err := deviceMinors(files)
			if err != nil {
				return nil, fmt.Errorf("cannot read slurmd's list: %w", err)
			}
			list = append(list, minors...)
		}
	}
	return list, nil
}

// withoutPrefix returns a line of slurmd without "slurmd: " or the time in brackets.
func withoutPrefix(line string) string {
	if strings.HasPrefix(line, "[") {
		_, line, _ = strings.Cut(line, "] ")
	}
	return strings.TrimPrefix(line, "slurmd: ")
}
