// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site"
)

// Job is what slurmd tells a prolog or an epilog about a job on this node. A zero value means that this release of
// Slurm does not say. The fields that a user writes are marked: they may hold any byte, newlines too, and a caller
// makes them safe before it logs them.
type Job struct {
	ID   uint32 // never 0
	UID  uint32
	GID  uint32
	User string // the name as Slurm knows it

	Node    string // NodeName of slurm.conf, which need not be the host's name
	Cluster string
	Conf    string // path of slurm.conf; gres.conf lies beside it

	Partition   string
	Account     string
	QOS         string // Slurm 26.05 on
	Reservation string
	Comment     string   // the user's
	Extra       string   // the user's; Slurm 23.02 on
	Constraints []string // the user's: whole feature names of the expression, in its order, each once

	RestartCount int    // times requeued; the epilog of a requeue already counts it
	NTasks       int    // ranks of the whole job
	NumNodes     int    // nodes of the whole job
	HetJobID     uint32 // the leader of a heterogeneous job
	ArrayJobID   uint32
	ArrayTaskID  uint32 // only where ArrayJobID is not 0

	GPUs    []int       // positions in this node's list of GPUs (Gres), not indices of nvidia-smi; none: no GPU here
	Visible []string    // the items of CUDA_VISIBLE_DEVICES as they came
	MIG     []site.UUID // those of Visible that name MIG instances
	UUIDs   []site.UUID // those of Visible that name whole GPUs: Flags=env_uuid in gres.conf

	GresMPS bool // it has a part of a GPU by Slurm's gres/mps

	Option    string // the user's: the value of the option --mps of the SPANK plugin, "" without a value
	HasOption bool   // whether the option was given
}

// Controller says who decides a variable's value.
type Controller string

// Slurm's values are trusted once they are well formed. A user's are hostile: they are carried, never believed.
const (
	BySlurm Controller = "slurm"
	ByUser  Controller = "user"
)

// Need says what becomes of a job whose variable is missing or malformed.
type Need string

// An epilog obeys the record of the prolog and needs little more than the job's number, so most of what a prolog must
// know is taken there if it reads well and left out if not: an epilog that refuses drains the node.
const (
	Required   Need = "required" // missing or malformed: refused
	Validated  Need = "checked"  // missing: zero value; malformed: refused
	BestEffort Need = "offered"  // missing or malformed: zero value
)

// Variable is a row of the table of variables.
type Variable struct {
	Name   string // in the environment
	Field  string // of Job
	Prolog Need
	Epilog Need
	By     Controller
	parse  func(*Job, string) error
}

// Variables is the table that ReadJob follows, in its order.
func Variables() []Variable {
	return []Variable{
		{"SLURM_JOB_ID", "ID", Required, Required, BySlurm, number(1, func(j *Job) *uint32 { return &j.ID }, "a job's number")},
		{"SLURM_JOB_UID", "UID", Required, BestEffort, BySlurm, number(0, func(j *Job) *uint32 { return &j.UID }, "a user's number")},
		{"SLURM_JOB_GID", "GID", Required, BestEffort, BySlurm, number(0, func(j *Job) *uint32 { return &j.GID }, "a group's number")},
		{"SLURM_JOB_USER", "User", Validated, BestEffort, BySlurm, name(func(j *Job) *string { return &j.User })},
		{"SLURMD_NODENAME", "Node", Required, BestEffort, BySlurm, name(func(j *Job) *string { return &j.Node })},
		{"SLURM_CLUSTER_NAME", "Cluster", Validated, BestEffort, BySlurm, name(func(j *Job) *string { return &j.Cluster })},
		{"SLURM_CONF", "Conf", Validated, BestEffort, BySlurm, path(func(j *Job) *string { return &j.Conf })},
		{"SLURM_JOB_PARTITION", "Partition", Validated, BestEffort, BySlurm, name(func(j *Job) *string { return &j.Partition })},
		{"SLURM_JOB_ACCOUNT", "Account", Validated, BestEffort, BySlurm, name(func(j *Job) *string { return &j.Account })},
		{"SLURM_JOB_QOS", "QOS", Validated, BestEffort, BySlurm, name(func(j *Job) *string { return &j.QOS })},
		{"SLURM_JOB_RESERVATION", "Reservation", Validated, BestEffort, BySlurm, name(func(j *Job) *string { return &j.Reservation })},
		{"SLURM_JOB_COMMENT", "Comment", BestEffort, BestEffort, ByUser, text(func(j *Job) *string { return &j.Comment })},
		{"SLURM_JOB_EXTRA", "Extra", BestEffort, BestEffort, ByUser, text(func(j *Job) *string { return &j.Extra })},
		{"SLURM_JOB_CONSTRAINTS", "Constraints", BestEffort, BestEffort, ByUser, constraints},
		{"SLURM_JOB_RESTART_COUNT", "RestartCount", Validated, BestEffort, BySlurm, count(func(j *Job) *int { return &j.RestartCount })},
		{"SLURM_JOB_NTASKS", "NTasks", Validated, BestEffort, BySlurm, count(func(j *Job) *int { return &j.NTasks })},
		{"SLURM_JOB_NUM_NODES", "NumNodes", Validated, BestEffort, BySlurm, count(func(j *Job) *int { return &j.NumNodes })},
		{"SLURM_HET_JOB_ID", "HetJobID", Validated, BestEffort, BySlurm, number(0, func(j *Job) *uint32 { return &j.HetJobID }, "a job's number")},
		{"SLURM_ARRAY_JOB_ID", "ArrayJobID", Validated, BestEffort, BySlurm, number(0, func(j *Job) *uint32 { return &j.ArrayJobID }, "a job's number")},
		{"SLURM_ARRAY_TASK_ID", "ArrayTaskID", Validated, BestEffort, BySlurm, number(0, func(j *Job) *uint32 { return &j.ArrayTaskID }, "an array task's number")},
		{"SLURM_JOB_GPUS", "GPUs", Validated, BestEffort, BySlurm, positions},
		{"CUDA_VISIBLE_DEVICES", "Visible", Validated, BestEffort, BySlurm, visible},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "GresMPS", BestEffort, BestEffort, BySlurm, gresMPS},
		{"SPANK_MPS", "Option", BestEffort, BestEffort, ByUser, option},
	}
}

