// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
)

func TestNewEnviron(t *testing.T) {
	got := ParseEnv([]string{"A=1", "A=2", "B=", "C", "=x", "D=x=y"})
	want := Env{"A": "1", "B": "", "D": "x=y"}
	must.Hold(t, reflect.DeepEqual(got, want), "got %v, want %v", got, want)
	got = NewEnv([]string{"SLURM_JOB_ID=7", "SLURM_MPS_SHARE=even", "SLURM_OTHER=1", "HOME=/"})
	if want := (Env{"SLURM_JOB_ID": "7", "SLURM_MPS_SHARE": "even"}); !reflect.DeepEqual(got, want) {
		t.Errorf("variables without a row: got %v, want %v", got, want)
	}
}

// wantJob is the job of a recording: the common values, and the values that differ by folder.
func wantJob(folder string, id uint32) Job {
	job := Job{Job: policy.Job{ID: id, UID: 1001, GID: 1001, User: "user", Node: "n1", NodeList: "n1", Partition: "main", Nodes: 1, Requested: []string{"mps"}}, Conf: "/lab/c1/etc/slurm.conf"}
	switch folder {
	case "a-gres2-n4":
		job.NTasks, job.GPUs = 4, []int{0, 1}
	case "b-gpt1":
		job.NTasks, job.GPUs = 4, []int{0, 1, 2, 3}
	case "c-gpubind":
		job.NTasks, job.GPUs, job.Requested = 4, []int{0, 1, 2, 3}, nil
	case "cg-a":
		job.NTasks, job.GPUs = 1, []int{0, 1}
	case "d-comment":
		job.NTasks, job.GPUs, job.Requested, job.Comment = 2, []int{0}, nil, "mps:pct=50 x=y"
	case "e-array":
		job.NTasks, job.GPUs = 1, []int{0}
	case "f-srun", "g-salloc", "g2-salloc-nosrun":
		job.NTasks, job.GPUs = 2, []int{0, 1}
	case "i-nogpu":
		job.NTasks, job.Requested = 1, nil
	}
	return job
}

func TestReadJobRecorded(t *testing.T) {
	for kind, context := range map[string]Context{"prolog": Prolog, "epilog": Epilog} {
		for _, path := range recordings(t, "slurm-env/*/*."+kind+".n1", 10) {
			folder := filepath.Base(filepath.Dir(path))
			t.Run(folder+"/"+filepath.Base(path), func(t *testing.T) {
				env := recording(t, path)
				got := must.Get(ReadJob(env, context))(t)
				id, _, _ := strings.Cut(filepath.Base(path), ".")
				number := must.Get(Digits(id))(t)
				want := wantJob(folder, uint32(number))
				if len(want.GPUs) > 0 {
					want.Visible = strings.Split(env["CUDA_VISIBLE_DEVICES"], ",")
				}
				if folder == "cg-a" {
					want.Conf = env["SLURM_CONF"]
				}
				must.Hold(t, reflect.DeepEqual(got, want), "got  %+v\nwant %+v", got, want)
			})
		}
	}
}

func prologEnv() Env {
	return Env{"SLURM_SCRIPT_CONTEXT": "prolog_slurmd", "SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1001", "SLURM_JOB_GID": "1001", "SLURMD_NODENAME": "n1"}
}

