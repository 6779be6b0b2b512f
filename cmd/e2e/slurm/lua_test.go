// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// newScripted is a cluster whose Slurm runs one of the examples in Lua, and has --mps.
func newScripted(t *testing.T, plugin, script string) (*lab.Cluster, func(args ...string) lab.Result) {
	t.Helper()
	t.Parallel()
	if found, _ := filepath.Glob("/usr/lib/*/slurm-wlm/job_submit_lua.so"); len(found) == 0 || os.Getenv("SLURM_BUNDLE") != "" || len(lab.Missing()) > 0 {
		t.Skip("this Slurm has no Lua")
	}
	e2e.NeedRoot(t)
	user := must.Get(lab.EnsureUser(e2e.UserName, e2e.UID))(t)
	dir := e2e.PublicDir(t)
	content, err := os.ReadFile(filepath.Join("../../../site/etc", script))
	folder := filepath.Join(dir, "lab", "etc")
	must.OK(t, errors.Join(err, os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, script), content, 0o644)))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	c, err := lab.Start(ctx,
		lab.Options{Dir: filepath.Join(dir, "lab"), GPUs: 2, Features: "mps,a100,h200", Extra: []string{plugin + "=lua", "GresTypes=gpu,shard,mps"}})
	must.OK(t, err)
	t.Cleanup(func() { must.Note(t, c.Stop()) })
	spank := filepath.Join(dir, "slurm_mps.so")
	e2e.Runs(t, exec.Command("../../../site/spank/build.sh", "/usr/include", spank))
	must.OK(t, os.WriteFile(filepath.Join(folder, "plugstack.conf"), []byte("required "+spank+"\n"), 0o644))
	return c, func(args ...string) lab.Result {
		t.Helper()
		result, err := c.Run(ctx, user, "sbatch", append([]string{"--parsable", "--hold", "--wrap", "true"}, args...)...)
		must.OK(t, err)
		return result
	}
}

// A job that asks for MPS in any way runs on a node that has it. Other jobs are not changed.
func TestJobSubmitLua(t *testing.T) {
	c, submit := newScripted(t, "JobSubmitPlugins", "job_submit.lua")
	for args, want := range map[string]string{
		"--gres=gpu:1":                                        "(null)",
		"--gres=gpu:1 --constraint=nomps|a100":                "nomps|a100",
		"--gres=gpu:1 --comment=mpsimulation":                 "(null)",
		"--gres=gpu:1 --constraint=mps":                       "mps",
		"--gres=gpu:1 --constraint=a100&mps":                  "a100&mps",
		"--gres=gpu:1 --comment=mps":                          "mps",
		"--gres=gpu:1 --comment=mps:share=even":               "mps",
		"--gres=gpu:1 --mps":                                  "mps",
		"--gres=gpu:1 --mps=share=even --constraint=a100":     "a100&mps",
		"--gres=gpu:1 --comment=mps --constraint=a100|h200":   "(a100|h200)&mps",
		"--gres=gpu:1 --comment=mps --constraint=[a100|h200]": "[a100|h200]",
		"--gpus=1 --mps":                                      "mps",
	} {
		result := submit(strings.Fields(args)...)
		id := strings.TrimSpace(result.Stdout)
		if strings.Contains(args, "nomps") { // no node has this feature, and Slurm reports that
			must.Hold(t, result.Exit != 0, "%s: %+v", args, result)
			continue
		}
		if result.Exit != 0 {
			t.Errorf("%s: %+v", args, result)
			continue
		}
		shown, err := c.Run(context.Background(), lab.Root, "scontrol", "show", "job", id)
		if _, after, _ := strings.Cut(shown.Stdout, " Features="); err != nil || strings.Fields(after)[0] != want {
			_, after, _ := strings.Cut(shown.Stdout, "Features=")
			t.Errorf("%s: features %q, want %s, %v", args, strings.SplitN(after, " ", 2)[0], want, err)
		}
	}
	if result := submit("--gres=shard:1", "--constraint=mps"); strings.Contains(result.Stderr, "MPS") { // there are no shards, and Slurm reports that
		t.Errorf("shards: %+v", result)
	}
}

func TestCliFilterLua(t *testing.T) {
	_, submit := newScripted(t, "CliFilterPlugins", "cli_filter.lua")
	const noGPU = "a job with MPS needs a GPU: add --gres=gpu:N"
	for args, want := range map[string]string{
		"": "", "--gres=gpu:1": "", "--gres=gpu:1 --constraint=mps": "", "--gpus=1 --comment=mps": "", "--gpus-per-node=1 --constraint=mps": "",
		"--constraint=nomps|a100 --comment=mpsx": "Invalid feature specification", // Slurm's own word
		"--constraint=mps":                       noGPU, "--comment=mps:share=even": noGPU,
		"--mps": noGPU, "--mps --gres=gpu:1": "",
	} {
		result := submit(strings.Fields(args)...)
		must.Hold(t, (result.Exit == 0) == (want == "") && strings.Contains(result.Stderr, want),
			"%s: %+v, want %q", args, result, want)
	}
}
