// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// Job is slurmd's report to a prolog or an epilog of a job on this node. A zero value means that this release
// of Slurm does not report it. The user's fields may contain any byte, even newlines, so a caller must make them safe
// before it logs them.
type Job struct {
	policy.Job
	SLUID   string      // names the job's control groups since Slurm 26.05
	Conf    string      // path of slurm.conf; gres.conf is in the same folder
	Visible []string    // the items of CUDA_VISIBLE_DEVICES, unchanged
	MIG     []site.UUID // the MIG instances in Visible
	UUIDs   []site.UUID // the whole GPUs in Visible, with Flags=env_uuid in gres.conf

	MPSPercent int // the job's part of its GPU by Slurm's gres/mps, in percent; 0 if it has none
}

// need is the effect if a variable of a prolog's job is missing or malformed.
type need int

// A well-formed value of Slurm's is trusted. A user's value may be hostile: it is optional, passed on, and never
// trusted. An epilog follows the prolog's record and needs only the job's ID. Other variables are optional there, because
// an epilog that fails drains the node.
const (
	optional need = iota // missing or malformed: zero value
	checked              // missing: zero value; malformed: refused
	required             // missing or malformed: refused
)

// variable is a row of the table of variables. parse writes the value into the job, if it is well-formed.
type variable struct {
	name  string
	need  need
	parse func(value string) error
}

// variables returns the table that ReadJob follows, in its order.
func (j *Job) variables() []variable {
	return []variable{
		{"SLURM_JOB_ID", required, Number(&j.ID, 1, "a job's number")},
		{"SLURM_JOB_UID", required, Number(&j.UID, 0, "a user's number")},
		{"SLURM_JOB_GID", required, Number(&j.GID, 0, "a group's number")},
		{"SLURM_JOB_USER", checked, text(&j.User, maxName)},
		{"SLURMD_NODENAME", required, text(&j.Node, maxName)},
		{"SLURM_JOB_SLUID", optional, text(&j.SLUID, maxName)},
		{"SLURM_CONF", checked, text(&j.Conf, maxPath)},
		{"SLURM_JOB_PARTITION", checked, text(&j.Partition, maxName)},
		{"SLURM_JOB_ACCOUNT", checked, text(&j.Account, maxName)},
		{"SLURM_JOB_QOS", checked, text(&j.QOS, maxName)},
		{"SLURM_JOB_RESERVATION", checked, text(&j.Reservation, maxName)},
		{"SLURM_JOB_COMMENT", optional, usersText(&j.Comment)},
		{"SLURM_JOB_CONSTRAINTS", optional, func(value string) error { j.Requested = Features(value); return nil }},
		{"SLURM_JOB_RESTART_COUNT", checked, Count(&j.Restart)},
		{"SLURM_JOB_NTASKS", checked, Count(&j.NTasks)},
		{"SLURM_JOB_NUM_NODES", checked, Count(&j.Nodes)},
		{"SLURM_NODELIST", optional, text(&j.NodeList, maxPath)}, // until 22.05; later SLURM_JOB_NODELIST
		{"SLURM_JOB_NODELIST", optional, text(&j.NodeList, maxPath)},
		{"SLURM_ARRAY_JOB_ID", checked, Number(&j.Array, 0, "a job's number")},
		{"SLURM_JOB_GPUS", checked, Positions(&j.GPUs)},
		{"CUDA_VISIBLE_DEVICES", checked, j.setVisible},
		// slurmd sets this only for the prolog of a job with gres/mps (recorded on 24.11).
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", optional, j.setMPSPercent},
		{"SPANK_MPS", optional, func(value string) error { j.Option, j.HasOption = value, true; return nil }},
	}
}

// setMPSPercent reads the part of a job with gres/mps: Slurm's units times 100 by the units of the GPU, rounded down, and
// at least 1. A value that is none is a part whose size is not known, so other jobs may have the GPU, too.
func (j *Job) setMPSPercent(value string) error {
	j.MPSPercent = 100
	if percent, err := Digits(value); err == nil && percent >= 1 && percent <= 100 {
		j.MPSPercent = int(percent)
	}
	return nil
}