func TestReadJobValues(t *testing.T) {
	const mig1, mig2 = "MIG-11111111-1111-1111-1111-111111111111", "MIG-22222222-2222-2222-2222-222222222222"
	const gpu = "GPU-33333333-3333-3333-3333-333333333333"
	long := strings.Repeat("x", 100000)
	tests := []struct {
		name string
		set  Env
		want func(*Job)
	}{
		{"as it is", nil, func(*Job) {}},
		{"root's job", Env{"SLURM_JOB_UID": "0", "SLURM_JOB_GID": "0"}, func(j *Job) { j.UID, j.GID = 0, 0 }},
		{"the highest id", Env{"SLURM_JOB_ID": "4294967293"}, func(j *Job) { j.ID = 4294967293 }},
		{"ranges of GPUs", Env{"SLURM_JOB_GPUS": "0-2,5"}, func(j *Job) { j.GPUs = []int{0, 1, 2, 5} }},
		{"a range of GPUs", Env{"SLURM_JOB_GPUS": "0-1,3"}, func(j *Job) { j.GPUs = []int{0, 1, 3} }},
		{"no GPU", Env{"SLURM_JOB_GPUS": "", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, func(*Job) {}},
		{"MIG", Env{"SLURM_JOB_GPUS": "3,4", "CUDA_VISIBLE_DEVICES": mig1 + "," + mig2}, func(j *Job) {
			j.GPUs, j.Visible, j.MIG = []int{3, 4}, []string{mig1, mig2}, []site.UUID{mig1, mig2}
		}},
		{"env_uuid", Env{"SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": gpu}, func(j *Job) {
			j.GPUs, j.Visible, j.UUIDs = []int{3}, []string{gpu}, []site.UUID{gpu}
		}},
		{"what a user may write", Env{"SLURM_JOB_COMMENT": "a\nb\x1b[31m", "SPANK_MPS": "off\n", "SLURM_JOB_CONSTRAINTS": "mps&\x00", "SLURM_JOB_EXTRA": long}, func(j *Job) {
			j.Comment, j.Option, j.HasOption, j.Requested = "a\nb\x1b[31m", "off\n", true, []string{"mps", "\x00"}
		}},
		{"the option without a value", Env{"SPANK_MPS": ""}, func(j *Job) { j.HasOption = true }},
		{"(null)", Env{"SLURM_JOB_CONSTRAINTS": "(null)", "SLURM_JOB_COMMENT": "(null)", "SLURM_JOB_RESERVATION": "(null)"}, func(*Job) {}},
		{"not said", Env{"SLURM_JOB_NTASKS": "4294967294", "SLURM_JOB_NUM_NODES": "4294967295"}, func(*Job) {}},
		{"the rest", Env{"SLURM_JOB_QOS": "high", "SLURM_JOB_ACCOUNT": "phys", "SLURM_JOB_RESERVATION": "r1", "SLURM_JOB_RESTART_COUNT": "2",
			"SLURM_HET_JOB_ID": "6", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "0"}, func(j *Job) {
			j.QOS, j.Account, j.Reservation, j.Restart, j.Array = "high", "phys", "r1", 2, 5
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := Job{Job: policy.Job{ID: 7, UID: 1001, GID: 1001, Node: "n1"}}
			tt.want(&want)
			got := must.Get(ReadJob(recorded.With(prologEnv(), tt.set), Prolog))(t)
			must.Hold(t, reflect.DeepEqual(got, want), "got  %+v\nwant %+v", got, want)
		})
	}
}

func TestReadJobRefuses(t *testing.T) {
	const id = `, want a job's number from 1 to 4294967293`
	const gpus = `, want positions such as "0,2" or "0-3", each below 1024`
	tests := []struct {
		set  Env
		want string
	}{
		{Env{"SLURM_SCRIPT_CONTEXT": "prolog_task"}, `cannot read job: SLURM_SCRIPT_CONTEXT is "prolog_task", want "prolog_slurmd": run this as slurmd's Prolog= in slurm.conf`},
		{Env{"SLURM_SCRIPT_CONTEXT": "-"}, `cannot read job: SLURM_SCRIPT_CONTEXT is not set: run this as slurmd's Prolog= in slurm.conf`},
		{Env{"SLURM_JOB_ID": "-"}, `cannot read job: SLURM_JOB_ID is not set: slurmd sets it, so run this as slurmd's script and not by hand`},
		{Env{"SLURM_JOB_UID": "-"}, `cannot read job: SLURM_JOB_UID is not set: slurmd sets it, so run this as slurmd's script and not by hand`},
		{Env{"SLURM_JOB_GID": "-"}, `cannot read job: SLURM_JOB_GID is not set: slurmd sets it, so run this as slurmd's script and not by hand`},
		{Env{"SLURMD_NODENAME": "-"}, `cannot read job: SLURMD_NODENAME is not set: slurmd sets it, so run this as slurmd's script and not by hand`},
		{Env{"SLURM_JOB_ID": ""}, `cannot read job: SLURM_JOB_ID is ""` + id},
		{Env{"SLURM_JOB_ID": "0"}, `cannot read job: SLURM_JOB_ID is "0"` + id},
		{Env{"SLURM_JOB_ID": "-7"}, `cannot read job: SLURM_JOB_ID is "-7"` + id},
		{Env{"SLURM_JOB_ID": "+7"}, `cannot read job: SLURM_JOB_ID is "+7"` + id},
		{Env{"SLURM_JOB_ID": " 7"}, `cannot read job: SLURM_JOB_ID is " 7"` + id},
		{Env{"SLURM_JOB_ID": "7_1"}, `cannot read job: SLURM_JOB_ID is "7_1"` + id},
		{Env{"SLURM_JOB_ID": "../7"}, `cannot read job: SLURM_JOB_ID is "../7"` + id},
		{Env{"SLURM_JOB_ID": "7\n8"}, `cannot read job: SLURM_JOB_ID is "7\n8"` + id},
		{Env{"SLURM_JOB_ID": "7\x00"}, `cannot read job: SLURM_JOB_ID is "7\x00"` + id},
		{Env{"SLURM_JOB_ID": "٧"}, `cannot read job: SLURM_JOB_ID is "٧"` + id},
		{Env{"SLURM_JOB_ID": "4294967294"}, `cannot read job: SLURM_JOB_ID is "4294967294"` + id},
		{Env{"SLURM_JOB_ID": "4294967303"}, `cannot read job: SLURM_JOB_ID is "4294967303"` + id},
		{Env{"SLURM_JOB_ID": strings.Repeat("7", 70)}, `cannot read job: SLURM_JOB_ID is "` + strings.Repeat("7", 64) + `"…` + id},
		{Env{"SLURM_JOB_UID": "4294967295"}, `cannot read job: SLURM_JOB_UID is "4294967295", want a user's number from 0 to 4294967293`},
		{Env{"SLURM_JOB_UID": "user"}, `cannot read job: SLURM_JOB_UID is "user", want a user's number from 0 to 4294967293`},
		{Env{"SLURM_JOB_GID": "4294967295"}, `cannot read job: SLURM_JOB_GID is "4294967295", want a group's number from 0 to 4294967293`},
		{Env{"SLURMD_NODENAME": "n1\nx"}, `cannot read job: SLURMD_NODENAME is "n1\nx", want a value without control characters`},
		{Env{"SLURM_JOB_USER": strings.Repeat("u", 256)}, `cannot read job: SLURM_JOB_USER is "` + strings.Repeat("u", 64) + `"…, 256 bytes long, want at most 255`},
		{Env{"SLURM_CONF": "/a\x00b"}, `cannot read job: SLURM_CONF is "/a\x00b", want a value without control characters`},
		{Env{"SLURM_JOB_NTASKS": "many"}, `cannot read job: SLURM_JOB_NTASKS is "many", want a number from 0 to 4294967293`},
		{Env{"SLURM_JOB_GPUS": "0,,1"}, `cannot read job: SLURM_JOB_GPUS is "0,,1"` + gpus},
		{Env{"SLURM_JOB_GPUS": "3-1"}, `cannot read job: SLURM_JOB_GPUS is "3-1"` + gpus},
		{Env{"SLURM_JOB_GPUS": "[0-1]"}, `cannot read job: SLURM_JOB_GPUS is "[0-1]"` + gpus},
		{Env{"SLURM_JOB_GPUS": "1024"}, `cannot read job: SLURM_JOB_GPUS is "1024"` + gpus},
		{Env{"SLURM_JOB_GPUS": "0-99999999"}, `cannot read job: SLURM_JOB_GPUS is "0-99999999"` + gpus},
		{Env{"CUDA_VISIBLE_DEVICES": "0,-1"}, `cannot read job: CUDA_VISIBLE_DEVICES is "0,-1", want indices or UUIDs of GPUs or of MIG instances`},
		{Env{"CUDA_VISIBLE_DEVICES": "MIG-GPU-1/2/0"}, `cannot read job: CUDA_VISIBLE_DEVICES is "MIG-GPU-1/2/0", want indices or UUIDs of GPUs or of MIG instances`},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			job, err := ReadJob(recorded.With(prologEnv(), tt.set), Prolog)
			must.Equal(t, fmt.Sprintf("got  %v\nwant", err), recorded.Message(err), tt.want)
			must.Hold(t, reflect.DeepEqual(job, Job{}), "a refused job is %+v", job)
		})
	}
}

