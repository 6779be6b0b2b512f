// SPDX-License-Identifier: Apache-2.0

package real_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// realPrograms is a Slurm on the machine's real GPUs. Its jobs run programs as users write them.
type realPrograms struct {
	*lab.Cluster
	t       *testing.T
	ctx     context.Context
	user    lab.User
	gpus    int
	sms     int // of the first GPU
	exports string
	machine testnode.Node
}

func newPrograms(t *testing.T, attributes ...string) *realPrograms {
	t.Helper()
	if !onRealGPUs() {
		t.Skip("needs real GPUs: CONFORMANCE_TARGET=real, as site/lab/gpu.sh programs sets it")
	}
	p := &realPrograms{t: t, gpus: min(testnode.RealGPUs(), 2)}
	only := os.Getenv("ONLY_GPU") // two runs at once have a GPU each
	if only != "" {
		p.gpus = 1
	}
	built, err := e2e.Built()
	if err != nil {
		t.Fatal(err)
	}
	if p.sms, err = countSMs(); err != nil {
		t.Fatal(err)
	}
	if p.user, err = lab.EnsureUser(e2e.UserName, e2e.UID); err != nil {
		t.Fatal(err)
	}
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithTimeout(context.Background(), 9*time.Minute)
	t.Cleanup(cancel)
	dir := e2e.PublicDir(t)
	machine, err := testnode.Real(filepath.Join(dir, "n"), built, testnode.Default(append(attributes, testnode.Compute())...))
	if err != nil {
		t.Fatal(err)
	}
	o := lab.Options{Dir: filepath.Join(dir, "lab"), GPUs: p.gpus, CPUs: 96, Features: "mps", PrologFlags: "Alloc",
		SameName: true, Bundle: os.Getenv("SLURM_BUNDLE"), DevDir: "/dev"}
	if only != "" {
		o.GresConf = fmt.Sprintf("Name=gpu File=/dev/nvidia%s\n", only)
	}
	o.Prolog, o.Epilog, o.TaskProlog = machine.Command("prolog"), machine.Command("epilog"), machine.Command("task-prolog")
	if p.Cluster, err = lab.Start(p.ctx, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must.Note(t, p.Stop()) })
	p.exports, p.machine = p.environment(dir, machine), machine
	return p
}

// countSMs asks the driver.
func countSMs() (int, error) {
	nvml, err := gpu.OpenTimeout(testnode.RealNVML(), time.Minute)
	if err != nil {
		return 0, err
	}
	defer nvml.Close()
	seen, err := nvml.List()
	if err == nil && len(seen) == 0 {
		err = errors.New("cannot count SMs: the driver shows no GPU")
	}
	if err != nil {
		return 0, err
	}
	return seen[0].Device.SMs, seen[0].Err
}

// part is a pattern of the SMs that a rank has of n that share the job's GPUs evenly: they get whole TPCs.
func (p *realPrograms) part(n int) string {
	least := p.sms * p.gpus / (2 * n)
	return fmt.Sprintf("(%d|%d)", 2*least, 2*least+2)
}

// environment is what the programs need: Python, the files of the test, the wrapper, and GNU parallel if the pack has
// it.
func (p *realPrograms) environment(dir string, machine testnode.Node) string {
	p.t.Helper()
	bin := filepath.Join(dir, "bin")
	text, err := os.ReadFile(filepath.Join(os.Getenv("BUILT_FOLDER"), "programs", "programs.py"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "programs.py"), text, 0o644)
	}
	if err == nil {
		err = os.Mkdir(bin, 0o755)
	}
	for _, program := range []string{"mpirun-wrap", "mpsctl"} {
		if err == nil {
			line := "#!/bin/sh\nexec " + strings.Join(machine.Command(program), " ") + " \"$@\"\n"
			err = node.WriteProgram(filepath.Join(bin, program), []byte(line))
		}
	}
	if err != nil {
		p.t.Fatal(err)
	}
	if parallel, err := os.ReadFile(filepath.Join(os.Getenv("BUILT_FOLDER"), "programs", "parallel")); err == nil {
		_ = node.WriteProgram(filepath.Join(bin, "parallel"), parallel)
	}
	python := must.Get(exec.LookPath("python3"))(p.t)
	exports := fmt.Sprintf("ulimit -c 0\nexport PATH=%s:%s:$PATH PROGRAMS='python3 %s/programs.py'\nexport LD_LIBRARY_PATH=%s:$LD_LIBRARY_PATH\nexport PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 HOME=/tmp PARALLEL_HOME=/tmp\n",
		bin, filepath.Dir(python), dir, os.Getenv("LD_LIBRARY_PATH"))
	for _, entry := range machineEnvironment() {
		exports += "export " + entry + "\n"
	}
	return exports
}

