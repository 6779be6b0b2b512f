// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNoNode means that slurm.conf has no line for the node: it is a dynamic node, which registers itself.
var ErrNoNode = errors.New("no NodeName= line names it")

// ReadNode reads Gres= of a node from the slurm.conf at path and its includes. It returns the node's GPUs and the
// names of its other GRES, such as shard. A node without GPUs has an empty list, not nil. The error wraps ErrNoNode
// if no line names the node.
func ReadNode(path, node string) (gpus []ConfiguredGres, others []string, err error) {
	return readNode(openFile, path, node)
}

func readNode(opener open, path, node string) (gpus []ConfiguredGres, others []string, err error) {
	lines, err := readConf(opener, path)
	if err != nil {
		return nil, nil, err
	}
	file := nodeFile{node: node}
	for _, line := range lines {
		if !startsWithNode(line.text) {
			continue // the other lines of slurm.conf are not checked
		}
		if err := file.add(line); err != nil {
			return nil, nil, err
		}
	}
	if file.want == nil {
		return nil, nil, fmt.Errorf("cannot read GPUs of node %s in %s: %w", node, path, ErrNoNode)
	}
	return file.want, file.others, nil
}

// nodeFile collects values from the NodeName= lines of a slurm.conf.
type nodeFile struct {
	node      string
	byDefault string           // Gres= of the last NodeName=DEFAULT above
	want      []ConfiguredGres // nil until a line names the node
	others    []string
}

func (f *nodeFile) add(line confLine) error {
	all, err := pairs(line)
	if err != nil {
		return err
	}
	gres, set := lastValue(all[1:], "gres")
	if strings.EqualFold(all[0].value, "DEFAULT") {
		if set {
			f.byDefault = gres
		}
		return nil
	}
	ours, err := hasHost(all[0].value, f.node)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", line, err)
	}
	if !ours {
		return nil
	}
	if f.want != nil {
		return fmt.Errorf("cannot read %s: an earlier line names node %s too: keep one", line, f.node)
	}
	if !set {
		gres = f.byDefault
	}
	if f.want, f.others, err = parseWant(gres); err != nil {
		return fmt.Errorf("cannot read %s: %w", line, err)
	}
	return nil
}

// lastValue returns the last value of a lower-case name, which counts in Slurm.
func lastValue(all []pair, name string) (value string, ok bool) {
	for _, p := range all {
		if strings.ToLower(p.name) == name {
			value, ok = p.value, true
		}
	}
	return value, ok
}

func startsWithNode(line string) bool {
	first, _, ok := keyValue(line)
	return ok && strings.EqualFold(first.name, "NodeName")
}

// parseWant parses Gres= of slurm.conf, "gpu:a100:4(S:0-1),mps:400". It returns the GPUs, with the sum for each type,
// and the names of the other GRES.
func parseWant(list string) (gpus []ConfiguredGres, others []string, err error) {
	gpus = []ConfiguredGres{}
	for _, item := range strings.Split(dropParens(list), ",") {
		words := strings.Split(strings.TrimSpace(item), ":")
		if words[0] != "gpu" {
			if words[0] != "" {
				others = append(others, words[0])
			}
			continue
		}
		w, err := parseItem(words[1:])
		if err != nil {
			return nil, nil, fmt.Errorf("Gres=%s: %s: %w", list, item, err)
		}
		gpus = addWant(gpus, w)
	}
	return gpus, others, nil
}

// parseItem parses the text after "gpu:", [type:][no_consume:]count. A missing count is 1.
func parseItem(words []string) (ConfiguredGres, error) {
	w := ConfiguredGres{Count: 1}
	if n := len(words); n > 0 {
		if count, err := parseDigits(words[n-1]); err == nil {
			if count > positionsMax {
				return ConfiguredGres{}, fmt.Errorf("more than %d GPUs", positionsMax)
			}
			w.Count, words = int(count), words[:n-1]
		}
	}
	for _, word := range words {
		switch {
		case word == "no_consume":
		case w.Type == "" && word != "":
			w.Type = word
		default:
			return ConfiguredGres{}, errors.New("want gpu[:type][:count]")
		}
	}
	return w, nil
}

func addWant(want []ConfiguredGres, w ConfiguredGres) []ConfiguredGres {
	for i := range want {
		if want[i].Type == w.Type {
			want[i].Count += w.Count
			return want
		}
	}
	return append(want, w)
}

// dropParens removes "(S:0-1)", which names sockets.
func dropParens(list string) string {
	var out strings.Builder
	depth := 0
	for _, r := range list {
		switch {
		case r == '(':
			depth++
		case r == ')' && depth > 0:
			depth--
		case depth == 0:
			out.WriteRune(r)
		}
	}
	return out.String()
}