// In an epilog, ReadJob accepts bad values, because an epilog that fails drains the node. The record contains all
// that the epilog must undo.
func TestReadJobEpilogIsLenient(t *testing.T) {
	env := Env{"SLURM_SCRIPT_CONTEXT": "epilog_slurmd", "SLURM_JOB_ID": "7", "SLURM_JOB_UID": "x", "SLURM_JOB_GPUS": "y", "CUDA_VISIBLE_DEVICES": "z", "SLURM_JOB_USER": "a\nb"}
	job, err := ReadJob(env, Epilog)
	must.OK(t, err)
	if want := (Job{Job: policy.Job{ID: 7}}); !reflect.DeepEqual(job, want) {
		t.Errorf("got %+v, want %+v", job, want)
	}
	_, err = ReadJob(recorded.With(env, Env{"SLURM_JOB_ID": "0"}), Epilog)
	if want := `cannot read job: SLURM_JOB_ID is "0", want a job's number from 1 to 4294967293`; recorded.Message(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
	_, err = ReadJob(prologEnv(), Epilog)
	if want := `cannot read job: SLURM_SCRIPT_CONTEXT is "prolog_slurmd", want "epilog_slurmd": run this as slurmd's Epilog= in slurm.conf`; recorded.Message(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// The table has each variable once. No value that a user controls makes ReadJob fail.
func TestVariablesTable(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range new(Job).variables() {
		must.Hold(t, !seen[v.name], "%s is in the table twice", v.name)
		seen[v.name] = true
	}
	for _, name := range []string{"SLURM_JOB_COMMENT", "SLURM_JOB_CONSTRAINTS", "SPANK_MPS"} {
		for _, value := range []string{"", "\x00\n", "]&[", strings.Repeat("x", 1<<20)} {
			if _, err := ReadJob(recorded.With(prologEnv(), Env{name: value}), Prolog); err != nil || !seen[name] {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestFeatures(t *testing.T) {
	tests := []struct {
		in   string
		want []string
	}{
		{"", nil}, {"(null)", nil}, {"mps", []string{"mps"}}, {"a100&mps", []string{"a100", "mps"}}, {"mps|fast", []string{"mps", "fast"}},
		{"[mps|fast]", []string{"mps", "fast"}}, {"mps*1", []string{"mps"}}, {"[rack1*2&rack2*4]", []string{"rack1", "rack2"}},
		{"(a|b)&mps", []string{"a", "b", "mps"}}, {"a:2,b", []string{"a", "b"}}, {"mps&mps", []string{"mps"}}, {"nomps&xmps", []string{"nomps", "xmps"}},
		{" a & b ", []string{"a", "b"}}, {"7&a", []string{"7", "a"}}, {"a*2b", []string{"a", "2b"}}, {"&|,[]()*:", nil},
	}
	for _, tt := range tests {
		if got := Features(tt.in); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("Features(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func FuzzReadJob(f *testing.F) {
	f.Add("7", "1001", "0,1", "0,1", "mps", "x\ny")
	f.Add("0", "-1", "[0-3", "MIG-1,0", "[a*2|b]", "\x00")
	f.Add("99999999999999999999", "4294967295", "0-4096", "NoDevFiles", "(null)", "")
	f.Fuzz(func(t *testing.T, id, uid, gpus, visible, constraints, comment string) {
		env := recorded.With(prologEnv(), Env{"SLURM_JOB_ID": id, "SLURM_JOB_UID": uid, "SLURM_JOB_GPUS": gpus, "CUDA_VISIBLE_DEVICES": visible})
		env["SLURM_JOB_CONSTRAINTS"], env["SLURM_JOB_COMMENT"] = constraints, comment
		job, err := ReadJob(env, Prolog)
		if err != nil {
			must.Hold(t, !strings.ContainsAny(err.Error(), "\n\x00\x1b") && len(err.Error()) <= 600,
				"an error that breaks a log: %q", err)
			return
		}
		must.Hold(t, job.ID != 0 && job.ID < noVal && job.UID < noVal && len(job.GPUs) <= positionsMax, "accepted %+v", job)
		must.Hold(t, comment == "(null)" || job.Comment == comment, "comment %q became %q", comment, job.Comment)
		for _, uuid := range append(job.MIG, job.UUIDs...) {
			must.Hold(t, uuid.Valid(), "UUID %q", uuid)
		}
	})
}

func FuzzFeatures(f *testing.F) {
	for _, seed := range []string{"mps", "[a*2&b*3]", "(a|b)&c:1", "(null)", "*1*2:3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, expression string) {
		for _, name := range Features(expression) {
			must.Hold(t, name != "" && !strings.ContainsAny(name, "&|,[]()*:") && strings.Contains(expression, name),
				"Features(%q) has %q", expression, name)
		}
	})
}

func TestNoAmbientState(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "7")
	t.Setenv("SLURM_SCRIPT_CONTEXT", string(Prolog))
	if _, err := ReadJob(Env{}, Prolog); err == nil {
		t.Errorf("a job was read from the process's own environment")
	}
}

// recording reads an environment that Slurm passed to one of its scripts.
func recording(t *testing.T, path string) Env { return NewEnv(recorded.Lines(t, path)) }

// recordings lists the recordings that match.
func recordings(t *testing.T, pattern string, atLeast int) []string {
	return recorded.Paths(t, pattern, atLeast)
}

func TestRankOf(t *testing.T) {
	for name, c := range map[string]struct {
		env  Env
		rank int
		step string
	}{
		"outside of Slurm":      {Env{}, -1, ""},
		"a batch script":        {Env{"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, -1, "batch"},
		"an interactive step":   {Env{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"}, -1, "batch"},
		"srun":                  {Env{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_PROCID": "12"}, 12, "3"},
		"mpirun in a script":    {Env{"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "5"}, 5, "batch"},
		"torchrun below srun":   {Env{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_PROCID": "0", "TORCHELASTIC_RUN_ID": "x", "RANK": "2"}, 2, "3"},
		"what is not a number":  {Env{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_PROCID": "-1"}, -1, "3"},
		"a step that is no one": {Env{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "x", "SLURM_PROCID": "1"}, -1, ""},
	} {
		if rank, step := RankOf(c.env); rank != c.rank || step != c.step {
			t.Errorf("%s: rank %d of step %q, want %d of %q", name, rank, step, c.rank, c.step)
		}
	}
	if names := RankVariables(); !slices.Contains(names, "PMI_RANK") || slices.Contains(names, "") {
		t.Errorf("variables %q", names)
	}
}
