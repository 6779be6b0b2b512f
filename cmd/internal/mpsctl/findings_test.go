// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/inspect"
)

func TestPrintFindings(t *testing.T) {
	found := []inspect.Finding{{Kind: inspect.ModeDiffers, Where: "job 7, GPU 0 (GPU-1)", What: strings.Repeat("word ", 20), Do: "nvidia-smi -i GPU-1 -c DEFAULT"}}
	want := "\n1 finding\n! mode-differs  job 7, GPU 0 (GPU-1)\n" +
		"    word word word word word word word word word word word word word word word\n    word word word word word\n" +
		"    fix: nvidia-smi -i GPU-1 -c DEFAULT\n"
	if got := printFindings(found, "finding", Screen{Columns: 80}); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := printFindings(nil, "finding", Screen{Columns: 80}); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}
