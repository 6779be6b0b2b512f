// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
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
)

// Every way to start four ranks on two GPUs gives each rank half a GPU.
func TestRanksUnderSlurm(t *testing.T) {
	c := newCluster(t, testnode.Default(`share = "even"`), lab.Options{PrologFlags: "Alloc", SameName: true})
	want := []int{66, 66, 66, 66}
	for _, launch := range []struct{ name, command string }{
		{"srun", "srun -n4"},
		{"srun pmi2", "srun --mpi=pmi2 -n4"},
		{"srun pmix", "srun --mpi=pmix -n4"},
		{"mpirun of Open MPI", "mpirun.openmpi -np 4"},
		{"mpiexec of MPICH", "mpiexec.hydra -n 4"},
	} {
		t.Run(launch.name, func(t *testing.T) {
			if launch.name == "srun pmix" && !lab.HasPMIx(os.Getenv("SLURM_BUNDLE")) {
				t.Skip("this Slurm has no mpi/pmix")
			}
			id := c.Batch(launch.command+" "+c.Wrap("info"), "-n4", "--gres=gpu:2")
			job := c.Ended(id)
			if got := e2e.SMCounts(t, c.Output(id)); !slices.Equal(got, want) {
				t.Errorf("SMs %v, want %v: %+v\n%s\n%s", got, want, job, c.Output(id), c.Log())
			}
		})
	}
	t.Run("srun alone", func(t *testing.T) {
		result, err := c.Run(c.Ctx, c.User, "srun", "-n4", "--gres=gpu:2", "--constraint=mps", "bash", "-c",
			"exec "+c.Wrap("info"))
		if got := e2e.SMCounts(t, result.Stdout); err != nil || !slices.Equal(got, want) {
			t.Errorf("SMs %v, want %v: %+v, %v", got, want, result, err)
		}
	})
	wrapper := filepath.Join(c.Top, "mpirun-wrap") + " "
	for _, chosen := range []struct{ name, command, want string }{
		{"GPUs by their numbers", "srun -n2 " + wrapper + "--ids=index sh -c 'echo $SLURM_PROCID has $CUDA_VISIBLE_DEVICES; exec " + c.Client() + " info -v'",
			`(?s)(0 has 0.*1 has 1|1 has 1.*0 has 0)`},
		{"a user's own pins", "for i in 1 0; do CUDA_VISIBLE_DEVICES=$i " + wrapper + "-v " + c.Client() + " info -v; done",
			`(?s)GPU 1 .*GPU by CUDA_VISIBLE_DEVICES.*GPU 0 .*GPU by CUDA_VISIBLE_DEVICES`},
		{"a pin that a launcher's ranks do not take", "CUDA_VISIBLE_DEVICES=1 mpirun.openmpi -np 2 " + wrapper + c.Client() + " info -v",
			`ignoring CUDA_VISIBLE_DEVICES="1": `},
	} {
		t.Run(chosen.name, func(t *testing.T) {
			id := c.Batch(chosen.command, "-n2", "--gres=gpu:2")
			c.Ended(id)
			uuids := regexp.MustCompile(`err=0\(.* uuid=(\S+)`).FindAllStringSubmatch(c.Output(id), -1)
			if len(uuids) != 2 || uuids[0][1] == uuids[1][1] || !regexp.MustCompile(chosen.want).MatchString(c.Output(id)) {
				t.Errorf("want two GPUs and %s:\n%s", chosen.want, c.Output(id))
			}
		})
	}
	for _, flagged := range []struct {
		name, command, gres string
		want                []int
	}{
		{"two programs in one mpirun", "SLURM_MPS_SHARE=3:1:1:1 mpirun.openmpi -np 1 " + c.Wrap("info") + " : -np 3 " + c.Wrap("info"),
			"--gres=gpu:1", []int{22, 22, 22, 66}},
		{"a list", "srun -n4 " + wrapper + "--share=40%,30%,20%,10% " + c.Client() + " info", "--gres=gpu:1", []int{14, 26, 40, 52}},
		{"a list for each GPU", "srun -n4 " + wrapper + "--share=3:1 " + c.Client() + " info", "--gres=gpu:2", []int{32, 32, 100, 100}},
		{"a variable for all", "SLURM_MPS_SHARE=overlap:2 srun -n4 " + c.Wrap("info"), "--gres=gpu:1", []int{66, 66, 66, 66}},
		{"blocks", "srun -n3 " + wrapper + "--gpu=block " + c.Client() + " info", "--gres=gpu:2", []int{66, 66, 132}},
		{"a GPU for each task", "srun -n4 " + c.Wrap("info"), "--gpus-per-task=1", []int{132, 132, 132, 132}},
	} {
		t.Run(flagged.name, func(t *testing.T) {
			id := c.Batch(flagged.command, "-n4", flagged.gres)
			c.Ended(id)
			if got := e2e.SMCounts(t, c.Output(id)); !slices.Equal(got, flagged.want) {
				t.Errorf("SMs %v, want %v:\n%s", got, flagged.want, c.Output(id))
			}
		})
	}
	t.Run("an array and a job side by side", func(t *testing.T) {
		array := c.Batch("srun -n2 "+c.Wrap("info"), "-n2", "--gres=gpu:1", "--array=0-2")
		alone := c.Batch("srun -n2 "+c.Wrap("info"), "-n2", "--gres=gpu:1")
		c.Ended(array)
		c.Ended(alone)
		if got := e2e.SMCounts(t, c.Output(array)+c.Output(alone)); !slices.Equal(got, slices.Repeat(want, 2)) {
			t.Errorf("SMs %v of eight ranks:\n%s%s", got, c.Output(array), c.Output(alone))
		}
	})
	t.Run("the task prolog's placement without the wrapper", func(t *testing.T) {
		id := c.Batch("srun -n4 "+c.Client()+" info", "-n4", "--gres=gpu:2")
		c.Ended(id)
		if got := e2e.SMCounts(t, c.Output(id)); !slices.Equal(got, want) {
			t.Errorf("SMs %v, want %v:\n%s", got, want, c.Output(id))
		}
	})
	c.Quiet()
}

