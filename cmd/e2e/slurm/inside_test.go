// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// inside plays jobs that a process of a job with MPS submits.
type inside struct {
	*cluster
	home  string
	outer int
}

// startInside starts a job with MPS on GPU 1, and then frees GPU 0. So the jobs that it submits have GPU 0, and index 0
// is in the list of its daemon, too.
func startInside(t *testing.T, o lab.Options, script string) inside {
	t.Helper()
	c := newCluster(t, testnode.Default(`drain_grace = "1s"`), o)
	home := must.Get(c.Home(c.User))(t)
	in := inside{cluster: c, home: home}
	client, libraries := c.Client(), c.First().Sim.Libraries()
	submit := "sbatch --parsable -o " + home + "/%j.0.out "
	for name, text := range map[string]string{
		"info": "echo '['; " + client + " info -v; env | grep ^CUDA_MPS_; echo ']'",
		"long": client + " spin -ms 5 -for 120 & until [ -e free ]; do sleep 0.1; done\nkill $!; wait $!; echo rc=$?",
		// The submitter's name for the job, and sbatch's arguments.
		"submit": `name=$1; shift; [ ${SLURM_PROCID:-0} = 0 ] && echo "$name=$(` + submit + ` "$@")="`,
	} {
		text = "#!/bin/bash\nexport LD_LIBRARY_PATH=" + libraries + "\ncd " + home + "\n" + text + "\n"
		must.OK(t, node.WriteProgram(filepath.Join(home, name), []byte(text)))
	}
	filler := c.Batch("until [ -e go ]; do sleep 0.1; done", "--gres=gpu:1", "--constraint=a100")
	in.outer = c.Batch(c.Wrap("info -v")+"; until [ -e begin ]; do sleep 0.1; done\n"+script+
		"\nuntil [ -e end ]; do sleep 0.1; done", "-n2", "--gres=gpu:1")
	in.prints(in.outer, "err=0")
	in.touch("go")
	c.Ended(filler)
	in.touch("begin")
	return in
}

// touch makes a file for which a script waits.
func (in inside) touch(name string) {
	in.T.Helper()
	must.OK(in.T, os.WriteFile(filepath.Join(in.home, name), nil, 0o644))
}

// prints waits until a job has printed a text.
func (in inside) prints(id int, text string) {
	in.T.Helper()
	if !e2e.Comes(func() bool { return strings.Contains(in.Output(id), text) }) {
		in.T.Fatalf("job %d has not printed %q:\n%s\n%s", id, text, in.Output(id), in.Log())
	}
}

// submitted returns the number of a job that the outer job has submitted.
func (in inside) submitted(name string) int {
	in.T.Helper()
	in.prints(in.outer, "\n"+name+"=")
	number := regexp.MustCompile("\n" + name + `=(\d+)=`).FindStringSubmatch(in.Output(in.outer))
	if number == nil {
		in.T.Fatalf("%s was not submitted:\n%s", name, in.Output(in.outer))
	}
	id, _ := strconv.Atoi(number[1])
	return id
}

var wholeGPU = regexp.MustCompile(`(?s)\[\nerr=0\(cudaSuccess\) sm=132 ndev=1 [^\n]* uuid=(GPU-\S+)\n\]`)

