// SPDX-License-Identifier: Apache-2.0

// Command lint checks the source for rules that gofmt and go vet do not check. It needs no network and no program
// except git. make check runs it in the source's top folder, without arguments.
package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// columns is the length that a line of Go should not exceed. A tab counts as one column.
const columns = 120

// Many lines are longer, because they are older than this rule. allowed is the maximum number of such lines, and
// longest is the maximum length of a line. When you have shortened lines, reduce both. Never increase them.
const (
	allowed = 1800
	longest = 480
)

func main() {
	files, err := sources(".")
	if err != nil {
		fmt.Fprintf(os.Stderr, "lint: %v\n", err)
		os.Exit(1)
	}
	wrong, err := check(os.DirFS("."), files)
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	for _, line := range wrong {
		fmt.Fprintln(os.Stderr, line)
	}
	if len(wrong) > 0 {
		os.Exit(1)
	}
}

// sources returns the files of a source tree that git tracks or that "git add" would add, except test data.
func sources(top string) (files []string, err error) {
	cmd := exec.Command("git", "-C", top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list files of %s: git ls-files: %w", top, err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if !slices.Contains(strings.Split(name, "/"), "testdata") {
			files = append(files, name)
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// check returns what is wrong with the files, as lines "FILE:LINE: SENTENCE".
func check(tree fs.FS, files []string) (wrong []string, err error) {
	long, names := 0, newNames()
	for _, name := range files {
		if !licensed(name) {
			continue
		}
		content, err := fs.ReadFile(tree, name)
		if os.IsNotExist(err) { // the file is deleted, but git still lists it
			continue
		}
		if err != nil {
			return wrong, fmt.Errorf("cannot check %s: %w", name, err)
		}
		if sentence := license(name, content); sentence != "" {
			wrong = append(wrong, name+":1: "+sentence)
		}
		if path.Ext(name) != ".go" {
			continue
		}
		n, tooLong := lengths(name, content)
		long += n
		wrong = slices.Concat(wrong, tooLong, names.check(name, content), groups(name, content))
	}
	if long > allowed {
		const sentence = "%d lines of Go are longer than %d columns, and %d may be: shorten those that you have added"
		wrong = append(wrong, fmt.Sprintf(sentence, long, columns, allowed))
	}
	return wrong, nil
}

// killers signal process groups by number, and know that the leader is not reaped.
var killers = []string{"cmd/mpsctl/tune/run.go", "site/lab/room/process.go", "site/mps/start.go", "site/sim/node/group.go"}

// groups returns an error for each line that signals a process group by its number, except in the files of killers. After
// the leader was waited for, another program's group may have that number.
func groups(name string, content []byte) (wrong []string) {
	number := 0
	for line := range bytes.Lines(content) {
		number++
		if bytes.Contains(line, []byte(".Kill("+"-")) && !slices.Contains(killers, name) {
			wrong = append(wrong, fmt.Sprintf("%s:%d: the group may be another program's by now: use node.SignalGroup in tests", name, number))
		}
	}
	return wrong
}

const spdx = "SPDX-License-Identifier: Apache-2.0"

// comments maps a file's extension to its license line.
var comments = map[string]string{
	".go": "// " + spdx, ".c": "// " + spdx, ".s": "// " + spdx, ".cu": "// " + spdx, ".h": "/* " + spdx + " */",
	".sh": "# " + spdx, ".py": "# " + spdx, ".lua": "-- " + spdx,
}

// licensed reports whether a file has to name its license.
func licensed(name string) bool { return comments[path.Ext(name)] != "" }

// license returns what is wrong with a file's first lines, or "".
func license(name string, content []byte) string {
	want := comments[path.Ext(name)]
	first, rest, _ := bytes.Cut(content, []byte("\n"))
	if bytes.HasPrefix(first, []byte("#!")) {
		first, _, _ = bytes.Cut(rest, []byte("\n"))
	} else if path.Ext(name) == ".go" && !bytes.HasPrefix(rest, []byte("\n")) {
		return "write an empty line below the first line: the license is no comment of the package"
	}
	if string(first) != want {
		return fmt.Sprintf("write %q as the first line, or below the line with #!", want)
	}
	return ""
}

// lengths counts the lines longer than columns, and returns an error for each line longer than longest. A line with a
// URL may have any length.
func lengths(name string, content []byte) (long int, wrong []string) {
	number := 0
	for line := range bytes.Lines(content) {
		number++
		width := utf8.RuneCount(bytes.TrimRight(line, "\n"))
		if width <= columns || bytes.Contains(line, []byte("://")) {
			continue
		}
		long++
		if width > longest {
			sentence := fmt.Sprintf("the line has %d columns, and %d is the limit", width, longest)
			wrong = append(wrong, fmt.Sprintf("%s:%d: %s", name, number, sentence))
		}
	}
	return long, wrong
}
