// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"slices"
	"strings"
)

// ReadFeatures reads Features= of a node from the slurm.conf at path and its includes. The error wraps ErrNoNode if
// no line names the node. Changes by scontrol are in no file, and so are unknown here.
func ReadFeatures(path, node string) ([]string, error) {
	return readFeatures(openFile, path, node)
}

func readFeatures(opener open, path, node string) ([]string, error) {
	lines, err := readConf(opener, path)
	if err != nil {
		return nil, err
	}
	byDefault := ""
	for _, line := range lines {
		if !startsWithNode(line.text) {
			continue
		}
		all, err := pairs(line)
		if err != nil {
			return nil, err
		}
		features := featuresOf(all[1:], byDefault)
		if strings.EqualFold(all[0].value, "DEFAULT") {
			byDefault = features
			continue
		}
		ours, err := hasHost(all[0].value, node)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", line, err)
		}
		if ours {
			return splitFeatures(features), nil
		}
	}
	return nil, fmt.Errorf("cannot read features of node %s in %s: %w", node, path, ErrNoNode)
}

// featuresOf returns a line's features. Slurm knows the name with and without its s, and the shorter counts if a line
// has both.
func featuresOf(all []pair, otherwise string) string {
	for _, name := range []string{"feature", "features"} {
		if value, set := lastValue(all, name); set {
			return value
		}
	}
	return otherwise
}

func splitFeatures(list string) []string {
	return slices.DeleteFunc(strings.Split(list, ","), func(feature string) bool { return feature == "" })
}