// A job without MPS that a process of a job with MPS submits computes on its own GPU, with all of it, and outlives the
// submitter.
func TestAJobWithoutMPSFromInside(t *testing.T) {
	const gpu, rank = " --gres=gpu:1 ", "srun -n1 ../../../mpirun-wrap --share=25% --mem=8G "
	in := startInside(t, lab.Options{PrologFlags: "Alloc"}, strings.Join([]string{
		rank + "./submit long" + gpu + "long",
		rank + "./submit rank" + gpu + "info", rank + "./submit rank-nil --export=NIL" + gpu + "info",
		"./submit batch" + gpu + "info", "./submit batch-nil --export=NIL" + gpu + "info",
		"srun -n1 bash -c './submit shell" + gpu + "info'",
		"./submit array --array=0" + gpu + "info",
		"./submit step" + gpu + "--wrap 'srun -n1 ./info'",
		rank + "salloc" + gpu + "srun -n1 ./info >salloc.out",
		rank + "env -u SLURM_JOB_ID -u SLURM_JOBID srun" + gpu + "-n1 ./info >srun.out; echo all",
	}, "\n"))
	in.prints(in.outer, "all\n")
	printed := map[string]string{}
	for _, name := range []string{"rank", "rank-nil", "batch", "batch-nil", "shell", "array", "step"} {
		id := in.submitted(name)
		in.Ended(id)
		printed[name] = in.Output(id)
	}
	for _, name := range []string{"salloc", "srun"} {
		printed[name] = e2e.Read(t, filepath.Join(in.home, name+".out"))
	}
	for name, text := range printed {
		if found := wholeGPU.FindStringSubmatch(text); found == nil || strings.Contains(in.Output(in.outer), found[1]) {
			t.Errorf("%s: it has no whole GPU of its own:\n%s\nthe submitter:\n%s", name, text, in.Output(in.outer))
		}
	}
	long := in.submitted("long")
	in.prints(long, " ready")
	in.touch("end")
	in.Ended(in.outer)
	in.touch("free")
	in.Ended(long)
	if !strings.HasSuffix(in.Output(long), "rc=143\n") { // of its own script's SIGTERM
		t.Errorf("it has died with its submitter:\n%s\n%s", in.Output(long), in.Log())
	}
	in.Quiet()
}

// A batch script that a task of a step submits is not taken for a task of that step: it sees all GPUs of its job. The
// node shows the step by the step daemon's title, and by the control groups if there are any.
func TestABatchScriptFromAStep(t *testing.T) {
	script, exports := "", []string{"ALL", "NIL", "NONE"}
	for _, export := range exports {
		script += fmt.Sprintf("srun -n2 ./submit %s --export=%[1]s --gres=gpu:2 --constraint=mps -n2 info\n", export)
	}
	for name, groups := range map[string]bool{"titles": false, "control groups": true} {
		t.Run(name, func(t *testing.T) {
			in := startInside(t, lab.Options{PrologFlags: "Alloc", ConstrainDevices: groups}, script)
			for _, export := range exports {
				id := in.submitted(export)
				in.Ended(id)
				if !strings.Contains(in.Output(id), " ndev=2 ") {
					t.Errorf("%s: it does not see two GPUs:\n%s", export, in.Output(id))
				}
			}
			in.touch("end")
			in.Ended(in.outer)
			in.Quiet()
		})
	}
}

// Slurm overwrites each variable that the table of variables says it sets, whatever a submitter has handed on.
func TestSlurmOverwritesASubmittersVariables(t *testing.T) {
	c := newCluster(t, "", lab.Options{PrologFlags: "Alloc"})
	home := must.Get(c.Home(c.User))(t)
	inTasks := append(slurm.Names(slurm.ByTask), slurm.Names(slurm.ByGPUs)...)
	inSteps := slurm.Names(slurm.ByStep)
	export := "--export=ALL," + strings.Join(slices.Concat(inTasks, inSteps), "=planted,") + "=planted"
	id := c.Batch("env >batch; srun -n2 sh -c 'env >step$SLURM_PROCID'; srun -n2 --gpu-bind=single:1 sh -c 'env >bound$SLURM_PROCID'; "+
		"srun --gres=none sh -c 'env >none'", "--gres=gpu:2", "-n2", export)
	c.Ended(id)
	for file, names := range map[string][]string{
		"batch": inTasks, "none": inTasks, "step0": slices.Concat(inTasks, inSteps), "bound1": slices.Concat(inTasks, inSteps),
	} {
		env := slurm.ParseEnv(strings.Split(e2e.Read(t, filepath.Join(home, file)), "\n"))
		if env["SLURM_JOB_ID"] != strconv.Itoa(id) {
			t.Fatalf("%s: %v\n%s", file, env, c.Output(id))
		}
		left := []string{"SLURM_CPU_BIND_TYPE", "SLURM_JOB_END_TIME"} // none binds processors here; 22.05 sets no end
		if file != "bound1" {
			left = append(left, "SLURMD_TRES_BIND") // so package launch compares it with the task's GPUs
		}
		for _, name := range names {
			must.Hold(t, env[name] != "planted" || slices.Contains(left, name), "%s: Slurm has left %s", file, name)
		}
	}
	c.Quiet()
}
