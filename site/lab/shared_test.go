// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

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

// partsUp starts a node with four GPUs of two shards each.
func partsUp(t *testing.T) parts {
	t.Helper()
	top := newDir(t)
	dir := filepath.Join(top, "records")
	must.OK(t, makeDir(dir, 0o777|fs.ModeSticky))
	dev := filepath.Join(top, "dev")
	must.OK(t, makeDir(dev, 0o755))
	for i := range 4 {
		must.OK(t, makeDevice(fmt.Sprintf("%s/nvidia%d", dev, i), i))
	}
	hook := script(t, top, "hook.sh", partHook)
	conf := "Name=gpu File=" + dev + "/nvidia[0-3]\nName=shard Count=8\n"
	s := up(t, Options{GPUs: 4, Gres: "gpu:4,shard:8", GresConf: conf, PrologFlags: "Alloc",
		Prolog: []string{hook, dir, "prolog"}, Epilog: []string{hook, dir, "epilog"}, TaskProlog: []string{hook, dir, "task-prolog"}})
	return parts{s, dir}
}

// start submits a job that records itself and one step. It then waits while the file side.wait exists.
func (p parts) start(t *testing.T, args ...string) (int, error) {
	t.Helper()
	text := fmt.Sprintf("#!/bin/sh\nenv >%[1]s/$SLURM_JOB_ID.batch\n"+
		"srun sh -c 'env >%[1]s/$SLURM_JOB_ID.task$SLURM_PROCID'\necho ready >%[1]s/$SLURM_JOB_ID.ready\n"+
		"while [ -e %[1]s/$SLURM_JOB_NAME.wait ]; do sleep 0.02; done\n", p.dir)
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

// TestShards runs jobs with parts of a GPU side by side. A job with all GPUs waits for their epilogs.
func TestShards(t *testing.T) {
	needLab(t)
	p := partsUp(t)
	var ids []int
	must.OK(t, os.WriteFile(p.dir+"/side.wait", nil, 0o644))
	for i, gres := range []string{"shard:1", "shard:1", "shard:2", "gpu:1", "shard:2", "shard:1"} {
		id := must.Get(p.start(t, "--gres="+gres, "--job-name=side"))(t)
		if ids = append(ids, id); i < 5 { // the last one waits
			p.file(t, fmt.Sprintf("%s/%d.ready", p.dir, id))
		}
	}
	for i, gpu := range []string{"0", "0", "1"} {
		wantVariables(t, "prolog", p.env(t, ids[i], "prolog"), map[string]string{"SLURM_JOB_GPUS": gpu, "SLURM_SHARDS_ON_NODE": ""})
		wantVariables(t, "task", p.env(t, ids[i], "task0"), map[string]string{"SLURM_JOB_GPUS": gpu, "SLURM_SHARDS_ON_NODE": []string{"1", "1", "2"}[i]})
	}
	must.OK(t, os.WriteFile(p.dir+"/hold", nil, 0o644))
	whole := must.Get(p.Submit(p.ctx, p.user, "--gres=gpu:4", "--wrap=true"))(t)
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
