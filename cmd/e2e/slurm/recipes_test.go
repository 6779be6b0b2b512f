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

// recipe is what the ranks of a block of docs/recipes.md get. A user copies such a block into a batch script.
type recipe struct {
	args []string // of sbatch
	want []int    // the SMs of all ranks, sorted
	any  []int    // or the SMs that each rank may have, because slots are taken in any order
	n    int      // number of ranks, with any
}

// recipes are the blocks, by the first words of the paragraph before the block.
var recipes = map[string]recipe{
	"An ensemble":                    {args: []string{"-n4", "--gres=gpu:2"}, want: []int{66, 66, 66, 66}},
	"An ensemble without a step":     {args: []string{"-n8", "--gres=gpu:2"}, any: []int{32, 34}, n: 12 + 3 + 3 + 12},
	"MPI":                            {args: []string{"-n4", "--gres=gpu:2"}, want: slices.Repeat([]int{66}, 12)},
	"Several programs in one launch": {args: []string{"-n4", "--gres=gpu:1"}, want: []int{22, 22, 22, 22, 22, 22, 22, 22, 22, 66, 66, 66}},
	"torchrun":                       {args: []string{"-n8", "--gres=gpu:2"}, want: []int{32, 32, 32, 32, 34, 34, 34, 34}},
}

var recipeForm = regexp.MustCompile("(?s)\\*\\*([^*]+)\\*\\*[^\n]*\n\n```sh\n(.*?)```")

// Every block for launchers in docs/recipes.md runs as it is written. Launchers have their Debian names here, and a
// script replaces each launcher that is not installed.
func TestTheRecipesOfTheUsers(t *testing.T) {
	c := newCluster(t, testnode.Default(`share = "even"`), lab.Options{PrologFlags: "Alloc", SameName: true})
	bin := filepath.Join(c.Top, "recipes")
	must.OK(t, os.Mkdir(bin, 0o755))
	wrapper := filepath.Join(c.Top, "mpirun-wrap")
	for name, script := range map[string]string{
		"mpirun-wrap": "exec " + wrapper + ` "$@"`, "mpirun": `exec mpirun.openmpi "$@"`, "mpiexec": `exec mpiexec.hydra "$@"`,
		"app": "exec " + c.Client() + " info", "seq": "exec /usr/bin/seq 12",
		"parallel": `jobs=$1; shift; line=; while [ "$1" != ::: ]; do line="$line $1"; shift; done; shift; printf '%s\n' "$@" | xargs -P${jobs#-j} -n1 $line`,
		"torchrun": `shift; n=${1#*=}; shift; for i in $(/usr/bin/seq 0 $((n - 1))); do TORCHELASTIC_RUN_ID=1 LOCAL_RANK=$i LOCAL_WORLD_SIZE=$n "$@" & done; wait`,
	} {
		must.OK(t, node.WriteProgram(filepath.Join(bin, name), []byte("#!/bin/bash\n"+script+"\n")))
	}
	// These are the user's programs, in a folder of the job.
	setup := "cd $(mktemp -d); for p in app member solver analysis; do ln -s " + bin + "/app $p; done; mkdir cases; touch cases/a cases/b cases/c\n" +
		"mkdir path; for p in " + bin + "/*; do ln -s $p path; done; ln -s " + bin + "/app path/python; export PATH=$PWD/path:$PATH\n"
	_, section, _ := strings.Cut(e2e.Read(t, "../../../docs/recipes.md"), "\n## Launchers\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := recipeForm.FindAllStringSubmatch(section, -1)
	if len(blocks) != strings.Count(section, "```sh\n") || len(blocks) != len(recipes) {
		t.Errorf("%d blocks with a title, %d blocks, %d recipes", len(blocks), strings.Count(section, "```sh\n"), len(recipes))
	}
	for _, block := range blocks {
		t.Run(block[1], func(t *testing.T) {
			r, ok := recipes[block[1]]
			must.Have(t, ok, "no recipe of this name")
			id := c.Batch(setup+block[2], r.args...)
			c.Ended(id)
			got := e2e.SMCounts(t, c.Output(id))
			wrong := !slices.Equal(got, r.want)
			if r.any != nil {
				wrong = len(got) != r.n || slices.ContainsFunc(got, func(sms int) bool { return !slices.Contains(r.any, sms) })
			}
			if wrong {
				t.Errorf("SMs %v, want %s:\n%s", got, fmt.Sprint(r.want, r.any, r.n), c.Output(id))
			}
		})
	}
	t.Run("a member that is killed", func(t *testing.T) { c.killsAMember(setup, section) })
	c.Quiet()
}

// killsAMember runs the lines of recipes for GNU parallel and xargs with twelve cases, two at a time: a signal ends the
// member of the third case. All others end well after that, and the lists of bad ends name this member alone.
func (c *cluster) killsAMember(setup, section string) {
	t := c.T
	parallel := must.Get(exec.LookPath("parallel"))(t)
	setup += "ln -sf " + parallel + " path/parallel; rm cases/* member; touch cases/c{01..12}\n" +
		"printf '#!/bin/sh\\ncase $1 in *c03) kill -9 $$;; esac; sleep 0.3; echo ended $1\\n' >member; chmod +x member\n"
	for tool, list := range map[string]string{"parallel -j8 ": `awk '$7 != 0 || $8 != 0 {print $NF, $8}' failed | sed 1d`, "ls cases | xargs -P8 ": "cat failed"} {
		at := strings.Index(section, "\n"+tool)
		line, _, _ := strings.Cut(section[at+1:], "\n")
		line = strings.NewReplacer("-j8", "-j2 --joblog failed", "-P8", "-P2", "--slots=8", "--slots=2").Replace(line)
		id := c.Batch(setup+line+"\necho failed: $("+list+")\n", "-n2", "--gres=gpu:1")
		c.Ended(id)
		out := c.Output(id)
		want := regexp.MustCompile(`(?m)^failed: (cases/)?c03:? (9|137)$`)
		must.Hold(t, strings.Count(out, "ended ") == 11 && want.MatchString(out),
			"%s: want eleven ends and one failure, of c03:\n%s", line, out)
	}
}
