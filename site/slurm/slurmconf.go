// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"strings"
)

// ConfValue is a value in one of Slurm's files, with its position.
type ConfValue struct {
	Value string
	From  string // file:line
}

// ConfFile is the content of one of Slurm's files about the cluster and one node.
type ConfFile struct {
	Path   string
	values map[string][]ConfValue // by lower-case name, in the order of the file
}

// otherLines begin lines about something else than the cluster or a node. Their names have another meaning.
var otherLines = []string{"partitionname", "nodeset", "downnodes", "frontendname", "switchname", "entityname"}

// ReadConfFile reads slurm.conf, or another file of its form, with its includes. It skips lines with NodeName= of
// other nodes.
func ReadConfFile(path, node string) (ConfFile, error) {
	return readSettings(openFile, path, node)
}

func readSettings(opener open, path, node string) (ConfFile, error) {
	lines, err := readConf(opener, path)
	if err != nil {
		return ConfFile{}, err
	}
	s := ConfFile{Path: path, values: map[string][]ConfValue{}}
	for _, line := range lines {
		all, err := pairs(line)
		if err != nil {
			return ConfFile{}, err
		}
		ours, err := concerns(all[0], node)
		if err != nil {
			return ConfFile{}, fmt.Errorf("cannot read %s: %w", line, err)
		}
		if ours {
			s.add(all, line)
		}
	}
	return s, nil
}

// concerns reports whether a line with this first pair is about the cluster or the node.
func concerns(first pair, node string) (bool, error) {
	name := strings.ToLower(first.name)
	for _, other := range otherLines {
		if name == other {
			return false, nil
		}
	}
	if name != "nodename" || strings.EqualFold(first.value, "DEFAULT") {
		return true, nil
	}
	return hasHost(first.value, node)
}

func (s *ConfFile) add(all []pair, line confLine) {
	for _, p := range all {
		name := strings.ToLower(p.name)
		s.values[name] = append(s.values[name], ConfValue{p.value, line.String()})
	}
}

// Values returns the values of a name in the order of the file, because Prolog= may be repeated.
func (s ConfFile) Values(name string) []ConfValue { return s.values[strings.ToLower(name)] }

// Value returns the last value of a name, which is the effective one. ok is false if there is none.
func (s ConfFile) Value(name string) (last ConfValue, ok bool) {
	all := s.Values(name)
	if len(all) == 0 {
		return ConfValue{}, false
	}
	return all[len(all)-1], true
}
