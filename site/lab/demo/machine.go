// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

const (
	uid      = 2001
	userName = "hpc1"
	gpus     = 4
)

// policy is the site's policy in the lab. One of its rules denies MPS, because an act shows a denied job.
const policy = `version = 1

trigger {
  constraint = "mps"
}

rule "teaching" {
  when = job.partition == "edu" && length(job.gpus) > 1
  deny = "MPS on the edu partition is for one GPU at a time"
}

rule "all" {
  when  = true
  allow = ["share", "memory"]
  grant {
    share = "overlap:2"
  }
}
`

// machine is a node with a real Slurm and four simulated GPUs. Its hooks are the programs of slurm-mps.
type machine struct {
	dir     string
	node    testnode.Node
	cluster *lab.Cluster
	user    lab.User
}

// start makes the machine in dir. The caller must close the returned machine also after an error.
func start(ctx context.Context, dir, built string) (m *machine, err error) {
	m = &machine{dir: dir}
	if err := os.Chmod(dir, 0o755); err != nil {
		return m, err
	}
	m.node, err = testnode.New(dir, built, policy, node.H200, node.H200, node.H200, node.H200)
	if err != nil {
		return m, err
	}
	if m.user, err = lab.EnsureUser(userName, uid); err != nil {
		return m, err
	}
	m.cluster, err = lab.Start(ctx, lab.Options{
		Dir: filepath.Join(dir, "slurm"), GPUs: gpus, Features: "mps", PrologFlags: "Alloc", SameName: true,
		Prolog: m.node.Command("prolog"), Epilog: m.node.Command("epilog"), TaskProlog: m.node.Command("task-prolog"),
		Extra:  []string{"PartitionName=edu Nodes=ALL MaxTime=INFINITE State=UP"},
		Bundle: os.Getenv("SLURM_BUNDLE"),
	})
	if err != nil {
		return m, err
	}
	return m, m.writePrograms()
}

// bin returns the folder for the programs that a user finds on PATH.
func (m *machine) bin() string { return filepath.Join(m.dir, "bin") }

// writePrograms installs our programs on the user's PATH, and writes the example programs to the user's home folder.
func (m *machine) writePrograms() error {
	home, err := m.cluster.Home(m.user)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.bin(), 0o755); err != nil {
		return err
	}
	for _, name := range []string{"mpirun-wrap", "mpsctl", "mps-tune"} {
		err = errors.Join(err, m.install(name, m.node.Command(name)...))
	}
	for _, name := range []string{"cuda-client", "nvidia-cuda-mps-control"} {
		err = errors.Join(err, m.install(name, m.node.Sim.Program(name)))
	}
	for name, text := range programs {
		file := filepath.Join(home, name)
		err = errors.Join(err, node.WriteProgram(file, []byte(text)), os.Lchown(file, int(m.user.UID), int(m.user.GID)))
	}
	return err
}

// install writes a script to PATH. The script executes argv with its own arguments appended.
func (m *machine) install(name string, argv ...string) error {
	text := "#!/bin/sh\nexec " + strings.Join(argv, " ") + " \"$@\"\n"
	return node.WriteProgram(filepath.Join(m.bin(), name), []byte(text))
}

