// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// confLine is a line of one of Slurm's files, without comments, continuations and escapes.
type confLine struct {
	file string
	line int // the first of the physical lines, from 1
	text string
}

func (l confLine) String() string { return fmt.Sprintf("%s:%d", l.file, l.line) }

// pair is one NAME=value of a line.
type pair struct{ name, value string }

const (
	confLineMax    = 1 << 20 // bytes in a physical line
	confLinesMax   = 1 << 20 // lines of a file with all that it includes
	confIncludeMax = 16      // nested includes
)

// open is the function by which readConf opens a file, such as os.Open.
type open func(path string) (io.ReadCloser, error)

// openFile is os.Open without the path in its error, because the caller names the file.
func openFile(path string) (io.ReadCloser, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	return file, nil
}

// readConf reads a file and its includes, in order.
func readConf(opener open, path string) ([]confLine, error) {
	return includeConf(opener, path, filepath.Dir(path), 0, nil)
}

// includeConf appends the lines of path to have. A relative include is in dir, the folder of the first file.
func includeConf(opener open, path, dir string, depth int, have []confLine) ([]confLine, error) {
	if depth > confIncludeMax {
		return nil, fmt.Errorf("cannot read %s: more than %d files include one another", path, confIncludeMax)
	}
	file, err := opener(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	defer file.Close()
	lines, err := confLines(file, path)
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		target, ok := includeTarget(line.text)
		if !ok {
			have = append(have, line)
			continue
		}
		target = strings.ReplaceAll(target, "%c", cmp.Or(clusterName(have), "%c"))
		if strings.Contains(target, "%") {
			return nil, fmt.Errorf("cannot read %s: include of %q is not understood: write the path out", line, target)
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		if have, err = includeConf(opener, target, dir, depth+1, have); err != nil {
			return nil, err
		}
		if len(have) > confLinesMax {
			return nil, fmt.Errorf("cannot read %s: more than %d lines", line, confLinesMax)
		}
	}
	return have, nil
}

// clusterName is what Slurm puts in place of %c in an include: ClusterName= of a line before, in small letters (recorded
// with 22.05.8). It is "" without such a line, as in gres.conf, where Slurm refuses %c.
func clusterName(have []confLine) string {
	for _, line := range have {
		if name, value, _ := strings.Cut(strings.TrimSpace(line.text), "="); strings.EqualFold(name, "ClusterName") {
			return strings.ToLower(strings.Trim(strings.TrimSpace(value), `"`))
		}
	}
	return ""
}

// confLines splits a file into logical lines and skips empty ones. The order of the steps is Slurm's. A comment ends
// a physical line even within quotes, then a final backslash joins the next line, then escapes are resolved.
func confLines(r io.Reader, name string) ([]confLine, error) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, confLineMax)
	var lines []confLine
	var joined strings.Builder
	first := 0
	end := func() {
		text := stripEscapes(joined.String())
		if strings.TrimSpace(text) != "" {
			lines = append(lines, confLine{name, first, text})
		}
		joined.Reset()
		first = 0
	}
	for number := 1; scanner.Scan(); number++ {
		if first == 0 {
			first = number
		}
		text, more := stripContinuation(StripComment(scanner.Text()))
		if strings.ContainsRune(text, 0) {
			return nil, fmt.Errorf("cannot read %s:%d: a NUL byte: this is not a text file", name, number)
		}
		joined.WriteString(text)
		if joined.Len() > confLineMax {
			return nil, fmt.Errorf("cannot read %s:%d: a line of more than %d bytes", name, first, confLineMax)
		}
		if !more {
			end()
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	end()
	return lines, nil
}

// StripComment cuts at the first "#" that does not follow an odd number of backslashes.
func StripComment(line string) string {
	escaped := false
	for i := 0; i < len(line); i++ {
		switch {
		case line[i] == '#' && !escaped:
			return line[:i]
		case line[i] == '\\':
			escaped = !escaped
		default:
			escaped = false
		}
	}
	return line
}

// stripContinuation reports whether the line continues: it ends with an odd number of backslashes, perhaps with
// spaces after them.
func stripContinuation(line string) (string, bool) {
	text := strings.TrimRight(line, " \t\r\v\f")
	head := strings.TrimRight(text, `\`)
	if (len(text)-len(head))%2 == 0 {
		return line, false
	}
	return text[:len(text)-1], true
}

// stripEscapes removes each backslash and keeps the character after it.
func stripEscapes(line string) string {
	if !strings.Contains(line, `\`) {
		return line
	}
	var out strings.Builder
	for i := 0; i < len(line); i++ {
		if line[i] == '\\' {
			if i++; i == len(line) {
				break
			}
		}
		out.WriteByte(line[i])
	}
	return out.String()
}

func includeTarget(line string) (string, bool) {
	fields := strings.Fields(line)
	if len(fields) < 2 || !strings.EqualFold(fields[0], "include") {
		return "", false
	}
	return fields[1], true
}

const space = "\t\n\f\r "

// keyValue takes NAME=value from the front of a text, by Slurm's own pattern (keyvalue_pattern in parse_config.c). It
// uses no regexp, because every rank links this package and would pay for compiling it.
//
//	^\s*([[:alnum:]_.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))(?:\s|$)
func keyValue(text string) (p pair, rest string, ok bool) {
	text = strings.TrimLeft(text, space)
	end := strings.IndexFunc(text, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_' || r == '.')
	})
	if end <= 0 {
		return pair{}, "", false
	}
	name, text := text[:end], strings.TrimLeft(text[end:], space)
	if text != "" && strings.Contains("-*+/", text[:1]) {
		text = text[1:]
	}
	text, assigned := strings.CutPrefix(text, "=")
	text = strings.TrimLeft(text, space)
	if !assigned || text == "" {
		return pair{}, "", false
	}
	if quoted, opened := strings.CutPrefix(text, `"`); opened {
		value, rest, closed := strings.Cut(quoted, `"`)
		if closed && (rest == "" || strings.Contains(space, rest[:1])) {
			return pair{name, value}, rest, true
		}
	}
	if end = strings.IndexAny(text, space); end < 0 {
		end = len(text)
	}
	return pair{name, text[:end]}, text[end:], true
}

// pairs parses a line into NAME=value pairs. Other text is an error, as it is for slurmd.
func pairs(line confLine) ([]pair, error) {
	var found []pair
	rest := line.text
	for strings.TrimSpace(rest) != "" {
		p, after, ok := keyValue(rest)
		if !ok {
			return nil, fmt.Errorf("cannot read %s: %s is not NAME=value", line, Quote(strings.TrimSpace(rest)))
		}
		found, rest = append(found, p), after
	}
	return found, nil
}

// ConfValue is a value in one of Slurm's files, with its position.
type ConfValue struct {
	Value string
	From  string // file:line
}

// ConfFile is the content of one of Slurm's files about the cluster and one node.
type ConfFile struct {
	Path       string
	Partitions []string               // their names
	values     map[string][]ConfValue // by lower-case name, in the order of the file
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
		if strings.EqualFold(all[0].name, "PartitionName") && !strings.EqualFold(all[0].value, "DEFAULT") {
			s.Partitions = append(s.Partitions, strings.Split(all[0].value, ",")...)
		}
		ours, err := concerns(all[0], node)
		if err != nil {
			return ConfFile{}, fmt.Errorf("cannot read %s: %w", line, err)
		}
		for i := 0; ours && i < len(all); i++ {
			name := strings.ToLower(all[i].name)
			s.values[name] = append(s.values[name], ConfValue{all[i].value, line.String()})
		}
	}
	return s, nil
}

// concerns reports whether a line with this first pair is about the cluster or the node.
func concerns(first pair, node string) (bool, error) {
	name := strings.ToLower(first.name)
	if slices.Contains(otherLines, name) {
		return false, nil
	}
	if name != "nodename" || strings.EqualFold(first.value, "DEFAULT") {
		return true, nil
	}
	return hasHost(first.value, node)
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