func TestAnAllocationWithoutAStep(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{"Alloc", ""} {
		t.Run("PrologFlags="+flags, func(t *testing.T) {
			c := newCluster(t, "", lab.Options{PrologFlags: flags})
			c.Does(c.User, "salloc", "--gres=gpu:1", "--constraint=mps", "true")
			c.Quiet()
		})
	}
}

func TestAJobWithoutMPSUnderSlurm(t *testing.T) {
	c := newCluster(t, "", lab.Options{PrologFlags: "Alloc"})
	result, err := c.Run(c.Ctx, c.User, "srun", "--gres=gpu:1", filepath.Join(c.Top, "mpirun-wrap"), "true")
	want := "cannot find ticket of job"
	must.Hold(t, err == nil && result.Exit == 125 && strings.Contains(result.Stdout+result.Stderr, want),
		"%+v, %v: want 125 and %q", result, err, want)
	result, err = c.Run(c.Ctx, c.User, "srun", "--gres=gpu:1", "true")
	must.Hold(t, err == nil && result.Exit == 0, "%+v, %v", result, err)
	c.Quiet()
}

// If a user forgets the GPU, TaskProlog or the wrapper prints the reason, and no node is drained.
func TestAMistakeOfTheUsersDrainsNothing(t *testing.T) {
	c := newCluster(t, "", lab.Options{PrologFlags: "Alloc"})
	result, err := c.Run(c.Ctx, c.User, "srun", "--constraint=mps", filepath.Join(c.Top, "mpirun-wrap"), "true")
	want := "has no GPU on node n1: submit it with --gres=gpu:N"
	must.Hold(t, err == nil && result.Exit == 125 && strings.Contains(result.Stdout+result.Stderr, want),
		"%+v, %v: want 125 and %q", result, err, want)
	c.Quiet()
}

func TestACancelledJob(t *testing.T) {
	c := newCluster(t, testnode.Default(`drain_grace = "1s"`), lab.Options{PrologFlags: "Alloc"})
	id := c.Batch("srun -n4 "+c.Wrap("spin -ms 5 -for 60"), "-n4", "--gres=gpu:2")
	c.Running(id)
	c.Does(c.User, "scancel", strconv.Itoa(id))
	c.Ended(id)
	c.Quiet()
}

// A requeued job runs again with its share.
//
// Slurm starts it when its old credential has expired, which is after two minutes by default. If it is started at
// once, it gets no second prolog (seen on 22.05), and its wrapper refuses. So the test uses a credential with a short
// life, and does not shorten the wait.
func TestARequeuedJob(t *testing.T) {
	o := lab.Options{PrologFlags: "Alloc"}
	o.Extra = []string{"AuthInfo=socket=%D/run/munge.socket,cred_expire=5"}
	c := newCluster(t, testnode.Default(`drain_grace = "1s"`), o)
	id := c.Batch("if [ $SLURM_RESTART_COUNT ]; then srun -n4 "+c.Wrap("info")+"; else srun -n4 "+c.Wrap("spin -ms 5 -for 60")+"; fi",
		"-n4", "--gres=gpu:2", "--requeue", "--open-mode=append")
	c.Running(id)
	c.Does(lab.User{}, "scontrol", "requeue", strconv.Itoa(id))
	if j, err := c.WaitJobUntil(c.Ctx, id, func(j lab.Job) bool { return j.State == "COMPLETED" }); err != nil {
		t.Fatalf("%+v, %v\n%s", j, err, c.Log())
	}
	c.Quiet()
	if got := e2e.SMCounts(t, c.Output(id)); len(got) != 4 {
		t.Errorf("ranks after the requeue: %v\n%s", got, c.Output(id))
	}
}

