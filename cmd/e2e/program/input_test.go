// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// Every bad input of an admin or of Slurm gives one exact message and exit code 1.
func TestBadInputOfRootsPrograms(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	prolog, epilog := p.Job(7, "0").Environment("prolog_slurmd"), p.Job(7, "0").Environment("epilog_slurmd")
	const fromSlurmd = "slurmd sets it, so run this as slurmd's script and not by hand"
	for _, c := range []struct {
		program string
		env     []string
		args    []string
		want    string
	}{
		{"prolog", nil, nil, "cannot read job: SLURM_SCRIPT_CONTEXT is not set: run this as slurmd's Prolog= in slurm.conf"},
		{"prolog", epilog, nil, `cannot read job: SLURM_SCRIPT_CONTEXT is "epilog_slurmd", want "prolog_slurmd": run this as slurmd's Prolog= in slurm.conf`},
		{"epilog", prolog, nil, `cannot read job: SLURM_SCRIPT_CONTEXT is "prolog_slurmd", want "epilog_slurmd": run this as slurmd's Epilog= in slurm.conf`},
		{"prolog", e2e.Without(prolog, "SLURM_JOB_ID"), nil, "cannot read job: SLURM_JOB_ID is not set: " + fromSlurmd},
		{"epilog", e2e.Without(epilog, "SLURM_JOB_ID"), nil, "cannot read job: SLURM_JOB_ID is not set: " + fromSlurmd},
		{"prolog", e2e.Without(prolog, "SLURM_JOB_UID"), nil, "cannot read job: SLURM_JOB_UID is not set: " + fromSlurmd},
		{"prolog", nil, []string{"--rooot"}, "cannot read flags: unknown flag: --rooot: did you mean --root?"},
		{"prolog", prolog, []string{"now"}, `cannot take "now": prolog takes only flags: see prolog --help`},
		{"epilog", epilog, []string{"--root", "rel"}, `cannot use --root "rel": give an absolute path`},
	} {
		result, err := p.Run(p.Ctx, c.env, c.program, c.args...)
		if want := c.program + ": " + c.want + "\n"; err != nil || result.Code != 1 || result.Output != want {
			t.Errorf("%s %q: code %d, %v\n got  %s want %s", c.program, c.args, result.Code, err, result.Output, want)
		}
	}
	p.Clean()
}

// A file of Slurm's that cannot be read refuses the job, whose ticket has the reason. It drains no node.
func TestAJobWithoutAGresConf(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	must.OK(t, os.Remove(p.Gres()))
	p.Must(0, p.Job(7, "0"), "prolog")
	if got := p.Ticket(7).RefusalReason; !strings.HasPrefix(got, "cannot read "+p.Gres()+": no such file or directory") {
		t.Errorf("the ticket's reason: %q", got)
	}
	p.Close(p.Job(7, "0"))
}

// If a lease cannot be used, prolog and epilog exit with 1, change nothing and keep the file.
//
// Contract: R5
func TestBadLeases(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, content, want string }{
		{"torn", "{", "torn record: unexpected end of JSON input"},
		{"of a newer schema", `{"schema":99,"boot":"BOOT"}`, "record of an unknown schema: 99, and this program knows 3"},
		{"of another job", `{"schema":3,"boot":"BOOT","job":{"id":8}}`, "not root's own: it is job 8's"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestNode(t, "", node.H200)
			p.Must(0, p.Job(6, "0"), "prolog") // so that the folders exist
			p.Must(0, p.Job(6, "0"), "epilog")
			path := filepath.Join(p.Paths().Run(), "leases", "7.json")
			p.Rewrite(path, strings.ReplaceAll(c.content, "BOOT", e2e.Boot(t)))
			for _, program := range []string{"prolog", "epilog"} {
				out := p.Must(1, p.Job(7, "0"), program)
				want := fmt.Sprintf("%s: cannot read %s: %s", program, path, c.want)
				if !strings.HasPrefix(out, want) || strings.Count(out, "\n") != 1 {
					t.Errorf("got  %swant %s", out, want)
				}
			}
			if p.Modes() != "0" {
				t.Errorf("modes %s", p.Modes())
			}
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
			}
		})
	}
}

