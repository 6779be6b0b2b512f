// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// wanted are the parts that each page must have.
var wanted = map[string][]string{
	"mpsctl":      {"\n.SS \"mpsctl policy explain\"\n", `\-\-no\-queries`, ".SH \"ENVIRONMENT\"", ".SH \"FILES\"", ".SH \"EXIT STATUS\"", "EXAMPLES"},
	"mpirun-wrap": {".SH EXAMPLES", ".SH \"ENVIRONMENT\"", ".SH \"FILES\"", ".SH \"EXIT STATUS\"", ".SH \"RECIPES\"", `SLURM_MPS_SHARE`, "torchrun"},
	"policy.hcl":  {".SH \"GRANT\"", `\fBmax_clients\fR`, "rule \"gpu\""},
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
			must.OK(t, p.make(filepath.Join(dir, "bin"), "../../docs", "2026-11-21", out))
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
	r := must.Get(gzip.NewReader(bytes.NewReader(content)))(t)
	text := must.Get(io.ReadAll(r))(t)
	return string(text)
}
