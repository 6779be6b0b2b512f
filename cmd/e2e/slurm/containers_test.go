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
