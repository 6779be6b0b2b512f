// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// workflowTasks is the number of tasks here. docs/recipes.md has 200.
const workflowTasks = 12

// nextflow submits tasks as Nextflow's slurm executor does, because Debian does not have Nextflow: a folder and a script
// .command.run for each task, with its #SBATCH lines and then clusterOptions.
const nextflow = `for i in $(seq %d); do
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
until [ $(find work -name .exitcode | wc -l) = %[1]d ]; do sleep 0.2; done`

var recipeBlock = regexp.MustCompile("(?s)\n```\\w+\n(.*?)```")

// The blocks of docs/recipes.md for workflow engines: each task is a job with one of two shards of a GPU.
func TestWorkflows(t *testing.T) {
	c := newCluster(t, testnode.Default(), lab.Options{PrologFlags: "Alloc", Gres: "gpu:4,shard:8"})
	block := func(section string, number int) string {
		_, text, _ := strings.Cut(e2e.Read(t, "../../../docs/recipes.md"), "\n### "+section+"\n")
		text, _, _ = strings.Cut(text, "\n### ")
		return recipeBlock.FindAllStringSubmatch(text, -1)[number][1]
	}
	run := func(name, outputs string, files map[string]string, line string) {
		t.Run(name, func(t *testing.T) {
			home := must.Get(c.Home(c.User))(t)
			folder := filepath.Join(home, name)
			must.OK(t, os.Mkdir(folder, 0o777))
			must.OK(t, os.Chown(folder, int(c.User.UID), int(c.User.GID)))
			files["member"] = fmt.Sprintf("#!/bin/bash\nLD_LIBRARY_PATH=%s exec %s info\n", c.First().Sim.Libraries(), c.Client())
			for file, text := range files {
				must.OK(t, node.WriteProgram(filepath.Join(folder, file), []byte(text)))
			}
			r, err := c.Run(c.Ctx, c.User, "bash", "-c", "cd "+folder+" && export PATH="+c.Top+":$PATH && "+line)
			if err != nil || r.Exit != 0 {
				t.Fatalf("%+v, %v\n%s", r, err, c.Log())
			}
			var all strings.Builder
			for _, path := range glob(folder, outputs) {
				all.WriteString(e2e.Read(t, path))
			}
			if got := e2e.SMCounts(t, all.String()); !slices.Equal(got, slices.Repeat([]int{66}, workflowTasks)) {
				t.Errorf("SMs %v, want half a GPU for each of %d tasks\n%s", got, workflowTasks, c.Log())
			}
		})
	}
	if _, err := exec.LookPath("snakemake"); err == nil {
		snakefile := strings.Replace(block("Snakemake", 0), "range(200)", fmt.Sprintf("range(%d)", workflowTasks), 1)
		run("snakemake", "out/*.txt", map[string]string{"Snakefile": snakefile}, block("Snakemake", 1))
	}
	_, options, _ := strings.Cut(block("Nextflow", 0), "clusterOptions = '")
	options, _, _ = strings.Cut(options, "'")
	run("nextflow", "work/*/.command.out", map[string]string{"engine": "#!/bin/bash\n" + fmt.Sprintf(nextflow, workflowTasks, options) + "\n"}, "./engine")
	c.Quiet()
}
