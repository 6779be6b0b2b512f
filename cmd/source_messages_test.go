// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// Each message of mpirun-wrap is in docs/troubleshooting.md, so that a user who searches the page finds it. Of a
// message, the longest text of its first two parts must be there.
func TestTheMessagesAreDocumented(t *testing.T) {
	page := part(t, read(t, "../docs/troubleshooting.md"), "Messages of mpirun-wrap")
	verbs := regexp.MustCompile(`%[+.0-9]*[a-z]`)
	var all []string
	for _, pattern := range []string{"../mpirun-wrap/*.go", "../cmd/internal/wrap/*.go", "../site/slurm/task.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %q, %v", pattern, files, err)
		}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				all = append(all, messagesOf(t, file)...)
			}
		}
	}
	if len(all) < 60 {
		t.Errorf("only %d messages found", len(all))
	}
	for _, message := range all {
		parts := strings.Split(message, ": ")
		pieces := verbs.Split(strings.Join(parts[:min(2, len(parts))], "%s"), -1)
		piece := slices.MaxFunc(pieces, func(a, b string) int { return cmp.Compare(len(a), len(b)) })
		printed := message != "help is asked for"
		if piece = strings.Trim(piece, " :;,()"); printed && len(piece) > 3 && !strings.Contains(page, piece) {
			t.Errorf("docs/troubleshooting.md has no %q, of the message %q", piece, message)
		}
	}
}

// messagesOf returns the texts of a file that begin a message: each text with "cannot", and each that PrintError gets
// or that is an error of its own. Texts that only continue a message begin with a verb or with "want".
func messagesOf(t *testing.T, file string) (found []string) {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "Errorf" && f.Sel.Name != "New" && f.Sel.Name != "Sprintf" {
			return true
		}
		first := call.Args[0]
		for sum, ok := first.(*ast.BinaryExpr); ok; sum, ok = first.(*ast.BinaryExpr) {
			first = sum.X
		}
		lit, ok := first.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(lit.Value)
		f := call.Fun.(*ast.SelectorExpr).Sel.Name
		if err == nil && (strings.HasPrefix(text, "cannot ") || f != "Sprintf" && !strings.HasPrefix(text, "want ")) {
			found = append(found, text)
		}
		return true
	})
	return found
}

// The page has the words of other programs as they print them, because users search for words and not for numbers.
func TestTheWordsOfOtherPrograms(t *testing.T) {
	page := read(t, "../docs/troubleshooting.md")
	for _, words := range []string{
		"out of memory", "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY",
		"all CUDA-capable devices are busy or unavailable", "cudaErrorDevicesUnavailable",
		"CUDA-capable device(s) is/are busy or unavailable", "no CUDA-capable device", "cudaErrorNoDevice",
		"invalid device ordinal", "cudaErrorInvalidDevice", "cudaErrorIllegalState",
		"an illegal memory access was encountered", "cudaErrorIllegalAddress",
		"unspecified launch failure", "cudaErrorLaunchFailure",
		"MPS client failed to connect", "cudaErrorMpsConnectionFailed", "cudaErrorMpsRpcFailure",
		"cudaErrorMpsServerNotReady", "cudaErrorMpsMaxClientsReached", "cudaErrorMpsMaxConnectionsReached",
		"cudaErrorMpsClientTerminated",
		"CUDA out of memory. Tried to allocate", "No CUDA GPUs are available", "Duplicate GPU detected",
		"ncclInvalidUsage", "RESOURCE_EXHAUSTED", "CUBLAS_STATUS_ALLOC_FAILED",
		"srun: unrecognized option '--mps'", "Invalid generic resource (gres) specification",
		"Invalid feature specification", "Requested node configuration is not available", "Exited with exit code 125",
		"are still not ready", "Something is wrong with the boot of the nodes", "launch failed requeued held",
		"mpsctl: command not found", "cannot read SLURM_MPS_SHARE", "less than a client can have", "cannot tune", "cannot report",
	} {
		if !strings.Contains(page, words) {
			t.Errorf("docs/troubleshooting.md has no %q", words)
		}
	}
}
