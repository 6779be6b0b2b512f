// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// workflowTasks is the number of tasks in the blocks of docs/recipes.md. Each task is a Slurm job with one of two
// shards of a GPU.
const workflowTasks = 200

// workflow is a cluster whose user runs a block of docs/recipes.md for a workflow engine.
type workflow struct {
	*cluster
	folder string // the user's
	plain  bool   // the tasks do not ask for MPS
}

// newWorkflow needs WORKFLOWS=mps, because 200 jobs take minutes. With WORKFLOWS=plain the tasks do not ask for MPS,
// so a failure is the engine's or Slurm's.
func newWorkflow(t *testing.T) workflow {
	t.Helper()
	mode := os.Getenv("WORKFLOWS")
	if mode != "mps" && mode != "plain" {
		t.Skip("WORKFLOWS=mps runs 200 tasks of a workflow engine")
	}
	c := newCluster(t, testnode.Default(), lab.Options{PrologFlags: "Alloc", Gres: "gpu:4,shard:8"})
	ctx, cancel := context.WithTimeout(context.Background(), 9*time.Minute)
	t.Cleanup(cancel)
	c.Ctx = ctx
	home, err := c.Home(c.User)
	if err != nil {
		t.Fatal(err)
	}
	w := workflow{c, filepath.Join(home, "flow"), mode == "plain"}
	if err := os.Mkdir(w.folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(w.folder, int(c.User.UID), int(c.User.GID)); err != nil {
		t.Fatal(err)
	}
	w.program("member", fmt.Sprintf("LD_LIBRARY_PATH=%s exec %s info", c.First().Sim.Libraries(), c.Client()))
	return w
}

func (w workflow) program(name, text string) {
	w.T.Helper()
	if err := node.WriteProgram(filepath.Join(w.folder, name), []byte("#!/bin/bash\n"+text+"\n")); err != nil {
		w.T.Fatal(err)
	}
}

// blocks returns the blocks of a section of docs/recipes.md, without MPS if the tasks do not ask for it.
func (w workflow) blocks(section string) (blocks []string) {
	w.T.Helper()
	_, text, _ := strings.Cut(e2e.Read(w.T, "../../../docs/recipes.md"), "\n### "+section+"\n")
	text, _, _ = strings.Cut(text, "\n### ")
	for part := range strings.SplitSeq(text, "\n```\n") {
		if _, block, ok := strings.Cut(part, "\n```"); ok {
			_, block, _ = strings.Cut(block, "\n")
			if w.plain {
				block = strings.NewReplacer(" --constraint=mps", "", "mpirun-wrap ", "").Replace(block)
			}
			blocks = append(blocks, block)
		}
	}
	if len(blocks) < 2 {
		w.T.Fatalf("%d blocks in section %s", len(blocks), section)
	}
	return blocks
}

// bash runs lines as the user, in the folder.
func (w workflow) bash(lines string) {
	w.T.Helper()
	begun := time.Now()
	r, err := w.Run(w.Ctx, w.User, "bash", "-c", "cd "+w.folder+" && export PATH="+w.Top+":$PATH && "+lines)
	if err != nil || r.Exit != 0 {
		w.T.Fatalf("exit code %d, %v\n%s%s\n%s", r.Exit, err, r.Stdout, r.Stderr, w.Log())
	}
	w.T.Logf("%d tasks in %s", workflowTasks, time.Since(begun).Round(time.Second))
}

// judge checks that each task had its shard of a GPU, and that no job left anything.
func (w workflow) judge(pattern string) {
	w.T.Helper()
	paths, err := filepath.Glob(filepath.Join(w.folder, pattern))
	if err != nil {
		w.T.Fatal(err)
	}
	var all strings.Builder
	for _, path := range paths {
		all.WriteString(e2e.Read(w.T, path))
	}
	want := 66 // the SMs of one of the two shards of an H200
	if w.plain {
		want = 132
	}
	if got := e2e.SMCounts(w.T, all.String()); !slices.Equal(got, slices.Repeat([]int{want}, workflowTasks)) {
		w.T.Errorf("%d files, SMs %v, want %d times %d", len(paths), got, workflowTasks, want)
	}
	w.Quiet()
}

// TestSnakemake runs the blocks of docs/recipes.md as they are written: the Snakefile, and the command.
func TestSnakemake(t *testing.T) {
	if _, err := exec.LookPath("snakemake"); err != nil {
		t.Skip("snakemake is not installed")
	}
	w := newWorkflow(t)
	blocks := w.blocks("Snakemake")
	if err := os.WriteFile(filepath.Join(w.folder, "Snakefile"), []byte(blocks[0]), 0o644); err != nil {
		t.Fatal(err)
	}
	w.bash(blocks[1])
	w.judge("out/*.txt")
}

// TestNextflowLines submits the tasks as Nextflow's slurm executor does, because Debian does not have Nextflow: a
// folder and a script .command.run for each task, with its #SBATCH lines and then clusterOptions.
func TestNextflowLines(t *testing.T) {
	w := newWorkflow(t)
	_, options, _ := strings.Cut(w.blocks("Nextflow")[0], "clusterOptions = '")
	options, _, _ = strings.Cut(options, "'")
	w.program("engine", fmt.Sprintf(`for i in $(seq %d); do
mkdir -p work/$i && cd work/$i
cat >.command.run <<END
#!/bin/bash
#SBATCH -J nf-member_($i)
#SBATCH -o $PWD/.command.log
#SBATCH --no-requeue
#SBATCH --signal B:USR2@30
#SBATCH -c 1
#SBATCH %s
cd $PWD
trap 'exit 1' USR2
(mpirun-wrap ../../member $i >.command.out 2>.command.err) & wait \$!
echo \$? >.exitcode
END
sbatch .command.run >/dev/null && cd ../.. || exit
done
until [ $(find work -name .exitcode | wc -l) = %[1]d ]; do sleep 0.2; done`, workflowTasks, options))
	if w.plain {
		w.bash("sed -i 's/mpirun-wrap //' engine && ./engine")
	} else {
		w.bash("./engine")
	}
	w.judge("work/*/.command.out")
}