// Every bad input of a user gives one exact message and exit code.
func TestBadInputOfTheWrapper(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	p.Must(0, p.Job(7, "0"), "prolog")
	defer p.Must(0, p.Job(7, "0"), "epilog")
	rank := []string{"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_NODEID=0", "PATH=/usr/bin:/bin"}
	daemon := p.Ticket(7).Daemons[0]
	for _, c := range []struct {
		name string
		env  []string
		args []string
		code int
		want string
	}{
		{"no program", rank, nil, 125, "cannot run a program: none is given: see mpirun-wrap --help"},
		{"a wrong flag", rank, []string{"--shares", "x"}, 125, "cannot read flags: unknown flag: --shares: did you mean --share?"},
		{"a wrong value", rank, []string{"--gpu", "best", "true"}, 125, `cannot read --gpu: it is "best": want auto, block, cyclic, all or inherit`},
		{"a wrong variable", e2e.With(rank, "SLURM_MPS_GPU", "best"), []string{"true"}, 125,
			`cannot read SLURM_MPS_GPU: it is "best": want auto, block, cyclic, all or inherit`},
		{"a rank by hand that is none", rank, []string{"--local-rank", "2", "true"}, 125, "cannot place rank 2: --local-rank needs --local-size"},
		{"outside of Slurm", []string{"PATH=/bin"}, []string{"true"}, 125,
			"cannot use MPS: this is not a Slurm job (SLURM_JOB_ID is not set), " +
				"or Slurm's variables were unset: submit it: sbatch --gres=gpu:1 --constraint=mps JOB.sh; or give --own"},
		{"another job", e2e.With(rank, "SLURM_JOB_ID", "8"), []string{"true"}, 125,
			"cannot find ticket of job 8 on this node: the job did not ask for MPS: submit it with --constraint=mps, or run the program without mpirun-wrap"},
		{"not found", rank, []string{"nonexistent"}, 127, "cannot run nonexistent: not found in PATH"},
		{"not executable", rank, []string{"/etc/passwd"}, 126,
			"cannot run /etc/passwd: permission denied: make it executable: chmod +x /etc/passwd"},
		{"a folder", rank, []string{"--", "/etc"}, 126, "cannot run /etc: it is a directory"},
	} {
		result, err := p.Run(p.Ctx, c.env, "mpirun-wrap", c.args...)
		if want := "mpirun-wrap: " + c.want + "\n"; err != nil || result.Code != c.code || result.Output != want {
			t.Errorf("%s: code %d, %v\n got  %s want %s", c.name, result.Code, err, result.Output, want)
		}
	}
	off := append(e2e.With(e2e.With(rank, "SLURM_MPS", "off"), "SLURM_JOB_ID", "8"), "CUDA_MPS_PIPE_DIRECTORY=/x")
	if result, err := p.Run(p.Ctx, off, "mpirun-wrap", "sh", "-c",
		`echo "[$CUDA_VISIBLE_DEVICES$CUDA_MPS_PIPE_DIRECTORY]"`); err != nil || result.Output != "[]\n" {
		t.Errorf("switched off: %+v, %v", result, err)
	}
	dry := fmt.Sprintf(`{"rank":0,"gpu":0,"sms":64,"percent":48.484849,"memory_mib":null,"uuid":"%[1]s","pipe_dir":"%[2]s","env":{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE":"48.484849","CUDA_MPS_CLIENT_PRIORITY":null,"CUDA_MPS_LOG_DIRECTORY":"%[3]s","CUDA_MPS_PINNED_DEVICE_MEM_LIMIT":null,"CUDA_MPS_PIPE_DIRECTORY":"%[2]s","CUDA_VISIBLE_DEVICES":"%[1]s"}}`+"\n",
		daemon.Devices[0], daemon.PipeDir, daemon.LogDir)
	if result, err := p.Run(p.Ctx, rank, "mpirun-wrap", "--dry-run", "--json", "--share=49.5%"); err != nil || result.Code != 0 || result.Output != dry {
		t.Errorf("dry run: %+v, %v\nwant %s", result, err, dry)
	}
	for _, argv := range [][]string{{"sh", "-c", "exit 42"}, {"--", "sh", "-c", `test "$1" = --root && exit 42`, "sh", "--root"}} {
		if result, err := p.Run(p.Ctx, rank, "mpirun-wrap", argv...); err != nil || result.Code != 42 {
			t.Errorf("the program's own code: %+v, %v", result, err)
		}
	}
	must.OK(t, daemon.Proc.Kill(9))
	p.Gone(daemon.Proc)
	result, err := p.Run(p.Ctx, rank, "mpirun-wrap", "true")
	want := fmt.Sprintf("mpirun-wrap: cannot use MPS on %s: its control daemon (%s) is gone: the job's epilog cleans up; submit the job again, and tell no MPS daemon to quit in its script\n",
		daemon.Devices[0], daemon.Proc)
	if err != nil || result.Code != 125 || result.Output != want {
		t.Errorf("got  %+v, %v\nwant %s", result, err, want)
	}
}

