// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A rank that sees several GPUs computes on the first one, so app prints that one.
func TestAppPrintsTheFirstGPU(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"app":         programs["app"],
		"cuda-client": "#!/bin/sh\necho 'err=0 sm=132 ndev=2 uuid=GPU-aaaaaaaa-0000 uuid=GPU-bbbbbbbb-0000 kernels=7'\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	app := exec.Command(filepath.Join(dir, "app"))
	app.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "PMI_RANK=3"}
	out, err := app.CombinedOutput()
	if want := "rank 3: 132 SMs of GPU-aaaaaaaa, 7 kernels\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}
