// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

const help = `status prints what is 'there'.
.dots and \back - too.

Usage:
  mpsctl status [command]

Available Commands:
  check       say whether
  fmt         print

Flags:
  -h, --help   help
`

func TestBody(t *testing.T) {
	const want = `status prints what is \(aqthere\(aq.
\&.dots and \eback \- too.
.PP
.SH USAGE
.PP
.in 0
.nf
  mpsctl status [command]
.fi
.in
.PP
.SH COMMANDS
.PP
.in 0
.nf
  check       say whether
  fmt         print
.fi
.in
.PP
.SH OPTIONS
.PP
.in 0
.nf
  \-h, \-\-help   help
.fi
.in
`
	if got := body(help, ".SH"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := below(help); !slices.Equal(got, []string{"check", "fmt"}) {
		t.Errorf("commands %q", got)
	}
}

// wanted are the parts that each page must have.
var wanted = map[string][]string{
	"mpsctl":      {"\n.SS \"mpsctl policy explain\"\n", `\-\-no\-queries`, ".SH \"ENVIRONMENT\"", ".SH \"FILES\"", ".SH \"EXIT STATUS\"", "EXAMPLES"},
	"mpirun-wrap": {".SH EXAMPLES", ".SH \"ENVIRONMENT\"", ".SH \"FILES\"", ".SH \"EXIT STATUS\"", ".SH \"RECIPES\"", `SLURM_MPS_SHARE`, "torchrun"},
	"policy.hcl":  {".SH \"GRANT\"", `\fBmax_clients\fR`, "rule \"gpu\""},
}

func TestFromMarkdown(t *testing.T) {
	const text = "## A - b\n\nText of `a-b`, **`b`**, [a link](x.md).\n\n| head | x |\n|---|---|\n| `a \\|\\| b` `c` | d |\n| e | |\n\n* one\n\n```sh\n# no heading\n```\n"
	const want = `.SH "A \- B"
.PP
Text of \fBa\-b\fR, \fBb\fR, a link.
.TP
\fBa \e|\e| b\fR \fBc\fR
d
.TP
e
\&
.IP \(bu 2
one
.PP
.nf
# no heading
.fi
`
	if got := fromMarkdown(text); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestPages checks that each page is roff without errors or warnings of groff, that it has every command, and that
// every run gives the same bytes.
func TestPages(t *testing.T) {
	dir, err := testnode.Shared()
	if err == nil {
		dir, err = testnode.Build(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		var first []byte
		for range 2 {
			out := t.TempDir()
			if err := p.make(filepath.Join(dir, "bin"), "../../../docs", "2026-11-21", out); err != nil {
				t.Fatal(err)
			}
			files, _ := filepath.Glob(filepath.Join(out, "*"))
			content, err := os.ReadFile(files[0])
			if err != nil || first != nil && !bytes.Equal(first, content) {
				t.Fatalf("%s differs from run to run, %v", p.name, err)
			}
			first = content
		}
		text := unpacked(t, first)
		for _, want := range wanted[p.name] {
			if !strings.Contains(text, want) {
				t.Errorf("the page of %s lacks %q", p.name, want)
			}
		}
		groff, err := exec.LookPath("groff")
		if err != nil {
			continue
		}
		check := exec.Command(groff, "-man", "-ww", "-z", "-K", "utf8")
		check.Stdin = strings.NewReader(text)
		if output, err := check.CombinedOutput(); err != nil || len(output) > 0 {
			t.Errorf("%s: %v: %s", p.name, err, output)
		}
	}
}

func unpacked(t *testing.T, content []byte) string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