// A TaskProlog prints the environment of a rank, of the batch script and of a launcher's daemon. It prints nothing in
// a job without MPS, and one line on each node if a job that asks for MPS has none.
//
// Contract: K7
func TestTaskProlog(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	for _, env := range [][]string{nil, {"SLURM_JOB_ID=x"}, {"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_LOCALID=0", "SLURM_GTIDS=0"}} {
		if result, err := p.Run(p.Ctx, env, "task-prolog", "--nonsense"); err != nil || result.Code != 0 || result.Output != "" {
			t.Errorf("%q: %+v, %v", env, result, err)
		}
	}
	p.Must(0, p.Job(7, "0"), "prolog")
	defer p.Must(0, p.Job(7, "0"), "epilog")
	task := []string{"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_LOCALID=1", "SLURM_GTIDS=0,1,2,3", "SLURM_TASK_PID=1", "SLURM_NODEID=0"}
	daemon := p.Ticket(7).Daemons[0]
	want := fmt.Sprintf("export CUDA_VISIBLE_DEVICES=%s\nexport CUDA_MPS_PIPE_DIRECTORY=%s\nexport CUDA_MPS_LOG_DIRECTORY=%s\nexport CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50\nunset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT\nunset CUDA_MPS_CLIENT_PRIORITY\n",
		daemon.Devices[0], daemon.PipeDir, daemon.LogDir)
	if result, err := p.Run(p.Ctx, task, "task-prolog"); err != nil || result.Code != 0 || result.Output != want {
		t.Errorf("got  %+v, %v\nwant %s", result, err, want)
	}
	batch := e2e.Without(e2e.Without(task, "SLURM_STEP_ID"), "SLURM_STEPID")
	all := strings.ReplaceAll(want, "export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50", "unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
	off := "print slurm-mps: SLURM_MPS=off: the GPUs of this job are in EXCLUSIVE_PROCESS mode, so a program without MPS fails with CUDA error 46: submit the job without --constraint=mps, or leave out SLURM_MPS=off\n"
	for _, c := range []struct {
		name string
		env  []string
		want string
	}{
		{"batch script", batch, all},
		{"mpirun's daemon", append(e2e.With(e2e.With(e2e.With(task, "SLURM_LOCALID", "0"), "SLURM_GTIDS", "1"), "SLURM_STEP_TASKS_PER_NODE", "1(x2)"), "_=/usr/bin/mpirun"), all},
		{"quarter", append(slices.Clone(batch), "SLURM_MPS_SHARE=25%"), strings.ReplaceAll(want, "=50", "=24.242425")},
		{"rank with a wrong variable", append(slices.Clone(task), "SLURM_MPS_MEM=much"), "export SLURM_MPS_TOLD="},
		{"first rank with a wrong variable", append(e2e.With(task, "SLURM_LOCALID", "0"), "SLURM_MPS_MEM=much"),
			"print slurm-mps: cannot read SLURM_MPS_MEM: it is \"much\": "},
		{"off", append(e2e.With(task, "SLURM_LOCALID", "0"), "SLURM_MPS=off"), off},
		{"job without MPS and a wrong variable", append(e2e.With(task, "SLURM_JOB_ID", "8"), "SLURM_MPS_MEM=much"), ""},
	} {
		result, err := p.Run(p.Ctx, c.env, "task-prolog")
		same := strings.HasPrefix(result.Output, c.want) && (c.want != "" || result.Output == "")
		if err != nil || result.Code != 0 || !same {
			t.Errorf("%s: %+v, %v, want %q", c.name, result, err, c.want)
		}
	}
	result, err := p.Run(p.Ctx, append(slices.Clone(task), "SLURM_MPS=off"), "mpirun-wrap", "true")
	if err != nil || result.Code != 125 ||
		!strings.HasPrefix(result.Output, "mpirun-wrap: "+strings.TrimSuffix(strings.TrimPrefix(off, "print slurm-mps: "), "\n")) {
		t.Errorf("mpirun-wrap with SLURM_MPS=off: %+v, %v", result, err)
	}
}
