// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// varies matches what differs between two messages of a kind. It also matches where the programs join parts of a
// message.
var varies = regexp.MustCompile(`: | \(pid|/run\S+|GPU-\.\.\.|\.\.\.|\bn1\b|[0-9]+s?`)

// docs/troubleshooting.md quotes messages of mpirun-wrap as the programs print them.
func TestTheMessagesAreThePrograms(t *testing.T) {
	var source strings.Builder
	for _, pattern := range []string{"../mpirun-wrap/*.go", "../cmd/internal/wrap/*.go", "../prolog/*.go", "../site/*/*.go", "../policy/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %q, %v", pattern, files, err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(file, "_test.go") {
				source.Write(content)
			}
		}
	}
	pieces := 0
	quoted := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
	for _, m := range quoted.FindAllStringSubmatch(part(t, read(t, "../docs/troubleshooting.md"), "Messages of mpirun-wrap"), -1) {
		for _, piece := range varies.Split(m[1], -1) {
			if piece = strings.Trim(piece, " :()"); len(piece) < 8 {
				continue
			}
			pieces++
			if !strings.Contains(source.String(), piece) {
				t.Errorf("no program prints %q, which docs/troubleshooting.md quotes", piece)
			}
		}
	}
	if pieces < 15 {
		t.Errorf("only %d pieces of messages found", pieces)
	}
}
