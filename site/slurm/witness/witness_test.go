// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

func TestStepOfGroups(t *testing.T) {
	for content, want := range map[string]string{
		"0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n":                     "0",
		"0::/system.slice/n1_slurmstepd.scope/sB9NM830BDDR00/step_batch/user/task_0\n":      "batch", // 26.05
		"9:freezer:/slurm/uid_1000/job_42/step_interactive\n8:pids:/\n":                     "interactive",
		"9:freezer:/\n5:memory:/slurm_n1/uid_1000/job_42/step_7/task_0\n":                   "7",
		"0::/system.slice/slurmstepd.scope/job_42/step_extern/user/task_special\n":          "extern",
		"0::/system.slice/slurmstepd.scope/job_42/step_x\n":                                 "",
		"0::/system.slice/slurmd.service\n":                                                 "",
		"0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_42/step_3\n": "", // a user made it
		"0::/step_3/slurm\n": "",
		"":                   "",
	} {
		if step := stepOfGroups(proc.ParseGroups(content)); step != want {
			t.Errorf("%q: step %q, want %q", content, step, want)
		}
	}
}

// daemon starts a shell with a name and a title, as the step daemon has them, and returns the process that its script
// prints. $0 is the shell's program.
func daemon(t *testing.T, name, title, script string, uid uint32) (pid int) {
	t.Helper()
	dir, err := os.MkdirTemp("", "witness") // t.TempDir is closed to other users
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		err = os.Symlink("/bin/sh", filepath.Join(dir, name))
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: filepath.Join(dir, name), Args: []string{title, "-c", script, filepath.Join(dir, name)},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: uid, Gid: uid}}}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		pid, err = strconv.Atoi(strings.TrimSpace(line))
	}
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// Without control groups, the title of the nearest step daemon above a process names its step. Only root's counts.
func TestStepByTitle(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("step daemons are root's")
	}
	const child = "sleep 100 & echo $!; wait"
	for _, c := range []struct {
		name, title, script string
		uid                 uint32
		want                string
	}{
		{"slurmstepd", "slurmstepd: [4711.batch]", child, 0, "batch"},
		{"slurmstepd", "slurmstepd: [4711.3]", child, 0, "3"},
		{"slurmstepd", "slurmstepd: [4711+1.0]", child, 0, "0"},
		{"slurmstepd", "slurmstepd: [4711.interactive]", child, 0, "interactive"},
		{"slurmstepd", "slurmstepd: [4711.extern]", child, 0, "extern"},
		{"slurmstepd", "slurmstepd: [4711.batch]", "sh -c 'sleep 100 & echo $!; wait' & wait", 0, "batch"},
		{"slurmstepd", "slurmstepd: [4711.batch]", `bash -c 'exec -a "slurmstepd: [4712.5]" "$0" -c "sleep 100 & echo \$!; wait"' "$0" & wait`, 0, "5"},
		{"slurmstepd", "slurmstepd: [4711.ba", child, 0, ""}, // cut
		{"slurmstepd", "slurmstepd: [4711]", child, 0, ""},
		{"slurmstepd", "slurmstepd", child, 0, ""},
		{"other", "slurmstepd: [4711.batch]", child, 0, ""},
		{"slurmstepd", "slurmstepd: [4711.batch]", child, 65534, ""},
	} {
		pid := daemon(t, c.name, c.title, c.script, c.uid)
		if step := StepOf(pid, pid); step != c.want {
			t.Errorf("%s %q of uid %d: step %q, want %q", c.name, c.title, c.uid, step, c.want)
		}
	}
	// A process whose parent has ended belongs to the step of the task's first process.
	first := daemon(t, "slurmstepd", "slurmstepd: [4711.2]", child, 0)
	orphan := daemon(t, "other", "sh", "(sleep 100 & echo $!); sleep 100", 0)
	for task, want := range map[int]string{first: "2", 0: "", orphan: ""} {
		if step := StepOf(orphan, task); step != want {
			t.Errorf("left behind by its parent, with %d: step %q, want %q", task, step, want)
		}
	}
	inherited := slurm.Env{"SLURM_JOB_ID": "4712", "SLURM_STEP_ID": "3", "SLURM_PROCID": "1"}
	batch := daemon(t, "slurmstepd", "slurmstepd: [4712.batch]", child, 0)
	if rank, step := RankOf(batch, inherited); rank != -1 || step != "batch" {
		t.Errorf("a batch script from a step: rank %d of step %q", rank, step)
	}
	adopted := daemon(t, "slurmstepd", "slurmstepd: [4712.extern]", child, 0)
	if rank, step := RankOf(adopted, slurm.Env{"SLURM_JOB_ID": "4712"}); rank != -1 || step != "extern" {
		t.Errorf("a process of an ssh: rank %d of step %q", rank, step)
	}
	if rank, step := RankOf(first, inherited); rank != 1 || step != "2" {
		t.Errorf("a task of a step from a step: rank %d of step %q", rank, step)
	}
}

func TestJobsOf(t *testing.T) {
	for content, want := range map[string]string{
		"0::/system.slice/slurmstepd.scope/sB9NM830BDDR00/step_0/user/task_0\n": "sB9NM830BDDR00", // 26.05
		"0::/system.slice/slurmstepd.scope/system\n":                            "",
		"0::/user.slice/slurmstepd.scope/sB9NM830BDDR00\n":                      "",
		"0::/sB9NM830BDDR00/slurm\n":                                            "",

		"0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n":              "42",
		"0::/system.slice/n1_slurmstepd.scope/job_42/step_extern/slurm\n":            "42",
		"9:freezer:/slurm/uid_1000/job_42/step_batch\n8:pids:/\n":                    "42",
		"9:freezer:/\n5:memory:/slurm_n1/uid_1000/job_42/step_0/task_0\n":            "42",
		"0::/system.slice/slurmd.service\n":                                          "",
		"0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_42\n": "", // a user made it
		"0::/job_42/slurm\n": "",
		"1:freezer:/slurm/uid_2001/job_7/step_0\n4:memory:/slurm/uid_2001/job_8/step_0\n": "7 8",
		"0::/system.slice/slurmstepd.scope/job_99999999999999999999/x\n":                  "",
		"": "",
	} {
		must.Equal(t, content, strings.Join(JobsOf(proc.ParseGroups(content)), " "), want)
	}
}
