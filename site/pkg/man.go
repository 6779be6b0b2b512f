// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// page is a man page of a program. If program is empty, it is the page of docs/policy.md.
type page struct {
	program, name string
	section       int
	about         string
}

//go:embed sections.md
var sections string

// userSections are the sections in the page of mpirun-wrap. Each has its name in the page, its document and its
// section there.
var userSections = [][3]string{
	{"CHOICES OF --GPU", "reference.md", "Choices of --gpu"}, {"SHARES", "reference.md", "Shares"},
	{"RECIPES", "recipes.md", "Launchers"},
	{"DIAGNOSTICS", "troubleshooting.md", "Messages of mpirun-wrap"}, {"CUDA ERRORS", "troubleshooting.md", "CUDA errors"},
}

var pages = []page{
	{"mpirun-wrap", "mpirun-wrap", 1, "run one rank of a job under NVIDIA MPS"},
	{"mps-tune", "mps-tune", 1, "find the share that is best for a command"},
	{"mpsctl", "mpsctl", 8, "look at a node, and print what slurm-mps would do"},
	{"prolog", "slurm-mps-prolog", 8, "make a node ready for a job's MPS: slurmd's Prolog="},
	{"epilog", "slurm-mps-epilog", 8, "bring a node back to what it was before a job: slurmd's Epilog="},
	{"guard", "slurm-mps-guard", 8, "hold the driver files of a job's dead clients: the prolog starts it"},
	{"task-prolog", "slurm-mps-task-prolog", 8, "place ranks that run without mpirun-wrap: slurmd's TaskProlog="},
	{"", "policy.hcl", 5, "who gets which share of a GPU under slurm-mps"},
}

// makePages makes the man pages of a package. Their text comes from the programs' help, from the documents and from
// sections.md.
func makePages(bin, docs, date, out string) error {
	for _, p := range pages {
		if err := p.make(bin, docs, date, out); err != nil {
			return err
		}
	}
	return nil
}

func (p page) make(bin, docs, date, out string) error {
	text, err := p.roff(bin, docs, date)
	if err != nil {
		return fmt.Errorf("cannot make page %s: %w", p.name, err)
	}
	return os.WriteFile(filepath.Join(out, fmt.Sprintf("%s.%d.gz", p.name, p.section)), packed(text), 0o644)
}

// packed compresses a text as gzip -9n does. It writes no time, so the same text gives the same bytes.
func packed(text string) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	_, err1 := w.Write([]byte(text))
	if err := errors.Join(err, err1, w.Close()); err != nil {
		panic(err) // a buffer accepts every write
	}
	return b.Bytes()
}

func (p page) roff(bin, docs, date string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s %d %s slurm-mps\n.ad l\n.SH NAME\n%s \\- %s\n.SH DESCRIPTION\n",
		quote(strings.ToUpper(p.name)), p.section, quote(date), escape(p.name), escape(p.about))
	write := p.programRoff
	if p.program == "" {
		write = policyRoff
	}
	if err := write(&b, bin, docs); err != nil {
		return "", err
	}
	b.WriteString(".SH SEE ALSO\nmpirun\\-wrap(1), mps\\-tune(1), policy.hcl(5), mpsctl(8)\n.PP\n/usr/share/doc/slurm\\-mps/README.md names the documents\n")
	return b.String(), nil
}

func policyRoff(b *strings.Builder, _, docs string) error {
	content, err := os.ReadFile(filepath.Join(docs, "policy.md"))
	_, text, _ := strings.Cut(string(content), "\n") // the title
	b.WriteString(fromMarkdown(text))
	return err
}

func (p page) programRoff(b *strings.Builder, bin, docs string) error {
	help, err := ask(bin, p.program)
	if err != nil {
		return err
	}
	b.WriteString(body(help, ".SH"))
	commands, err := tree(bin, p.program)
	if err != nil {
		return err
	}
	for i, c := range commands {
		if i == 0 {
			b.WriteString(".SH EACH COMMAND\n")
		}
		fmt.Fprintf(b, ".SS %s\n%s", quote(c.name), body(c.help, ".PP\n.B"))
	}
	if p.name == "mpirun-wrap" {
		for _, s := range userSections {
			content, err := os.ReadFile(filepath.Join(docs, s[1]))
			if err != nil {
				return err
			}
			text, err := section(string(content), s[2])
			if err != nil {
				return err
			}
			b.WriteString(fromMarkdown("# " + s[0] + "\n" + text))
		}
	}
	if text, err := section("\n"+sections, p.name); err == nil {
		b.WriteString(fromMarkdown(text))
	}
	return nil
}

// command is a subcommand of a program, for example "mpsctl policy check".
type command struct{ name, help string }

// tree returns every command below a line. Each command comes after its parent.
func tree(bin string, line ...string) ([]command, error) {
	help, err := ask(bin, line...)
	if err != nil {
		return nil, err
	}
	var all []command
	for _, name := range below(help) {
		line := append(append([]string{}, line...), name)
		help, err := ask(bin, line...)
		if err != nil {
			return nil, err
		}
		deeper, err := tree(bin, line...)
		if err != nil {
			return nil, err
		}
		all = append(append(all, command{strings.Join(line, " "), help}), deeper...)
	}
	return all, nil
}

const commandsHead = "Available Commands:"

// below returns the names of the commands in a help text.
func below(help string) (names []string) {
	_, list, _ := strings.Cut(help, "\n"+commandsHead+"\n")
	for line := range strings.Lines(list) {
		name, _, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found {
			return names
		}
		names = append(names, name)
	}
	return names
}

func ask(bin string, line ...string) (string, error) {
	output, err := exec.Command(filepath.Join(bin, line[0]), append(line[1:], "--help")...).Output()
	if err != nil {
		return "", fmt.Errorf("cannot run %s --help: %w", strings.Join(line, " "), err)
	}
	if len(output) == 0 {
		return "", fmt.Errorf("cannot read help of %s: it prints nothing", strings.Join(line, " "))
	}
	return string(output), nil
}

// heads maps the headings of a help text to those of a man page.
var heads = map[string]string{"Usage:": "USAGE", "Examples:": "EXAMPLES", commandsHead: "COMMANDS",
	"Flags:": "OPTIONS", "Global Flags:": "OPTIONS OF EVERY COMMAND"}

// body returns a help text as roff. Paragraphs are filled, and indented lines stay unchanged. Indented lines start at
// the left edge, because they have up to 80 columns.
func body(help, head string) string {
	var b strings.Builder
	literal := false
	for line := range strings.Lines(help) {
		line = strings.TrimRight(line, "\n")
		if indented := strings.HasPrefix(line, " "); literal != indented {
			literal = indented
			b.WriteString(map[bool]string{true: ".PP\n.in 0\n.nf\n", false: ".fi\n.in\n"}[literal])
		}
		switch {
		case heads[line] != "":
			fmt.Fprintf(&b, "%s %s\n", head, heads[line])
		case line == "":
			b.WriteString(".PP\n")
		default:
			b.WriteString(escape(line) + "\n")
		}
	}
	if literal {
		b.WriteString(".fi\n.in\n")
	}
	return b.String()
}

// escape makes text literal. A backslash, a hyphen, an apostrophe, and a dot at the start of a line have a meaning in
// roff.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`).Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}

func quote(text string) string { return `"` + strings.ReplaceAll(escape(text), `"`, `\(dq`) + `"` }