// slurmd is killed in the middle of a job and starts again, and the job keeps its daemon. Without PrologFlags=Alloc
// the prolog then runs again for the running job.
func TestSlurmdKilledInMidJob(t *testing.T) {
	c := newCluster(t, testnode.Default(`drain_grace = "1s"`), lab.Options{})
	id := c.Batch("srun -n4 "+c.Wrap("spin -ms 5 -for 5"), "-n4", "--gres=gpu:2")
	c.Running(id)
	before := c.First().Ticket(uint32(id)).Daemons[0].Proc
	must.OK(t, c.KillNode("n1"))
	must.OK(t, c.StartNode("n1"))
	if after := c.First().Ticket(uint32(id)).Daemons[0].Proc; after != before || !e2e.Alive(after) {
		t.Errorf("the daemon was %v and is %v", before, after)
	}
	c.Ended(id)
	c.Quiet()
}

// Without the wrapper, a program in the batch script, its children and ranks of mpirun are clients of MPS, except
// with unplaced = "deny".
func TestUnplacedProcessesUnderSlurm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, grant, script, want, without string }{
		{"batch script", "", "CLIENT info", "err=0(cudaSuccess) sm=132 ndev=2", ""},
		{"child that sees one of two GPUs", "", "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES##*,} CLIENT info", "err=0(cudaSuccess) sm=132 ndev=1", ""},
		{"below the ceiling", "ceiling = 25", "CLIENT info", "err=0(cudaSuccess) sm=32 ndev=2", ""},
		{"ranks of mpirun without the wrapper", "", "mpirun -np 2 --oversubscribe CLIENT info", "err=0(cudaSuccess) sm=132 ndev=2", "err=46"},
		{"ranks of the wrapper in the same job", `memory = "even"`,
			"srun -n2 WRAP info; mpirun -np 2 --oversubscribe WRAP info", "err=0(cudaSuccess) sm=132 ndev=1", "ndev=2"},
		{"denied", `unplaced = "deny"`, "CLIENT info", "err=46", "err=0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := newCluster(t, testnode.Default(c.grant), lab.Options{PrologFlags: "Alloc"})
			wrapper := filepath.Join(cl.Top, "mpirun-wrap") + " " + cl.Client()
			id := cl.Batch(strings.NewReplacer("CLIENT", cl.Client(), "WRAP", wrapper).Replace(c.script), "-n2", "--gres=gpu:2")
			cl.Ended(id)
			out := cl.Output(id)
			must.Hold(t, strings.Contains(out, c.want) && (c.without == "" || !strings.Contains(out, c.without)),
				"the output is\n%s", out)
		})
	}
}

// A job prints once why it has no MPS: its task prolog does, and then no step and no wrapper does. Without a task prolog,
// the wrapper does. The program does not inherit the variable that tells the wrapper.
func TestAReasonIsPrintedOnce(t *testing.T) {
	t.Parallel()
	const reason = "this job has no MPS: "
	const failed = "\ncode 125\n"
	for _, c := range []struct {
		name, script string
		prolog       bool
		want         []string // each once
		not          string
	}{
		{"a step", "srun -n2 WRAP true", true, []string{"slurm-mps: " + reason, failed}, "mpirun-wrap:"},
		{"the program's variables", "srun -n1 --gpus=1 env SLURM_MPS_TOLD=x WRAP env", true, []string{"SLURM_STEP_ID=", "\ncode 0\n"}, "SLURM_MPS_TOLD"},
		{"no task prolog", "srun -n2 WRAP true", false, []string{"mpirun-wrap: " + reason, failed}, "slurm-mps:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := newCluster(t, testnode.Default(""), lab.Options{PrologFlags: "Alloc"})
			if !c.prolog {
				must.OK(t, node.WriteProgram(filepath.Join(cl.Top, "task-prolog"), []byte("#!/bin/sh\n")))
			}
			args := []string{"-n2"}
			if strings.Contains(c.script, "--gpus") {
				args = append(args, "--gres=gpu:1")
			}
			wrapper := filepath.Join(cl.Top, "mpirun-wrap")
			id := cl.Batch(strings.ReplaceAll(c.script, "WRAP", wrapper)+"; echo code $?", args...)
			cl.Ended(id)
			out := cl.Output(id)
			for _, want := range c.want {
				if n := strings.Count(out, want); n != 1 {
					t.Errorf("%q is printed %d times:\n%s", want, n, out)
				}
			}
			must.Hold(t, !strings.Contains(out, c.not), "%q is printed:\n%s", c.not, out)
		})
	}
}
