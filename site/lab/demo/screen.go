// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/slurm-mps/slurm-mps/site/osfile"
)

// columns is the maximum width of the text. A longer line of a program is broken at blanks.
const columns = 80

// screen prints the acts for a reader.
type screen struct {
	out  io.Writer
	bold bool
	term string // TERM
}

// newScreen returns a screen that prints titles in bold if out is a terminal that supports it.
func newScreen(out *os.File, env func(string) string) screen {
	term := env("TERM")
	return screen{out, osfile.IsTerminal(out) && env("NO_COLOR") == "" && term != "dumb", term}
}

// title prints the title of an act.
func (s screen) title(text string) {
	rule := strings.Repeat("-", columns)
	if s.bold {
		text = "\x1b[1m" + text + "\x1b[0m"
	}
	fmt.Fprintf(s.out, "\n%s\n%s\n", rule, text)
}

// text prints our own sentences.
func (s screen) text(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprint(s.out, wrap(strings.TrimRight(line, "\n"), ""))
	}
}

// command prints a command line as the user typed it.
func (s screen) command(user, line string) {
	prompt := user + "$ "
	if user == "root" {
		prompt = "root# "
	}
	if s.bold {
		line = "\x1b[1m" + line + "\x1b[0m"
	}
	fmt.Fprintf(s.out, "\n%s%s\n", prompt, line)
}

// output prints what a program has printed.
func (s screen) output(text string) {
	for line := range strings.Lines(shortUUIDs(text)) {
		fmt.Fprint(s.out, wrap(strings.TrimRight(line, "\n"), "    "))
	}
}

var uuidForm = regexp.MustCompile(`(GPU-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// shortUUIDs shortens each UUID to its first eight digits.
func shortUUIDs(text string) string { return uuidForm.ReplaceAllString(text, "$1") }

// wrap breaks a line at blanks, so that no line is wider than columns. All lines after the first are indented.
func wrap(line, indent string) string {
	var b strings.Builder
	for cells(line) > columns {
		at := lastBlank(line, columns)
		if at <= len(indent) {
			break // one word is wider than columns
		}
		fmt.Fprintln(&b, strings.TrimRight(line[:at], " "))
		line = indent + strings.TrimLeft(line[at:], " ")
	}
	fmt.Fprintln(&b, line)
	return b.String()
}

func cells(line string) int { return utf8.RuneCountInString(line) }

// lastBlank returns the index of the last blank that has at most limit characters before it, or 0.
func lastBlank(line string, limit int) (at int) {
	n := 0
	for i, r := range line {
		if r == ' ' {
			at = i
		}
		if n++; n > limit {
			break
		}
	}
	return at
}

// thing is a command line to try in the shell.
type thing struct {
	what, line string
	code       int    // the exit code of the line
	want       string // a part of the output, for the test
}

var card = []thing{
	{"Eight ranks share two GPUs, with an equal share each",
		"srun --gres=gpu:2 --constraint=mps -n8 mpirun-wrap --share=even ./app", 0, "rank 7: 32 SMs of GPU-"},
	{"A rank is killed during its kernel, and its neighbours finish",
		"srun --gres=gpu:1 --constraint=mps -n4 mpirun-wrap ./killed", 137, "rank 2: finished"},
	{"The same without slurm-mps, on an MPS that the job starts itself",
		"salloc --quiet --gres=gpu:1 -n4 ./bare-mps srun ./killed", 137, "rank 2: died of CUDA error 700"},
	{"The placement of each rank, with the reasons",
		"srun --gres=gpu:1 --constraint=mps -n2 mpirun-wrap -v --share=25% ./app", 0, "32 of 132 SMs"},
	{"A batch job, and the node while the job runs",
		"sbatch long.sh && sleep 3 && mpsctl status", 0, "1 job"},
	{"A mistake, and what is printed",
		"srun --constraint=mps mpirun-wrap ./app", 125, "submit it with --gres=gpu:N"},
	{"What the site's policy gives a job, and why",
		"mpsctl policy explain --partition edu --gpus 2 --constraint mps", 0, "MPS on the edu partition"},
	{"How seven ranks would share two GPUs, without a job",
		"mpsctl policy explain --gpu H200 --gpus 2 --ranks 7 --constraint mps", 0, "264 of 132 SMs"},
	{"Eight programs that no launcher numbers, in four slots (cat ensemble)",
		"srun --gres=gpu:1 --constraint=mps ./ensemble", 0, "66 SMs of GPU-"},
	{"Which share is the fastest for a program",
		"salloc -Q -n4 --gres=gpu:1 -Cmps mps-tune --repeats 1 -- srun ./app", 0, "overlap:2"},
}

// cardText returns the card as the user sees it.
func cardText() string {
	var b strings.Builder
	for i, t := range card {
		fmt.Fprintf(&b, "%2d. %s\n    %s\n", i+1, t.what, t.line)
	}
	return b.String()
}
