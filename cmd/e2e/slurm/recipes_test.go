// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"errors"
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

// containers are the programs that each recipe of docs/recipes.md needs, by the recipe's title. The image's name
// comes with the option that mounts the simulated driver. Podman's default runtime refuses cgroup v1, and its network
// needs a device. A process of Podman outlives its containers, and the last command ends it.
var containers = map[string]struct{ programs, image, end string }{
	"Charliecloud": {"ch-run", "-b SIM IMAGE", ""},
	"Podman":       {"podman runc newuidmap", "--runtime=/usr/sbin/runc --network=none -v SIM:SIM --rootfs IMAGE", "podman system migrate"},
	"Apptainer":    {"apptainer", "--contain -B SIM --env LD_LIBRARY_PATH=SIM/lib IMAGE", ""},
}

// byHand is a script that makes a container with its own namespaces and folders. Its usage is: container FOLDER
// PROGRAM.
const byHand = `#!/bin/sh
exec unshare --map-root-user --mount --net --pid --fork --kill-child sh -ec '
for path in SIM $1; do mount --rbind $path IMAGE$path; done
mount --bind BIN/mpirun-wrap IMAGE/usr/bin/mpirun-wrap
mount -t proc proc IMAGE/proc
for path in dev tmp; do mount -t tmpfs tmpfs IMAGE/$path; done
shift
exec unshare --map-user=UID --map-group=UID --root=IMAGE "$@"' sh "$@"
`

// Every recipe of docs/recipes.md for containers works with the wrapper outside of the container and inside. The
// image holds the C library only, and the node's files are in no folder that containers share or replace.
func TestContainers(t *testing.T) {
	c := newCluster(t, testnode.Default(`share = "even"`), lab.Options{PrologFlags: "Alloc", Dir: e2e.PublicDirIn(t, "/srv")})
	s, image := c.First(), c.image()
	names := strings.NewReplacer("SIM", s.Sim.Dir, "BIN", s.Bin, "IMAGE", image, "UID", fmt.Sprint(e2e.UID))
	must.OK(t, node.WriteProgram(filepath.Join(c.Top, "container"), []byte(names.Replace(byHand))))
	// These are the names that a user writes, and what they are here.
	const inside = "/usr/bin/mpirun-wrap"
	here := strings.NewReplacer("./app", c.Client()+" info", "/run/slurm-mps", s.Paths().Run(), " --device nvidia.com/gpu=all", "",
		inside+":"+inside, s.Bin+"/mpirun-wrap:"+inside, inside, s.Bin+"/mpirun-wrap:"+inside,
		"mpirun-wrap ", "mpirun-wrap --root "+s.Root+" ")
	run := func(t *testing.T, image, line string, want ...string) {
		t.Helper()
		line = here.Replace(line)
		id := c.Batch("PATH="+s.Bin+":"+c.Top+":$PATH IMAGE='"+names.Replace(image)+"'\n"+line, "-n4", "--gres=gpu:2")
		c.Ended(id)
		out := c.Output(id)
		if got := e2e.SMCounts(t, out); want == nil && !slices.Equal(got, []int{66, 66, 66, 66}) {
			t.Errorf("%s: SMs %v:\n%s", line, got, out)
		}
		for _, sentence := range want {
			if sentence = here.Replace(sentence); !strings.Contains(out, sentence) {
				t.Errorf("%s: the output is\n%s\nwant %s", line, out, sentence)
			}
		}
	}
	t.Run("by hand", func(t *testing.T) {
		run(t, "", "srun mpirun-wrap container /run/slurm-mps ./app")
		run(t, "", "srun container /run/slurm-mps mpirun-wrap ./app")
		run(t, "", "srun mpirun-wrap container '' ./app", "sm=132")
		run(t, "", "srun container '' mpirun-wrap ./app",
			": there is no folder /run/slurm-mps/tickets here: in a container, mount /run/slurm-mps; if the site has not installed slurm-mps, give --own; elsewhere,")
	})
	_, section, _ := strings.Cut(e2e.Read(t, "../../../docs/recipes.md"), "\n## Containers\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, block := range recipeForm.FindAllStringSubmatch(section, -1) {
		t.Run(block[1], func(t *testing.T) {
			container, ok := containers[block[1]]
			if !ok {
				t.Skip("no test can run it")
			}
			for program := range strings.FieldsSeq(container.programs) {
				if _, err := exec.LookPath(program); err != nil {
					t.Skip("it cannot run here: ", err)
				}
			}
			users, _ := os.ReadFile("/etc/subuid")
			if block[1] == "Podman" && !strings.Contains(string(users), c.User.Name+":") {
				t.Skipf("it cannot run here: /etc/subuid has no line for %s", c.User.Name)
			}
			for line := range strings.Lines(block[2]) {
				run(t, container.image, line+container.end)
			}
		})
	}
	c.Quiet()
}

// image makes the root folder of a container. It has the C library, and the mount points.
func (c *cluster) image() string {
	c.T.Helper()
	image := filepath.Join(c.Top, "image")
	errs := []error{}
	for _, folder := range []string{"dev", "etc", "home", "proc", "run", "sys", "tmp", "usr/bin", "var/tmp", c.First().Paths().Run(), c.First().Sim.Dir} {
		errs = append(errs, os.MkdirAll(filepath.Join(image, folder), 0o755))
	}
	for _, file := range []string{"etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf", "usr/bin/mpirun-wrap"} {
		errs = append(errs, os.WriteFile(filepath.Join(image, file), nil, 0o755))
	}
	libraries, err := exec.CommandContext(c.Ctx, "ldd", c.Client()).Output()
	for _, path := range regexp.MustCompile(`/\S+`).FindAllString(string(libraries), -1) {
		content, err := os.ReadFile(path)
		errs = append(errs, err, os.MkdirAll(filepath.Dir(image+path), 0o755), os.WriteFile(image+path, content, 0o755))
	}
	must.OK(c.T, errors.Join(append(errs, err, exec.CommandContext(c.Ctx, "chown", "-R", fmt.Sprintf("%d:%[1]d", e2e.UID), image).Run())...))
	return image
}