// run runs a batch script to its end, and returns what it prints and how long it takes.
func (p *realPrograms) run(script string, args ...string) (string, time.Duration) {
	p.t.Helper()
	home := must.Get(p.Home(p.user))(p.t)
	path := filepath.Join(home, fmt.Sprintf("job%d.sh", time.Now().UnixNano()))
	must.OK(p.t, node.WriteProgram(path, []byte("#!/bin/bash\n"+p.exports+script+"\n")))
	out := path + ".out"
	args = append([]string{"-N1", "-n16", fmt.Sprintf("--gres=gpu:%d", p.gpus), "-o", out}, args...)
	began := time.Now()
	id := must.Get(p.Submit(p.ctx, p.user, append(args, path)...))(p.t)
	if _, err := p.WaitJob(p.ctx, id); err != nil {
		p.t.Fatal(err)
	}
	took := time.Since(began)
	text, _ := os.ReadFile(out)
	fmt.Printf("--- %s, %.1f s\n$ %s\n%s", p.t.Name(), took.Seconds(), strings.TrimSpace(script), text)
	return string(text), took
}

// Programs that users run without the wrapper, with it, and as ensembles are clients of MPS. Each program sees as
// many SMs as its share has.
func TestRealPrograms(t *testing.T) {
	p := newPrograms(t, `share = "even"`)
	half, part := "export SLURM_MPS_SHARE=50%\n", p.part(2*p.gpus) // of a GPU
	for _, c := range []struct {
		name, before, script string
		want                 string // a pattern of a line
		lines                int
	}{
		{"torch in the batch script", "", "$PROGRAMS torch_pool", fmt.Sprintf(`torch multiprocessing: sms=%d `, p.sms), 4},
		{"torch with a share", half, "$PROGRAMS torch_pool", `torch multiprocessing: sms=` + part + ` `, 4},
		{"joblib", half, "$PROGRAMS joblib_pool", `joblib: sms=` + part + ` `, 4},
		{"workers that see one GPU", half, "$PROGRAMS executor",
			`workers that see one GPU: sms=` + part + ` .*visible=GPU-[^,\n]*$`, 4},
		{"cupy", half, "$PROGRAMS cupy_work", `cupy: sms=` + part + ` `, 1},
		{"jax", half, "$PROGRAMS jax_work", fmt.Sprintf(`jax: %d devices`, p.gpus), 1},
		{"a shell of Python, as a notebook's kernel", half, "$PROGRAMS python_shell", `cell: 1000 ` + part, 1},
		{"device by local rank", "", "srun -n4 mpirun-wrap --gpu=all $PROGRAMS by_local_rank",
			fmt.Sprintf(`rank \d of %d devices: sms=%s `, p.gpus, p.part(4)), 4},
		{"lightning", "", "srun -n4 mpirun-wrap $PROGRAMS lightning",
			fmt.Sprintf(`lightning: sms=%s steps=100`, p.part(4)), 4},
		{"jax by ranks", "", "srun -n4 mpirun-wrap $PROGRAMS jax_work", `jax: 1 devices`, 4},
		{"mpi4py", "", "mpirun.openmpi -np 4 --oversubscribe --bind-to none mpirun-wrap $PROGRAMS mpi_buffers", `mpi4py: rank \d of 4: right`, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := *p
			q.t = t
			// The submitter sets the variable, because it must be there when TaskProlog runs.
			args := []string{"--constraint=mps"}
			if c.before != "" {
				args = append(args, "--export=ALL,SLURM_MPS_SHARE=50%")
			}
			out, _ := q.run(c.script, args...)
			if got := len(regexp.MustCompile(`(?m)^`+c.want).FindAllString(out, -1)); got != c.lines {
				t.Errorf("%d lines like %q, want %d", got, c.want, c.lines)
			}
		})
	}
}