// ReadJob reads the job that a prolog or an epilog runs for. It refuses another context than want, a missing variable
// that the context requires, and a malformed value of a variable that Slurm controls and the context checks.
func ReadJob(env Env, want Context) (Job, error) {
	if err := checkContext(env, want); err != nil {
		return Job{}, err
	}
	var job Job
	for _, v := range Variables() {
		if err := readVariable(&job, env, v, want); err != nil {
			return Job{}, fmt.Errorf("cannot read job: %w", err)
		}
	}
	return job, nil
}

func checkContext(env Env, want Context) error {
	setting := map[Context]string{Prolog: "Prolog=", Epilog: "Epilog="}[want]
	if setting == "" {
		return fmt.Errorf("cannot read job: context %q is neither %q nor %q", want, Prolog, Epilog)
	}
	got, ok := env["SLURM_SCRIPT_CONTEXT"]
	if !ok {
		return fmt.Errorf("cannot read job: SLURM_SCRIPT_CONTEXT is not set: run this as slurmd's %s in slurm.conf", setting)
	}
	if Context(got) != want {
		return fmt.Errorf("cannot read job: SLURM_SCRIPT_CONTEXT is %s, want %q: run this as slurmd's %s in slurm.conf",
			quote(got), want, setting)
	}
	return nil
}

func readVariable(job *Job, env Env, v Variable, in Context) error {
	need := v.Prolog
	if in == Epilog {
		need = v.Epilog
	}
	value, ok := env[v.Name]
	if !ok {
		if need == Required {
			return fmt.Errorf("%s is not set: slurmd sets it, so run this as slurmd's script and not by hand", v.Name)
		}
		return nil
	}
	// A parser that fails has left the job as it was.
	if err := v.parse(job, value); err != nil && need != BestEffort {
		return fmt.Errorf("%s %w", v.Name, err)
	}
	return nil
}

// quote shows a value in an error: bounded, and without bytes that would break a line of a log.
func quote(value string) string {
	const most = 64
	if len(value) > most {
		return strconv.Quote(value[:most]) + "…"
	}
	return strconv.Quote(value)
}

// number reads an id: digits alone, from least to the highest that Slurm does not keep for itself.
func number(least uint64, field func(*Job) *uint32, what string) func(*Job, string) error {
	return func(j *Job, value string) error {
		n, err := parseDigits(value)
		if err != nil || n < least || n >= noVal {
			return fmt.Errorf("is %s, want %s from %d to %d", quote(value), what, least, uint32(noVal-1))
		}
		*field(j) = uint32(n)
		return nil
	}
}

