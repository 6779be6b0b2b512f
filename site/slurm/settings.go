// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"strings"
)

// Setting is a value of one of Slurm's files, and where it stands.
type Setting struct {
	Value string
	From  string // file:line
}

// Settings are what one of Slurm's files says for the cluster, and for one node.
type Settings struct {
	Path   string
	values map[string][]Setting // by lower-case name, in the order of the file
}

// elsewhere begin lines whose values are about something else than the cluster: their names mean something else there.
var elsewhere = []string{"partitionname", "nodeset", "downnodes", "frontendname", "switchname", "entityname"}

// ReadSettings reads slurm.conf, or another file of its form, with what it includes. Of the lines that begin with
// NodeName= it takes those for all nodes and for this one.
func ReadSettings(path, node string) (Settings, error) {
	return readSettings(openFile, path, node)
}

func readSettings(opener open, path, node string) (Settings, error) {
	lines, err := readConf(opener, path)
	if err != nil {
		return Settings{}, err
	}
	s := Settings{Path: path, values: map[string][]Setting{}}
	for _, line := range lines {
		all, err := pairs(line)
		if err != nil {
			return Settings{}, err
		}
		ours, err := concerns(all[0], node)
		if err != nil {
			return Settings{}, fmt.Errorf("cannot read %s: %w", line, err)
		}
		if ours {
			s.add(all, line)
		}
	}
	return s, nil
}

// concerns reports whether a line that begins so is about the cluster or the node.
func concerns(first pair, node string) (bool, error) {
	name := strings.ToLower(first.name)
	for _, other := range elsewhere {
		if name == other {
			return false, nil
		}
	}
	if name != "nodename" || strings.EqualFold(first.value, "DEFAULT") {
		return true, nil
	}
	return hasHost(first.value, node)
}

func (s *Settings) add(all []pair, line confLine) {
	for _, p := range all {
		name := strings.ToLower(p.name)
		s.values[name] = append(s.values[name], Setting{p.value, line.String()})
	}
}

// All are the values of a name in the order of the file: Prolog= may be repeated.
func (s Settings) All(name string) []Setting { return s.values[strings.ToLower(name)] }

// Last is the value that counts where a name may stand once; ok is false where it does not stand at all.
func (s Settings) Last(name string) (last Setting, ok bool) {
	all := s.All(name)
	if len(all) == 0 {
		return Setting{}, false
	}
	return all[len(all)-1], true
}
