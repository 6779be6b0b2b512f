// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// A job file has NVML's number of the GPU, which is neither Slurm's position nor the minor number. The prolog writes
// the file and the epilog removes it; a second prolog and a second epilog change nothing.
//
// Contract: R13
func TestJobFilesOfAJob(t *testing.T) {
	p := newTestNode(t, "", node.H200, node.H200)
	dir := publicDirIn(t, "/run")
	p.facts(fmt.Sprintf("hpc_job_mapping_dir = %q", dir))
	p.write(p.gres(), "Name=gpu File=/dev/nvidia1\nName=gpu File=/dev/nvidia0\n") // Slurm's GPU 0 is NVML's GPU 1
	files := func(want string) {
		t.Helper()
		var found []string
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			found = append(found, e.Name()+":"+strings.TrimSpace(read(t, filepath.Join(dir, e.Name()))))
		}
		if got := strings.Join(found, " "); got != want {
			t.Errorf("job files %q, want %q\n%s", got, want, p.log())
		}
	}
	for range 2 { // slurmd may run a prolog twice
		p.must(0, p.job(7, "0"), "prolog")
		files("1:7")
	}
	p.must(0, p.job(8, "1"), "prolog")
	files("0:8 1:7")
	for range 2 {
		p.must(0, p.job(7, "0"), "epilog")
		files("0:8")
	}
	p.must(0, p.job(8, "1"), "epilog")
	files("")
	p.quiet()
}

// With -w, mpsctl status and audit read what mpsctl on each node prints.
func TestStatusOfNodesThatAnswer(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	shell := filepath.Join(filepath.Dir(p.Root), "shell")
	script := fmt.Sprintf("#!/bin/sh\n[ $1 = n1 ] || exit 255\nshift 2\nexec %s --root %s \"$@\"\n", filepath.Join(p.Bin, "mpsctl"), p.Root)
	if err := node.WriteProgram(shell, []byte(script)); err != nil {
		t.Fatal(err)
	}
	p.facts(fmt.Sprintf("remote_shell = %q", shell))
	p.must(0, p.job(7, "0"), "prolog")
	p.ranks(3, "spin", "-ms", "1", "-for", "600")
	head := "node  jobs clients  findings\n"
	if r := p.ctl("status", "-w", "n1"); r.Code != 0 || !strings.HasPrefix(r.Output, head+"n1       1       3  -\n") {
		t.Errorf("code %d\n%s", r.Code, r.Output)
	}
	// An audit also finds daemons of other tests.
	if r := p.ctl("audit", "-w", "n1"); !strings.HasPrefix(r.Output, head+"n1       1       3  ") {
		t.Errorf("code %d\n%s", r.Code, r.Output)
	}
	if err := p.lease(7).Guard.Kill(9); err != nil {
		t.Fatal(err)
	}
	r := p.ctl("status", "--nodes", "n1,n2")
	if r.Code != 1 || !strings.HasPrefix(r.Output, head+"n1       1       3  guard-") || !strings.Contains(r.Output, "n2       -       -  no answer: exit status 255") {
		t.Errorf("code %d\n%s", r.Code, r.Output)
	}
	p.must(0, p.job(7, "0"), "epilog")
	p.clean()
}
