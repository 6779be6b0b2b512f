// SPDX-License-Identifier: Apache-2.0

// Package spank_test holds the SPANK plugin's reader of options, which is C, to the policy's, which is Go: what the submit
// host says of a mistake is what the job's ticket would say. cmd/spank_test.go runs the plugin in a real Slurm.
package spank_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
)

// program reads with the plugin's reader, which every compiler that is there has compiled, warnings being errors.
var program string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	scratch, err := os.MkdirTemp("", "spank-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(scratch)
	for _, compiler := range []string{"clang", "gcc"} {
		if _, err := exec.LookPath(compiler); err != nil {
			continue
		}
		program = filepath.Join(scratch, "read")
		out, err := exec.Command(compiler, "-Wall", "-Wextra", "-Werror", "-g", "-fsanitize=undefined,address",
			"-fno-sanitize-recover=all", "-o", program, "testdata/read.c", "options.c").CombinedOutput()
		if err != nil {
			return 1, fmt.Errorf("%s: %w\n%s", compiler, err, out)
		}
	}
	return m.Run(), nil
}

// said is what the C reader says of each text, "" where it can be read. No text has a zero byte: no argument can.
func said(t *testing.T, texts []string) []string {
	t.Helper()
	if program == "" {
		t.Skip("there is no C compiler")
	}
	cmd := exec.Command(program)
	cmd.Stdin = strings.NewReader(strings.Join(texts, "\x00") + "\x00")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	answers := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(answers) != len(texts) {
		t.Fatalf("%d answers to %d texts", len(answers), len(texts))
	}
	return answers
}

// policySays is what the policy says of a text.
func policySays(text string) string {
	if _, err := policy.ParseOptions(text); err != nil {
		return err.Error()
	}
	return ""
}

type row struct{ text, sentence string }

func table(t *testing.T) []row {
	t.Helper()
	file, err := os.ReadFile("../../policy/testdata/options.txt")
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	for _, line := range strings.Split(strings.TrimSpace(string(file)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		rows = append(rows, readRow(t, line))
	}
	return rows
}

func readRow(t *testing.T, line string) row {
	t.Helper()
	quoted, err := strconv.QuotedPrefix(line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	text, _ := strconv.Unquote(quoted)
	rest := strings.TrimPrefix(line[len(quoted):], " ")
	if rest == "ok" {
		return row{text, ""}
	}
	sentence, err := strconv.Unquote(rest)
	if err != nil || sentence == "" {
		t.Fatalf("%s: %q is neither ok nor a quoted sentence", line, rest)
	}
	return row{text, sentence}
}

func TestTable(t *testing.T) {
	rows := table(t)
	texts := make([]string, len(rows))
	for i, r := range rows {
		texts[i] = r.text
	}
	answers := said(t, texts)
	for i, r := range rows {
		if got := policySays(r.text); got != r.sentence {
			t.Errorf("policy: %q: %q, want %q", r.text, got, r.sentence)
		}
		if answers[i] != r.sentence {
			t.Errorf("plugin: %q: %q, want %q", r.text, answers[i], r.sentence)
		}
	}
}

// rounds is how many texts are made; SPANK_ROUNDS asks for more.
func rounds() int {
	if n, err := strconv.Atoi(os.Getenv("SPANK_ROUNDS")); err == nil {
		return n
	}
	return 20_000
}

// Texts made of pieces that mean something, with bytes changed at random: half of them are read far into.
func TestRandomTexts(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	pieces := words(table(t))
	texts := make([]string, rounds())
	fine := 0
	for i := range texts {
		texts[i] = randomText(random, pieces)
		if policySays(texts[i]) == "" {
			fine++
		}
	}
	for i, got := range said(t, texts) {
		if want := policySays(texts[i]); got != want {
			t.Fatalf("%q:\nplugin %q\npolicy %q", texts[i], got, want)
		}
	}
	if fine < len(texts)/50 || fine > len(texts)*9/10 {
		t.Errorf("%d of %d texts can be read: the test sees one side only", fine, len(texts))
	}
}

// words are what texts are made of: names, values, marks, digits, and characters of every length.
func words(rows []row) []string {
	list := []string{"=", "=", "=", ",", ",", " ", ".", ":", "%", "sm", "-", "+", "0", "00", "9", "48", "49", "100", "600",
		"999999999999", "9223372036854775807", "18446744073709551616", "0.000001", ".5", "5.", "1_0", "0x1", "1e3", "M", "G", "T", "ns", "us",
		"µs", "μs", "ms", "s", "m", "h", "9m59s", "59.999999999999999999", "weight:", "overlap:", "none", "even", "job", "gpu",
		"\a\b\f\v\r\t\n", "\x7f", "\x01", "é", "…", "\u2028", "😀", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "\xff", "\xe2\x80",
		strings.Repeat("x", 63), strings.Repeat("é", 40), strings.Repeat(" ", 500), strings.Repeat("1", 511)}
	for _, name := range policy.OptionNames() {
		list = append(list, name, name+"=")
	}
	for _, r := range rows {
		list = append(list, r.text, r.text)
	}
	return list
}

func randomText(random *rand.Rand, pieces []string) string {
	var text []byte
	for range 1 + random.IntN(5) {
		text = append(text, pieces[random.IntN(len(pieces))]...)
	}
	for random.IntN(4) == 0 && len(text) > 0 {
		text[random.IntN(len(text))] = byte(1 + random.IntN(255))
	}
	return string(text)
}

// Values of each option, close to where it ends.
func TestRandomValues(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 8))
	names := append(policy.OptionNames(), "mem")
	var texts []string
	for range rounds() {
		number := fmt.Sprint(random.IntN(1 << random.IntN(33)))
		if random.IntN(2) == 0 {
			number += "." + fmt.Sprint(random.IntN(1<<random.IntN(40)))
		}
		unit := []string{"", "", "M", "G", "T", "s", "m", "h", "ms", "us", "ns", "%", "sm"}[random.IntN(13)]
		prefix := []string{"", "", "", "overlap:", "weight:", "-", "0"}[random.IntN(7)]
		texts = append(texts, names[random.IntN(len(names))]+"="+prefix+number+unit)
	}
	for i, got := range said(t, texts) {
		if want := policySays(texts[i]); got != want {
			t.Fatalf("%q:\nplugin %q\npolicy %q", texts[i], got, want)
		}
	}
}
