// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNoNode means that slurm.conf has no line for the node: it is a dynamic node, which registers itself.
var ErrNoNode = errors.New("no NodeName= line names it")

// Node is a node's line in slurm.conf. Changes by scontrol are in no file, and so are unknown here.
type Node struct {
	GPUs     []configuredGres // an empty list without GPUs, not nil
	Others   []string         // names of the node's other GRES, such as shard
	Units    map[string]int   // counts of Others, with the sum of all types
	Features []string
}

// ReadNode reads a node's line from the slurm.conf at path and its includes. The other lines are not checked. The
// error wraps ErrNoNode if no line names the node.
//
//	NodeName=DEFAULT Feature=slow CPUs=64
//	NodeName=gpu[01-16] Gres=gpu:a100:4(S:0-1),shard:16 Feature=mps,fast
func ReadNode(path, name string) (Node, error) { return readNode(openFile, path, name) }

func readNode(opener open, path, name string) (Node, error) {
	lines, err := readConf(opener, path)
	if err != nil {
		return Node{}, err
	}
	var node *Node
	gres, features := "", "" // of the last NodeName=DEFAULT above
	for _, line := range lines {
		if first, _, ok := keyValue(line.text); !ok || !strings.EqualFold(first.name, "NodeName") {
			continue
		}
		all, err := pairs(line)
		if err != nil {
			return Node{}, err
		}
		gresHere := lastValue(all, "gres", gres)
		// Slurm knows the name with and without its s, and the shorter counts if a line has both.
		featuresHere := lastValue(all, "feature", lastValue(all, "features", features))
		if strings.EqualFold(all[0].value, "DEFAULT") {
			gres, features = gresHere, featuresHere
			continue
		}
		ours, err := hasHost(all[0].value, name)
		if ours && node != nil {
			return Node{}, fmt.Errorf("cannot read %s: an earlier line names node %s too: keep one", line, name)
		}
		if ours && err == nil {
			node, err = newNode(gresHere, featuresHere)
		}
		if err != nil {
			return Node{}, fmt.Errorf("cannot read %s: %w", line, err)
		}
	}
	if node == nil {
		return Node{}, fmt.Errorf("cannot read node %s in %s: %w", name, path, ErrNoNode)
	}
	return *node, nil
}

// ParseNode reads what slurmd -Z --conf registers of a node, "Gres=gpu:4 Feature=mps".
func ParseNode(conf string) (Node, error) {
	all, err := pairs(confLine{file: "--conf", text: conf})
	if err != nil {
		return Node{}, err
	}
	node, err := newNode(lastValue(all, "gres", ""), lastValue(all, "feature", lastValue(all, "features", "")))
	return *node, err
}

func newNode(gres, features string) (node *Node, err error) {
	node = &Node{Features: strings.FieldsFunc(features, func(r rune) bool { return r == ',' })}
	node.GPUs, node.Others, node.Units, err = parseNodeGres(gres)
	return node, err
}

// lastValue returns the last value of a lower-case name, which counts in Slurm, or otherwise if there is none.
func lastValue(all []pair, name, otherwise string) string {
	for _, p := range all {
		if strings.ToLower(p.name) == name {
			otherwise = p.value
		}
	}
	return otherwise
}

// parseNodeGres parses Gres= of slurm.conf, "gpu:a100:4(S:0-1),mps:400". It returns the GPUs, with the sum for each
// type, and the names and counts of the other GRES.
func parseNodeGres(list string) (gpus []configuredGres, others []string, units map[string]int, err error) {
	gpus, units = []configuredGres{}, map[string]int{}
	for item := range strings.SplitSeq(dropParens(list), ",") {
		words := strings.Split(strings.TrimSpace(item), ":")
		if words[0] != "gpu" {
			if words[0] != "" {
				others = append(others, words[0])
				units[words[0]] += nodeUnits(words[1:])
			}
			continue
		}
		g, err := parseGPUs(words[1:])
		if err != nil {
			return nil, nil, nil, fmt.Errorf("Gres=%s: %s: %w", list, item, err)
		}
		i := slices.IndexFunc(gpus, func(other configuredGres) bool { return other.Type == g.Type })
		if i < 0 {
			gpus = append(gpus, g)
		} else {
			gpus[i].Count += g.Count
		}
	}
	return gpus, others, units, nil
}

// parseGPUs parses the text after "gpu:", [type:][no_consume:]count. A missing count is 1.
func parseGPUs(words []string) (configuredGres, error) {
	g := configuredGres{Count: 1}
	if n := len(words); n > 0 {
		if count, err := Digits(words[n-1]); err == nil {
			if count > positionsMax {
				return configuredGres{}, fmt.Errorf("more than %d GPUs", positionsMax)
			}
			g.Count, words = int(count), words[:n-1]
		}
	}
	for _, word := range words {
		switch {
		case word == "no_consume":
		case g.Type == "" && word != "":
			g.Type = word
		default:
			return configuredGres{}, errors.New("want gpu[:type][:count]")
		}
	}
	return g, nil
}

// dropParens removes "(S:0-1)", which names sockets.
func dropParens(list string) string {
	depth := 0
	return strings.Map(func(r rune) rune {
		switch {
		case r == '(':
			depth++
		case r == ')' && depth > 0:
			depth--
		case depth == 0:
			return r
		}
		return -1
	}, list)
}