// env returns the environment that a shell on the machine needs in addition to the user's name and home folder.
func (m *machine) env() []string {
	env := map[string]string{}
	for _, variable := range m.cluster.Env() {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	env["PATH"] = m.bin() + ":" + env["PATH"]
	env["LD_LIBRARY_PATH"] = strings.TrimSuffix(m.node.Sim.Libraries()+":"+env["LD_LIBRARY_PATH"], ":")
	var all []string
	for name, value := range env {
		all = append(all, name+"="+value)
	}
	return all
}

// shell runs a command line as a user, and returns what it prints and its exit code.
func (m *machine) shell(ctx context.Context, user lab.User, line string) (lab.Result, error) {
	return m.cluster.Run(ctx, user, "env", append(m.env(), "bash", "-c", "exec 2>&1; "+line)...)
}

// nodeState returns the node's state as sinfo prints it.
func (m *machine) nodeState(ctx context.Context) (string, error) {
	result, err := m.shell(ctx, lab.Root, "sinfo --noheader --partition=main --format=%T")
	return strings.TrimSpace(result.Stdout), err
}

// waitIdle waits until no job is left on the node, no file or process of a job is left, and Slurm calls the node
// idle.
func (m *machine) waitIdle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for {
		left, err := m.node.Left()
		if err != nil {
			return err
		}
		state, err := m.nodeState(ctx)
		if err == nil && state == "idle" && len(left) == 0 {
			return nil
		}
		if !wait.Sleep(ctx, 50*time.Millisecond) {
			return fmt.Errorf("the node is %q, and the last job left %q", state, left)
		}
	}
}

// modes returns the names of the GPUs' compute modes.
func (m *machine) modes() (names []string, err error) {
	all, err := m.node.Sim.Node.GPUs()
	for _, gpu := range all {
		mode, err := gpu.Mode()
		if err != nil {
			return nil, err
		}
		names = append(names, map[int]string{node.Default: "DEFAULT", node.ExclusiveProcess: "EXCLUSIVE_PROCESS"}[mode])
	}
	return names, err
}

// entry is a line in the log of our programs.
type entry struct {
	Program string
	Job     uint32
	Step    string
	Clients int `json:"clients_seen"` // in a summary, as Outside
	Outside int
}

// logged returns the log entries of a program's step for a job.
func (m *machine) logged(program string, job uint32, step string) (found []entry) {
	content, _ := os.ReadFile(m.node.Paths().Log())
	for line := range strings.Lines(string(content)) {
		var e entry
		if json.Unmarshal([]byte(line), &e) == nil && e.Program == program && e.Job == job && e.Step == step {
			found = append(found, e)
		}
	}
	return found
}

// logTail returns the end of the log. It helps a reader to find why an act failed.
func (m *machine) logTail() string {
	content, _ := os.ReadFile(m.node.Paths().Log())
	lines := strings.SplitAfter(string(content), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "")
}

// close ends all processes of the machine, checks that nothing is left, and removes the folder. It ends in bounded
// time. It also works after a failed start.
func (m *machine) close() error {
	err := m.mendNVML()
	if m.cluster != nil {
		err = errors.Join(err, m.cluster.EndClients(), m.cluster.Stop())
	}
	if m.node.Sim != nil {
		err = errors.Join(err, m.closeNode())
	}
	return errors.Join(err, os.RemoveAll(m.dir))
}

// closeNode ends the processes that no epilog has ended, and the processes that no job of ours has started.
func (m *machine) closeNode() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := m.node.CloseLeft(ctx)
	bare, err2 := m.node.Below(m.dir)
	for _, p := range bare {
		err2 = errors.Join(err2, p.Kill(syscall.SIGKILL))
	}
	left, err3 := m.node.Left()
	if len(left) > 0 {
		err3 = errors.Join(err3, fmt.Errorf("cannot clean the machine: %q is left", left))
	}
	return errors.Join(err, err2, err3)
}