// ReadJob reads the job of a prolog or an epilog. It fails in three cases: the context is not want, a variable that
// the context requires is missing, or a variable that Slurm controls and the context checks is malformed.
func ReadJob(env Env, want Context) (Job, error) {
	if err := checkContext(env, want); err != nil {
		return Job{}, err
	}
	var job Job
	for _, v := range job.variables() {
		if want == Epilog && v.name != "SLURM_JOB_ID" {
			v.need = optional
		}
		value, ok := env[v.name]
		if !ok && v.need == required {
			return Job{}, fmt.Errorf("cannot read job: %s is not set: slurmd sets it, so run this as slurmd's script and not by hand", v.name)
		}
		if !ok {
			continue
		}
		if err := v.parse(value); err != nil && v.need != optional {
			return Job{}, fmt.Errorf("cannot read job: %s %w", v.name, err)
		}
	}
	return job, nil
}

func checkContext(env Env, want Context) error {
	setting := map[Context]string{Prolog: "Prolog=", Epilog: "Epilog="}[want]
	got, ok := env["SLURM_SCRIPT_CONTEXT"]
	if !ok {
		return fmt.Errorf("cannot read job: SLURM_SCRIPT_CONTEXT is not set: run this as slurmd's %s in slurm.conf", setting)
	}
	if Context(got) != want {
		return fmt.Errorf("cannot read job: SLURM_SCRIPT_CONTEXT is %s, want %q: run this as slurmd's %s in slurm.conf",
			Quote(got), want, setting)
	}
	return nil
}

// Quote formats a value for an error.
func Quote(value string) string { return words.Quote(value, 64) }

// Number parses an id: only digits, from min to the highest number that Slurm does not reserve.
func Number(into *uint32, min uint64, noun string) func(string) error {
	return func(value string) error {
		n, err := Digits(value)
		if err != nil || n < min || n >= noVal {
			return fmt.Errorf("is %s, want %s from %d to %d", Quote(value), noun, min, uint32(noVal-1))
		}
		*into = uint32(n)
		return nil
	}
}

// Count parses a number of things. Slurm's reserved value for an unset number gives 0.
func Count(into *int) func(string) error {
	return func(value string) error {
		n, err := Digits(value)
		if err != nil || n > noVal+1 {
			return fmt.Errorf("is %s, want a number from 0 to %d", Quote(value), uint32(noVal-1))
		}
		if n < noVal {
			*into = int(n)
		}
		return nil
	}
}

// Bytes in a name of Slurm's, such as a node, a user or a partition, and in a path. Names are used in paths and logs.
const (
	maxName = 255
	maxPath = 4095
)

// text parses a text of Slurm's.
func text(into *string, maxLength int) func(string) error {
	return func(value string) error {
		if value == "(null)" {
			return nil
		}
		if len(value) > maxLength {
			return fmt.Errorf("is %s, %d bytes long, want at most %d", Quote(value), len(value), maxLength)
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("is %s, want a value without control characters", Quote(value))
		}
		*into = value
		return nil
	}
}

// usersText copies a text that the user has written.
func usersText(into *string) func(string) error {
	return func(value string) error {
		if value != "(null)" {
			*into = value
		}
		return nil
	}
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

// Positions parses SLURM_JOB_GPUS: "0,2", or a range such as "0-3", in case a release prints one.
func Positions(into *[]int) func(string) error {
	return func(value string) error {
		if value == "" {
			return nil
		}
		words, err := expandRanges(value, positionsMax)
		gpus := make([]int, 0, len(words))
		for _, word := range words {
			n, _ := strconv.Atoi(word)
			gpus = append(gpus, n)
		}
		if err != nil || slices.Max(gpus) >= positionsMax {
			return fmt.Errorf("is %s, want positions such as \"0,2\" or \"0-3\", each below %d", Quote(value), positionsMax)
		}
		*into = gpus
		return nil
	}
}

// setVisible parses slurmd's CUDA_VISIBLE_DEVICES: indices, or UUIDs of MIG instances, or UUIDs of GPUs with
// Flags=env_uuid. A job without a GPU has "NoDevFiles".
func (j *Job) setVisible(value string) error {
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
			return fmt.Errorf("is %s, want indices or UUIDs of GPUs or of MIG instances", Quote(value))
		}
	}
	j.Visible, j.MIG, j.UUIDs = items, mig, gpus
	return nil
}
