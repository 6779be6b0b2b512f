// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// namespace is namespace.yaml's part for the jobs of a node, for the plugin namespace/linux of 25.11 and later.
type namespace struct {
	Dirs []string // of which each job has its own
	Base string   // base_path
	From string   // where Dirs are set, "FILE:LINE", or the file
}

// readNamespace reads namespace.yaml for a node. It understands keys with plain values and lists in brackets, as
// Slurm's manual has them. Any other form of YAML is an error.
//
//	defaults:
//	  base_path: "/var/nvme/storage"
//	  dirs: "/tmp,/dev/shm"
//	node_confs:
//	  - nodes: "gpu[01-16]"
//	    dirs: ["/tmp", "/scratch"]
func readNamespace(path, node string) (namespace, error) {
	content, _, err := osfile.ReadAny(path)
	found := namespace{}
	if err == nil {
		found, err = parseNamespace(string(content), path, node)
	}
	if err != nil {
		return namespace{}, fmt.Errorf("cannot read namespaces: %w", err)
	}
	return found, nil
}

func parseNamespace(text, path, node string) (namespace, error) {
	found := namespace{Dirs: []string{"/tmp", "/dev/shm"}, From: path}
	applies := false // to the node: all of defaults, and the elements of node_confs that name it
	for n, line := range strings.Split(text, "\n") {
		line, where := strings.TrimRight(slurm.StripComment(line), " \t\r"), fmt.Sprintf("%s:%d", path, n+1)
		if line == "" || line == "---" {
			continue
		}
		key, value, ok := strings.Cut(strings.TrimLeft(line, " -"), ":")
		if !ok || strings.ContainsAny(value, "{}&*|>") {
			return found, fmt.Errorf("%s: %s is not a key with a plain value", where, slurm.Quote(line))
		}
		values, err := plainValues(value)
		if err != nil {
			return found, fmt.Errorf("%s: %w", where, err)
		}
		switch {
		case line[0] != ' ' && line[0] != '-': // a section
			applies = key == "defaults"
		case key == "nodes":
			nodes, err := slurm.ExpandHostlist(strings.Join(values, ","))
			if err != nil {
				return found, fmt.Errorf("%s: %w", where, err)
			}
			applies = slices.Contains(nodes, node)
		case !applies:
		case key == "dirs":
			found.Dirs, found.From = values, where
		case key == "dir_confs": // a list of elements with path
			found.Dirs, found.From = nil, where
		case key == "path":
			found.Dirs = append(found.Dirs, values...)
		case key == "base_path":
			found.Base = strings.Join(values, ",")
		}
	}
	return found, nil
}

// plainValues splits "a,b", "\"a,b\"" and ["a", "b"], but not within the brackets of a host list.
func plainValues(value string) (values []string, err error) {
	value = strings.TrimSpace(value)
	if strings.HasPrefix(value, "[") && strings.HasSuffix(value, "]") {
		value = value[1 : len(value)-1]
	}
	items, err := slurm.SplitHosts(value)
	for _, item := range items {
		if item = strings.Trim(item, ` "'`); item != "" {
			values = append(values, item)
		}
	}
	return values, err
}