// count reads a number of things; what Slurm keeps for "not said" is 0 here.
func count(field func(*Job) *int) func(*Job, string) error {
	return func(j *Job, value string) error {
		n, err := parseDigits(value)
		if err != nil || n > noVal+1 {
			return fmt.Errorf("is %s, want a number from 0 to %d", quote(value), uint32(noVal-1))
		}
		if n < noVal {
			*field(j) = int(n)
		}
		return nil
	}
}

// name reads a word of Slurm's: the name of a node, a user, a partition. They end up in paths and in logs.
func name(field func(*Job) *string) func(*Job, string) error {
	return bounded(field, 255)
}

// path reads a path of Slurm's.
func path(field func(*Job) *string) func(*Job, string) error {
	return bounded(field, 4095)
}

func bounded(field func(*Job) *string, most int) func(*Job, string) error {
	return func(j *Job, value string) error {
		if value == "(null)" {
			return nil
		}
		if len(value) > most {
			return fmt.Errorf("is %s, %d bytes long, want at most %d", quote(value), len(value), most)
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("is %s, want a value without control characters", quote(value))
		}
		*field(j) = value
		return nil
	}
}

// text carries what a user wrote.
func text(field func(*Job) *string) func(*Job, string) error {
	return func(j *Job, value string) error {
		if value != "(null)" {
			*field(j) = value
		}
		return nil
	}
}

// gresMPS takes the variable that slurmd gives the prolog of a job of gres/mps, and of no other (recorded on 24.11).
func gresMPS(j *Job, _ string) error {
	j.GresMPS = true
	return nil
}

func option(j *Job, value string) error {
	j.Option, j.HasOption = value, true
	return nil
}

func constraints(j *Job, value string) error {
	j.Constraints = Features(value)
	return nil
}

// Features takes a constraint expression such as "a100&[rack1*2|rack2]" apart and returns the whole names in it, each
// once, in their order. Counts behind "*" or ":" are no names. The operators are lost: a name that stands in an
// alternative counts as asked for. "(null)", which older releases print, is none.
func Features(expression string) []string {
	if expression == "(null)" {
		return nil
	}
	var names []string
	start, counts := 0, false
	take := func(end int) {
		word := strings.TrimSpace(expression[start:end])
		isCount := counts && strings.Trim(word, "0123456789") == ""
		if word != "" && !isCount && !slices.Contains(names, word) {
			names = append(names, word)
		}
	}
	for i := 0; i < len(expression); i++ {
		if !strings.ContainsRune("&|,[]()*:", rune(expression[i])) {
			continue
		}
		take(i)
		start, counts = i+1, expression[i] == '*' || expression[i] == ':'
	}
	take(len(expression))
	return names
}

// positionsMax is Slurm's bound on the devices of one kind on a node (MAX_GRES_BITMAP).
const positionsMax = 1024

// positions reads SLURM_JOB_GPUS: "0,2", and ranges such as "0-3" or "[0-3]" should a release print them.
func positions(j *Job, value string) error {
	if value == "" {
		return nil
	}
	refuse := fmt.Errorf("is %s, want positions such as \"0,2\" or \"0-3\", each below %d", quote(value), positionsMax)
	list := value
	if inner, ok := strings.CutPrefix(list, "["); ok {
		if list, ok = strings.CutSuffix(inner, "]"); !ok {
			return refuse
		}
	}
	words, err := expandRanges(list, positionsMax)
	if err != nil {
		return refuse
	}
	gpus := make([]int, 0, len(words))
	for _, word := range words {
		n, err := parseDigits(word)
		if err != nil || n >= positionsMax {
			return refuse
		}
		gpus = append(gpus, int(n))
	}
	j.GPUs = gpus
	return nil
}

// visible reads CUDA_VISIBLE_DEVICES as slurmd sets it: indices, UUIDs of MIG instances, with Flags=env_uuid UUIDs of
// GPUs, or "NoDevFiles" for a job without a GPU.
func visible(j *Job, value string) error {
	if value == "" || value == "NoDevFiles" {
		return nil
	}
	var mig, gpus []site.UUID
	items := strings.Split(value, ",")
	for _, item := range items {
		uuid := site.UUID(item)
		switch {
		case uuid.Valid() && uuid.MIG():
			mig = append(mig, uuid)
		case uuid.Valid():
			gpus = append(gpus, uuid)
		case strings.Trim(item, "0123456789") != "" || item == "":
			return fmt.Errorf("is %s, want indices or UUIDs of GPUs or of MIG instances", quote(value))
		}
	}
	j.Visible, j.MIG, j.UUIDs = items, mig, gpus
	return nil
}
