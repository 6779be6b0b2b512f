// SPDX-License-Identifier: Apache-2.0

// Package rerun prints the command that runs one test again.
package rerun

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// folder is the folder of the tests, relative to the top of the source. For a compiled test without its source it is
// ".".
var folder = func() string {
	here, err := os.Getwd()
	for top := here; err == nil && top != "/"; top = filepath.Dir(top) {
		if _, err := os.Stat(filepath.Join(top, "go.mod")); err == nil {
			return "./" + strings.TrimPrefix(strings.TrimPrefix(here, top), "/")
		}
	}
	return "."
}()

// Command is the command that runs a test or a subtest again from the top of the source. Variables that are set in
// this run come before it.
func Command(t testing.TB, variables ...string) string {
	var line strings.Builder
	for _, name := range variables {
		if value := os.Getenv(name); value != "" {
			fmt.Fprintf(&line, "%s=%s ", name, value)
		}
	}
	levels := strings.Split(t.Name(), "/")
	for i, level := range levels {
		quoted := regexp.QuoteMeta(level)
		levels[i] = "^" + strings.ReplaceAll(quoted, "'", ".") + "$" // a quote would end the shell's string
	}
	fmt.Fprintf(&line, "go test %s -run '%s'", folder, strings.Join(levels, "/"))
	return line.String()
}