// programs are the files in the user's folder, by name. Each program prints lines that people read and the acts
// check.
var programs = map[string]string{
	"app": `#!/bin/bash
# app [SECONDS]: a program that computes on its GPU, and prints what CUDA gave it.
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} # of Open MPI or MPICH
[ -z "$rank" ] && [ -n "$SLURM_STEP_ID" ] && [ "$SLURM_NTASKS" != 1 ] && rank=$SLURM_PROCID
who="rank $rank"
[ -z "$rank" ] && who="process $$"
had=$(cuda-client info -v) && did=$(cuda-client spin -ms 5 -for "${1:-0.5}") ||
    { echo "$who: CUDA fails: $had $did"; exit 1; }
gpu=${had#*uuid=} # the first GPU, the one that CUDA computes on
[[ "$had $did" =~ sm=([0-9]+).*kernels=([0-9]+) ]]
echo "$who: ${BASH_REMATCH[1]} SMs of ${gpu:0:12}, ${BASH_REMATCH[2]} kernels"
`,
	"killed": `#!/bin/bash
# killed [SECONDS]: every rank computes. Then the last one is killed with SIGKILL while its kernel runs, and the others
# go on. srun numbers the ranks.
[ -n "$SLURM_STEP_ID" ] ||
    { echo "killed: cannot number the ranks: srun has not started it: srun --gres=gpu:1 --constraint=mps -n4 mpirun-wrap ./killed" >&2; exit 2; }
last=$((SLURM_NTASKS - 1)) file=.killed.$SLURM_JOB_ID.$SLURM_STEP_ID
ready() { ls $file.* 2>/dev/null | wc -l; } # the number of neighbours that compute, and do not know of the end
compute() { # from now on, in the background; the lines of the client are on descriptor 3, from the second on
    exec 3< <(exec cuda-client spin -for 60 "$@") && client=$!
    read -r -u 3
}
if [ "$SLURM_PROCID" = $last ]; then
    trap 'rm -f $file $file.*' EXIT
    compute -ms 400 -queue 3
    until [ "$(ready)" = $last ]; do sleep 0.05; done
    sleep ${1:-1}
    kill -9 $client
    touch $file
    echo "rank $SLURM_PROCID: killed with SIGKILL while its kernel ran"
    until [ "$(ready)" = 0 ]; do sleep 0.05; done
    exit 137
fi
compute -ms 5 -exit-idle
touch $file.$SLURM_PROCID
until [ -e $file ]; do sleep 0.05; done
rm $file.$SLURM_PROCID
sleep ${1:-1.5}
kill $client 2>/dev/null
result=$(cat <&3)
if [[ $result =~ done\ kernels=([0-9]+) ]]; then
    echo "rank $SLURM_PROCID: finished, ${BASH_REMATCH[1]} kernels"
else
    [[ $result =~ err=([0-9]+\ [A-Za-z_]+) ]]
    echo "rank $SLURM_PROCID: died of CUDA error ${BASH_REMATCH[1]}"
    exit 1
fi
`,
	"bare-mps": `#!/bin/bash
# bare-mps COMMAND...: runs a command beside an MPS daemon that the job starts itself, without slurm-mps.
export CUDA_MPS_PIPE_DIRECTORY=$PWD/bare.$SLURM_JOB_ID CUDA_MPS_LOG_DIRECTORY=$PWD/bare.$SLURM_JOB_ID
mkdir "$CUDA_MPS_PIPE_DIRECTORY" && nvidia-cuda-mps-control -d || exit 1
"$@"
code=$?
echo quit | nvidia-cuda-mps-control
rm -r "$CUDA_MPS_PIPE_DIRECTORY"
exit $code
`,
	"job.sh": `#!/bin/bash
#SBATCH --gres=gpu:2 --constraint=mps --ntasks=8 --output=job.out
srun mpirun-wrap --share=even ./app
`,
	"long.sh": `#!/bin/bash
#SBATCH --gres=gpu:1 --constraint=mps --ntasks=4 --output=long.out
srun mpirun-wrap ./app 6
`,
	"ranks": `#!/bin/bash
# ranks N COMMAND...: N ranks by Open MPI on the first GPU, without Slurm.
export CUDA_VISIBLE_DEVICES=0
exec mpirun.openmpi -np "$1" --oversubscribe "${@:2}"
`,
	"ensemble": `#!/bin/bash
# ensemble: eight programs, four at a time. No launcher gives them a rank, so each takes a free slot.
seq 8 | xargs -P4 -I% mpirun-wrap --slots=4 ./app
`,
}