// Numbers in CUDA_VISIBLE_DEVICES mean the rank's own GPU, a limit of memory holds beside them, and a user's own pins
// count. A daemon that is killed during its job is in the job's report.
func TestRealNumbers(t *testing.T) {
	p := newPrograms(t)
	const promised = `export WANT=$(mpirun-wrap --dry-run --json | grep -o "GPU-[0-9a-f-]*" | head -1); `
	for _, c := range []struct {
		name, script, want string
		lines              int
	}{
		{"a rank's GPU", "srun -n4 sh -c '" + promised + "exec mpirun-wrap --ids=index --mem=2G $PROGRAMS numbers'",
			`numbers: first=\d count=1 right, limit holds`, 4},
		{"all GPUs", "srun -n2 sh -c '" + promised + "exec mpirun-wrap --ids=index --gpu=all $PROGRAMS numbers'",
			fmt.Sprintf(`numbers: first=0 count=%d `, p.gpus), 2},
		{"pins", fmt.Sprintf("for i in $(seq 0 %d); do CUDA_VISIBLE_DEVICES=$i mpirun-wrap -v $PROGRAMS member 1; done", p.gpus-1),
			fmt.Sprintf(`member sms=%d gpu=GPU-`, p.sms), p.gpus},
		{"a killed daemon", "mpirun-wrap $PROGRAMS member 9000 & sleep 6; pkill -9 -u $(id -u) -f 'mps-control -d'; wait; sleep 12; mpsctl report",
			`.*The job's MPS daemon ended before the job`, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := *p
			q.t = t
			out, _ := q.run(c.script, "--constraint=mps")
			found := regexp.MustCompile(`(?m)^`+c.want).FindAllString(out, -1)
			gpus := regexp.MustCompile(`gpu=GPU-\S+`).FindAllString(out, -1)
			slices.Sort(gpus)
			must.Hold(t, len(found) == c.lines && len(slices.Compact(gpus)) == len(gpus),
				"%d lines like %q on %v, want %d on GPUs of their own", len(found), c.want, gpus, c.lines)
		})
	}
}

// All members of an ensemble do the same work and end well: in slots, in one srun, and without MPS. With MPS, members
// have their share of the SMs.
func TestRealEnsemble(t *testing.T) {
	p := newPrograms(t, `share = "even"`)
	const members = 128
	slots := fmt.Sprintf("seq %d | xargs -P16 -I{} mpirun-wrap --slots=16 $PROGRAMS member", members)
	steps := fmt.Sprintf("srun -n16 mpirun-wrap sh -c 'for i in $(seq %d); do $PROGRAMS member; done'", members/16)
	shared := fmt.Sprintf("seq %d | xargs -P16 -I{} sh -c 'export CUDA_VISIBLE_DEVICES=$(({} %% %d)); exec $PROGRAMS member'", members, p.gpus)
	share := p.sms * p.gpus / 16
	for _, c := range []struct {
		name, script string
		mps          bool
	}{
		{"slots by xargs", slots, true}, {"one srun", steps, true}, {"slots by parallel",
			fmt.Sprintf("seq %d | parallel -j16 mpirun-wrap --slots=16 $PROGRAMS member 60 '#'", members), true},
		{"time-slicing", shared, false}, {"one srun again", steps, true}, {"slots by xargs again", slots, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := os.Stat(filepath.Join(os.Getenv("BUILT_FOLDER"), "programs", "parallel")); err != nil && strings.Contains(c.script, "parallel") {
				t.Skip("the pack has no GNU parallel")
			}
			q := *p
			q.t = t
			var args []string
			if c.mps {
				args = append(args, "--constraint=mps")
			}
			script := "out=/tmp/members.$SLURM_JOB_ID began=$(date +%s%3N)\n" + c.script +
				" >$out 2>&1\necho took $(($(date +%s%3N) - began)) ms\ngrep -c '^member' $out; sort $out | uniq -c | head -12; rm $out"
			out, _ := q.run(script, args...)
			must.Hold(t, strings.Contains(out, fmt.Sprintf("\n%d\n", members)), "not every member has ended well")
			low, high := share-2, share+2
			found := 0
			for n := low; n <= high; n++ {
				found += strings.Count(out, fmt.Sprintf("member sms=%d ", n))
			}
			must.Hold(t, !c.mps || found != 0, "no member has about %d SMs", share)
		})
	}
}
