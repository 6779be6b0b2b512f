// SPDX-License-Identifier: Apache-2.0

package job_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// A job file has NVML's number of the GPU, which is neither Slurm's position nor the minor number. The prolog writes
// the file and the epilog removes it; a second prolog and a second epilog change nothing.
//
// Contract: R13
func TestJobFilesOfAJob(t *testing.T) {
	p := newTestNode(t, "", node.H200, node.H200)
	dir := e2e.PublicDirIn(t, "/run")
	p.Facts(fmt.Sprintf("hpc_job_mapping_dir = %q", dir))
	p.Write(p.Gres(), "Name=gpu File=/dev/nvidia1\nName=gpu File=/dev/nvidia0\n") // Slurm's GPU 0 is NVML's GPU 1
	files := func(want string) {
		t.Helper()
		var found []string
		entries := must.Get(os.ReadDir(dir))(t)
		for _, e := range entries {
			found = append(found, e.Name()+":"+strings.TrimSpace(e2e.Read(t, filepath.Join(dir, e.Name()))))
		}
		if got := strings.Join(found, " "); got != want {
			t.Errorf("job files %q, want %q\n%s", got, want, p.Log())
		}
	}
	for range 2 { // slurmd may run a prolog twice
		p.Open(p.Job(7, "0"))
		files("1:7")
	}
	p.Open(p.Job(8, "1"))
	files("0:8 1:7")
	for range 2 {
		p.Must(0, p.Job(7, "0"), "epilog")
		files("0:8")
	}
	p.Must(0, p.Job(8, "1"), "epilog")
	files("")
	p.Quiet()
}
