// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/txtar"
)

// recordTo is the archive that gets the environments of this file's jobs, as site/sim/recorded/shared.txtar.
var recordTo = flag.String("record", "", "write the environments of jobs with a part of a GPU into the archive of this absolute path")

// partHook records its environment. The epilog also waits while the file hold exists.
const partHook = `#!/bin/sh
step=$SLURM_STEP_ID
case $2.$step in task-prolog.|task-prolog.-5) who=batch-task-prolog ;; task-prolog.*) who=task-prolog$SLURM_PROCID ;; *) who=$2 ;; esac
/usr/bin/env >"$1/.$$" && /bin/mv "$1/.$$" "$1/$SLURM_JOB_ID.$who"
while [ "$2" = epilog ] && [ -e "$1/hold" ]; do /bin/sleep 0.02; done
exit 0
`

// parts is a cluster whose jobs have parts of GPUs.
type parts struct {
	scene
	dir string // the records
}

// partsUp starts a node with four GPUs, the Gres and the further lines of gres.conf. DEV is the devices' folder.
func partsUp(t *testing.T, gres, lines string) parts {
	t.Helper()
	top := newDir(t)
	dir := filepath.Join(top, "records")
	if err := makeDir(dir, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	dev := filepath.Join(top, "dev")
	if err := makeDir(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := makeDevice(fmt.Sprintf("%s/nvidia%d", dev, i), i); err != nil {
			t.Fatal(err)
		}
	}
	hook := script(t, top, "hook.sh", partHook)
	conf := "Name=gpu File=" + dev + "/nvidia[0-3]\n" + strings.ReplaceAll(lines, "DEV", dev)
	s := up(t, Options{GPUs: 4, Gres: gres, GresConf: conf, PrologFlags: "Alloc",
		Prolog: []string{hook, dir, "prolog"}, Epilog: []string{hook, dir, "epilog"}, TaskProlog: []string{hook, dir, "task-prolog"}})
	return parts{s, dir}
}

// start submits a job that records itself and one step. It then waits until the file go exists.
func (p parts) start(t *testing.T, step string, args ...string) (int, error) {
	t.Helper()
	text := fmt.Sprintf("#!/bin/sh\nenv >%[1]s/$SLURM_JOB_ID.batch\n"+
		"srun %[2]s sh -c 'env >%[1]s/$SLURM_JOB_ID.task$SLURM_PROCID'\necho ready >%[1]s/$SLURM_JOB_ID.ready\n"+
		"while [ -e %[1]s/$SLURM_JOB_NAME.wait ]; do sleep 0.02; done\n", p.dir, step)
	return p.Submit(p.ctx, p.user, append(args, "--output=out.%j", script(t, p.dir, "job.sh", text))...)
}

// env returns what a script of the job recorded.
func (p parts) env(t *testing.T, job int, who string) map[string]string {
	t.Helper()
	env := map[string]string{}
	for line := range strings.SplitSeq(readFile(t, fmt.Sprintf("%s/%d.%s", p.dir, job, who)), "\n") {
		if name, value, ok := strings.Cut(line, "="); ok {
			env[name] = value
		}
	}
	return env
}

// unsaid are variables whose values name the machine, its paths, its ports, a process or a time.
var unsaid = []string{"SLURM_TASK_PID", "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME", "SLURM_LAUNCH_NODE_IPADDR",
	"SLURM_SRUN_COMM_HOST", "SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT", "SLURM_STEPMGR"}

// keep writes the job's recordings into the archive of the flag.
func (p parts) keep(t *testing.T, name string, job int) {
	t.Helper()
	if *recordTo == "" {
		return
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(fmt.Sprintf("%s/%d.*", p.dir, job))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		who := strings.TrimPrefix(filepath.Ext(path), ".")
		if who == "ready" {
			continue
		}
		if err := txtar.Put(*recordTo, p.Release()+"-"+name+"-"+who+".env", tidied(readFile(t, path), host)); err != nil {
			t.Fatal(err)
		}
	}
}

// tidied returns the sorted variables of Slurm and CUDA that do not name this machine.
func tidied(text, host string) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		name, value, _ := strings.Cut(line, "=")
		prefix, _, _ := strings.Cut(name, "_")
		if !slices.Contains([]string{"SLURM", "SLURMD", "CUDA", "GPU", "SPANK"}, prefix) || slices.Contains(unsaid, name) ||
			strings.HasPrefix(value, "/") || strings.Contains(value, "/tmp/") || strings.Contains(value, host) {
			continue
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

type partCase struct {
	name string
	step string // flags of the step
	args []string
}

// runAll runs the jobs one after another. Without the flag only the first runs, because the others are for recordings.
func (p parts) runAll(t *testing.T, cases []partCase) {
	t.Helper()
	if *recordTo == "" {
		cases = cases[:1]
	}
	for _, c := range cases {
		id, err := p.start(t, c.step, c.args...)
		if err != nil {
			t.Logf("%s: %v", c.name, err)
			continue
		}
		idle := 0
		j, err := p.WaitJobUntil(p.ctx, id, func(j Job) bool {
			if j.State == "PENDING" {
				idle++
			}
			return j.Over() || idle > 60
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s %s GPUs %s", c.name, j.State, j.Reason, j.Fields["TresPerNode"])
		if !j.Over() {
			p.must(t, "scancel", fmt.Sprint(id))
			p.wait(t, id)
			continue
		}
		p.keep(t, c.name, id)
	}
}

var shardCases = []partCase{
	{"shard2", "", []string{"--gres=shard:2"}},
	{"shard1-n2", "", []string{"--gres=shard:1", "-N1", "-n2"}},
	{"gpu1-beside-shard", "", []string{"--gres=gpu:1"}},
	{"gpus1-beside-shard", "", []string{"--gpus=1"}},
	{"shard2-step1", "--gres=shard:1", []string{"--gres=shard:2"}},
	{"shard2-step-none", "--gres=none", []string{"--gres=shard:2"}},
	{"shard3", "", []string{"--gres=shard:3"}},
	{"shard4-n2", "", []string{"--gres=shard:4", "-n2"}},
	{"gpu1-and-shard1", "", []string{"--gres=gpu:1,shard:1"}},
	{"tres-per-task-shard1-n2", "", []string{"--tres-per-task=gres/shard:1", "-n2"}},
	{"shard2-one-task-per-sharing", "", []string{"--gres=shard:2", "-n2", "--gres-flags=one-task-per-sharing"}},
	{"shard3-multiple-tasks-per-sharing", "", []string{"--gres=shard:3", "-n2", "--gres-flags=multiple-tasks-per-sharing"}},
}

// TestShards runs jobs with parts of a GPU side by side. A job with all GPUs waits for their epilogs.
func TestShards(t *testing.T) {
	needLab(t)
	p := partsUp(t, "gpu:4,shard:8", "Name=shard Count=8\n")
	p.runAll(t, shardCases)
	var ids []int
	if err := os.WriteFile(p.dir+"/side.wait", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for i, c := range []partCase{
		{"side1-shard1", "", []string{"--gres=shard:1"}},
		{"side2-shard1", "", []string{"--gres=shard:1"}},
		{"side3-shard2-index1", "", []string{"--gres=shard:2"}},
		{"side4-gpu1", "", []string{"--gres=gpu:1"}},
		{"side5-shard2", "", []string{"--gres=shard:2"}},
		{"side6-shard1", "", []string{"--gres=shard:1"}},
	} {
		id, err := p.start(t, c.step, append(c.args, "--job-name=side")...)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
		if i < 5 {
			p.file(t, fmt.Sprintf("%s/%d.ready", p.dir, id))
			t.Log(c.name, p.env(t, id, "prolog")["SLURM_JOB_GPUS"], p.env(t, id, "task0")["CUDA_VISIBLE_DEVICES"])
		} else {
			j, err := p.Job(p.ctx, id)
			t.Log(c.name, j.State, j.Reason, err)
		}
		p.keep(t, c.name, id)
	}
	for i, gpu := range []string{"0", "0", "1"} {
		wantVariables(t, "prolog", p.env(t, ids[i], "prolog"), map[string]string{"SLURM_JOB_GPUS": gpu, "SLURM_SHARDS_ON_NODE": ""})
		wantVariables(t, "task", p.env(t, ids[i], "task0"), map[string]string{"SLURM_JOB_GPUS": gpu, "SLURM_SHARDS_ON_NODE": []string{"1", "1", "2"}[i]})
	}
	if err := os.WriteFile(p.dir+"/hold", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	whole, err := p.Submit(p.ctx, p.user, "--gres=gpu:4", "--wrap=true")
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(p.dir + "/side.wait")
	for _, id := range ids[:5] {
		j, err := p.WaitJobUntil(p.ctx, id, func(j Job) bool { return j.State == "COMPLETING" })
		t.Log("while epilogs wait:", id, j.State, err)
	}
	for range 20 { // the scheduler runs each second
		j, err := p.Job(p.ctx, whole)
		if err != nil || j.State != "PENDING" {
			t.Error("a job with all GPUs before the epilogs' ends:", j.State, j.Reason, err)
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	os.Remove(p.dir + "/hold")
	for _, id := range append(ids, whole) {
		if j := p.wait(t, id); j.State != "COMPLETED" {
			t.Error(j.ID, j.State)
		}
	}
}

func TestMPSGres(t *testing.T) {
	needLab(t)
	p := partsUp(t, "gpu:4,mps:400", "Name=mps Count=400\n")
	p.runAll(t, []partCase{
		{"mps25", "", []string{"--gres=mps:25"}},
		{"mps25-n2", "", []string{"--gres=mps:25", "-n2"}},
		{"mps50-step25", "--gres=mps:25", []string{"--gres=mps:50"}},
		{"mps100", "", []string{"--gres=mps:100"}},
		{"mps150", "", []string{"--gres=mps:150"}},
		{"gpu1-beside-mps", "", []string{"--gres=gpu:1"}},
	})
	if err := os.WriteFile(p.dir+"/side.wait", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var ids []int
	for _, c := range []partCase{
		{"side1-mps50", "", []string{"--gres=mps:50"}},
		{"side2-mps50", "", []string{"--gres=mps:50"}},
		{"side3-mps30", "", []string{"--gres=mps:30"}},
	} {
		id, err := p.start(t, c.step, append(c.args, "--job-name=side")...)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
		if len(ids) < 3 || *recordTo != "" {
			t.Log(c.name, p.ranWithin(t, id))
		}
		p.keep(t, c.name, id)
	}
	os.Remove(p.dir + "/side.wait")
	for _, id := range ids {
		if j := p.wait(t, id); j.State != "COMPLETED" {
			t.Error(j.ID, j.State)
		}
	}
}

// ranWithin waits until the job has recorded itself, or has waited for two seconds, and returns its GPU.
func (p parts) ranWithin(t *testing.T, id int) string {
	t.Helper()
	ready := fmt.Sprintf("%s/%d.ready", p.dir, id)
	for range 200 {
		if _, err := os.Stat(ready); err == nil {
			return p.env(t, id, "prolog")["SLURM_JOB_GPUS"] + " " + p.env(t, id, "task0")["CUDA_VISIBLE_DEVICES"]
		}
		time.Sleep(10 * time.Millisecond)
	}
	return "waits"
}

// forRecordings skips a test without the flag -record.
func forRecordings(t *testing.T) {
	t.Helper()
	if *recordTo == "" {
		t.Skip("-args -record ARCHIVE records the environments of these jobs")
	}
}

func TestPartsOfFiles(t *testing.T) {
	forRecordings(t)
	needLab(t)
	p := partsUp(t, "gpu:4,shard:10", "Name=shard Count=4 File=DEV/nvidia0\nName=shard Count=6 File=DEV/nvidia[1-3]\n")
	p.runAll(t, []partCase{
		{"files-shard4", "", []string{"--gres=shard:4"}},
		{"files-shard2", "", []string{"--gres=shard:2"}},
	})
}

func TestMPSOfFiles(t *testing.T) {
	forRecordings(t)
	needLab(t)
	p := partsUp(t, "gpu:4,mps:310", "Name=mps Count=200 File=DEV/nvidia0\nName=mps Count=30 File=DEV/nvidia1\nName=mps Count=80 File=DEV/nvidia[2-3]\n")
	p.runAll(t, []partCase{
		{"files-mps25", "", []string{"--gres=mps:25"}},
		{"files-mps33", "", []string{"--gres=mps:33"}},
		{"files-mps199", "", []string{"--gres=mps:199"}},
	})
}
