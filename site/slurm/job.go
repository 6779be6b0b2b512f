// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/site"
)

// Job is what slurmd reports to a prolog or an epilog about a job on this node. A zero value means that this release
// of Slurm does not report it. The fields that a user writes are marked. They may contain any byte, even newlines, so
// a caller must make them safe before it logs them.
type Job struct {
	ID   uint32 // never 0
	UID  uint32
	GID  uint32
	User string // the user's name in Slurm

	Node    string // NodeName of slurm.conf, which need not be the host's name
	Cluster string
	SLUID   string // names the job's control groups since Slurm 26.05
	Conf    string // path of slurm.conf; gres.conf is in the same folder

	Partition   string
	Account     string
	QOS         string // Slurm 26.05 on
	Reservation string
	Comment     string   // the user's
	Extra       string   // the user's; Slurm 23.02 on
	Constraints []string // the user's: the feature names in the expression, in its order, each once

	RestartCount int    // number of requeues; the epilog of a requeue counts it already
	NTasks       int    // ranks of the whole job
	NumNodes     int    // nodes of the whole job
	HetJobID     uint32 // the leader of a heterogeneous job
	ArrayJobID   uint32
	ArrayTaskID  uint32 // only if ArrayJobID is not 0

	GPUs    []int       // positions in this node's list of GPUs (Gres), not indices of nvidia-smi; none: no GPU here
	Visible []string    // the items of CUDA_VISIBLE_DEVICES, unchanged
	MIG     []site.UUID // the MIG instances in Visible
	UUIDs   []site.UUID // the whole GPUs in Visible, with Flags=env_uuid in gres.conf

	GresMPS bool // the job has a part of a GPU by Slurm's gres/mps

	Option    string // the user's: the value of the option --mps of the SPANK plugin, "" without a value
	HasOption bool   // whether the option was given
}

// Controller is who decides a variable's value: Slurm or the user.
type Controller string

// A well-formed value of Slurm's is trusted. A user's value may be hostile: it is passed on, but never trusted.
const (
	BySlurm Controller = "slurm"
	ByUser  Controller = "user"
)

// Need is what happens if a job's variable is missing or malformed.
type Need string

// An epilog follows the prolog's record and needs only the job's ID. Other variables are optional there, because an
// epilog that fails drains the node.
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

// Variables returns the table that ReadJob follows, in its order.
func Variables() []Variable {
	return []Variable{
		{"SLURM_JOB_ID", "ID", Required, Required, BySlurm, number(1, func(j *Job) *uint32 { return &j.ID }, "a job's number")},
		{"SLURM_JOB_UID", "UID", Required, BestEffort, BySlurm, number(0, func(j *Job) *uint32 { return &j.UID }, "a user's number")},
		{"SLURM_JOB_GID", "GID", Required, BestEffort, BySlurm, number(0, func(j *Job) *uint32 { return &j.GID }, "a group's number")},
		{"SLURM_JOB_USER", "User", Validated, BestEffort, BySlurm, name(func(j *Job) *string { return &j.User })},
		{"SLURMD_NODENAME", "Node", Required, BestEffort, BySlurm, name(func(j *Job) *string { return &j.Node })},
		{"SLURM_CLUSTER_NAME", "Cluster", Validated, BestEffort, BySlurm, name(func(j *Job) *string { return &j.Cluster })},
		{"SLURM_JOB_SLUID", "SLUID", BestEffort, BestEffort, BySlurm, name(func(j *Job) *string { return &j.SLUID })},
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

// ReadJob reads the job of a prolog or an epilog. It fails in three cases: the context is not want, a variable that
// the context requires is missing, or a variable that Slurm controls and the context checks is malformed.
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
	// A parser that fails does not change the job.
	if err := v.parse(job, value); err != nil && need != BestEffort {
		return fmt.Errorf("%s %w", v.Name, err)
	}
	return nil
}

// quote formats a value for an error.
func quote(value string) string { return site.Quote(value, 64) }

// number parses an id: only digits, from min to the highest number that Slurm does not reserve.
func number(min uint64, field func(*Job) *uint32, what string) func(*Job, string) error {
	return func(j *Job, value string) error {
		n, err := parseDigits(value)
		if err != nil || n < min || n >= noVal {
			return fmt.Errorf("is %s, want %s from %d to %d", quote(value), what, min, uint32(noVal-1))
		}
		*field(j) = uint32(n)
		return nil
	}
}

// count parses a number of things. Slurm's reserved value for an unset number gives 0.
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

// name parses a name of Slurm's, such as a node, a user or a partition. Names are used in paths and logs.
func name(field func(*Job) *string) func(*Job, string) error {
	return bounded(field, 255)
}

// path parses a path of Slurm's.
func path(field func(*Job) *string) func(*Job, string) error {
	return bounded(field, 4095)
}

func bounded(field func(*Job) *string, maxLength int) func(*Job, string) error {
	return func(j *Job, value string) error {
		if value == "(null)" {
			return nil
		}
		if len(value) > maxLength {
			return fmt.Errorf("is %s, %d bytes long, want at most %d", quote(value), len(value), maxLength)
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("is %s, want a value without control characters", quote(value))
		}
		*field(j) = value
		return nil
	}
}

// text copies a text of the user's.
func text(field func(*Job) *string) func(*Job, string) error {
	return func(j *Job, value string) error {
		if value != "(null)" {
			*field(j) = value
		}
		return nil
	}
}

// gresMPS is for a variable that slurmd sets only for the prolog of a job with gres/mps (recorded on 24.11).
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

// Features returns the feature names in a constraint expression such as "a100&[rack1*2|rack2]", in their order, each
// once. Counts after "*" or ":" are not names. The operators are lost, so a name in an alternative counts as
// requested. "(null)", which older releases print, has no names.
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

// positionsMax is Slurm's limit for the devices of one kind on a node (MAX_GRES_BITMAP).
const positionsMax = 1024

// positions parses SLURM_JOB_GPUS: "0,2", or a range such as "0-3" or "[0-3]", in case a release prints one.
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

// visible parses slurmd's CUDA_VISIBLE_DEVICES: indices, or UUIDs of MIG instances, or UUIDs of GPUs with
// Flags=env_uuid. A job without a GPU has "NoDevFiles".
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
