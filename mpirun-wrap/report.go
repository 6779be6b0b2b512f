// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// row is a placement in JSON: the fields of a rank in mpsctl policy explain --ranks, and more.
type row struct {
	Rank      int                `json:"rank"`
	GPU       int                `json:"gpu"`
	SMs       int                `json:"sms"`
	Percent   policy.Percent     `json:"percent"`
	MemoryMiB *int               `json:"memory_mib"`
	UUID      string             `json:"uuid"` // for a rank with several GPUs: all of them, in order
	PipeDir   string             `json:"pipe_dir"`
	Env       map[string]*string `json:"env"`           // null: the variable is unset
	Why       []string           `json:"why,omitempty"` // with --verbose
}

// report writes the placement in one line, the reasons for it in a line each, and with exports its variables as lines
// for a shell. As JSON, it always has the variables.
func (p *Placement) report(out io.Writer, asJSON, exports bool) (err error) {
	switch {
	case asJSON:
		err = json.NewEncoder(out).Encode(p.row())
	case exports:
		_, err = io.WriteString(out, p.line()+p.exports())
	default:
		_, err = io.WriteString(out, p.line())
	}
	if err != nil {
		return fmt.Errorf("cannot print placement: %w", err)
	}
	return nil
}

// exports are the placement's variables as lines for a TaskProlog or a shell.
func (p *Placement) exports() (text string) {
	for _, v := range p.variables() {
		if v.Value == "" {
			text += "unset " + v.Name + "\n"
		} else {
			text += "export " + v.Name + "=" + v.Value + "\n"
		}
	}
	return text
}

func (p *Placement) line() string {
	var parts []string
	for _, part := range p.parts() {
		parts = append(parts, part.String())
	}
	text := fmt.Sprintf("# rank %d of %d: %s\n", p.Task.LocalRank, p.Task.LocalSize, strings.Join(parts, "; "))
	for _, reason := range p.Why {
		text += "#   " + reason + "\n"
	}
	return text
}

func (p *Placement) row() row {
	env := map[string]*string{}
	for _, v := range p.variables() {
		env[v.Name] = nil
		if v.Value != "" {
			env[v.Name] = &v.Value
		}
	}
	var memory *int
	if p.Memory.LimitMiB > 0 {
		memory = &p.Memory.UsableMiB
	}
	return row{p.Task.LocalRank, p.GPU, p.Share.SMs, p.percent(), memory, p.visible(), p.Daemon.PipeDir, env, p.Why}
}

// shortUUID is the length of "GPU-" and eight digits, which distinguish the GPUs of a node.
const shortUUID = 12

// String describes the part.
func (g gpuShare) String() string {
	share, memory := "no cap", ""
	if g.Share.Percent != 0 {
		share = fmt.Sprintf("%.1f %%", float64(g.Share.Percent)/float64(policy.PercentFrom(1)))
	}
	if g.Ceiling < policy.PercentFrom(100) {
		share += ", ceiling " + g.Ceiling.String() + " %"
	}
	if g.Memory.LimitMiB > 0 {
		memory = fmt.Sprintf(", %d MiB", g.Memory.UsableMiB)
	}
	uuid := string(g.Device.UUID)
	return fmt.Sprintf("GPU %d (%s), %d of %d SMs (%s)%s, %s on it", g.GPU, uuid[:min(shortUUID, len(uuid))],
		g.Share.SMs, g.Device.SMs, share, memory, words.Count(g.RanksOnGPU, "rank"))
}

// why returns the reasons for a placement.
func (r *Rank) why(ticket *lease.Ticket, part *gpuShare) []string {
	granted := ticket.Grant.Share
	share := "share " + r.rule(ticket).String()
	if r.Options.Share != (policy.ShareRule{}) {
		share += " by " + given("share", r.Options.ShareFlag) + ", in place of " + granted.String()
	}
	ceiling := policy.PercentFrom(ticket.Grant.Ceiling)
	gpu := policy.GPU{SMs: part.Device.SMs, SMsPerTPC: part.Device.TPC}
	limit := gpu.SMsAt(ceiling)
	why := []string{
		"number of ranks by " + cmp.Or(whoCounted[r.Task.Source], r.Task.Source),
		"GPU by " + r.whyGPU(ticket.Devices),
		fmt.Sprintf("%s by rule %q of the policy", share, ticket.Rule),
		fmt.Sprintf("ceiling %s %% by that rule: at most %d SMs", ceiling, limit),
	}
	if percent := r.part(ticket); percent != 0 {
		by := "gres/" + ticket.Part.Gres
		if ticket.Part.Gres == lease.GresShard { // a job that a job with shards has submitted inherits the variable
			by += fmt.Sprintf(", SLURM_SHARDS_ON_NODE=%d", r.Shards)
		}
		why = append(why, fmt.Sprintf("part %s %% of the GPU by %s: at most %d SMs", percent, by, gpu.SMsAt(percent)))
	}
	return why
}

// given names the flag that set an option, or its variable.
func given(flag string, byFlag bool) string {
	if byFlag {
		return "--" + flag
	}
	return Setting{Flag: flag}.Variable()
}

// whoCounted names the sources of a rank's number for the user, except for launchers.
var whoCounted = map[string]string{
	launch.SourceStepd:     "srun",
	launch.SourceInherited: "srun, whose task started this process",
	launch.SourceSingle:    "no launcher: this process is alone",
	launch.SourceSlot:      "--slots",
}

// whyGPU names the cause of chooseGPU's choice.
func (r *Rank) whyGPU(devices []lease.TicketDevice) string {
	bound, confined := boundDevices(devices, r.Task, r.Binding, r.CanOpen)
	alone := r.Task.BySlurm() && !r.Binding.AllOfStep
	switch {
	case len(devices) == 1:
		return "the job: it has no other on this node"
	case confined && alone:
		return "Slurm: the rank can open no other"
	case len(r.pinned(devices)) > 0:
		return "CUDA_VISIBLE_DEVICES, as it was set"
	case r.Options.GPU != "" && r.Options.GPU != autoGPU:
		return fmt.Sprintf("%s: %s", given("gpu", r.Options.GPUFlag), r.Options.GPU)
	case len(bound) < len(devices) && alone:
		return "Slurm: it is bound to the task"
	case r.Binding.OneTask && r.Task.BySlurm():
		return "Slurm: the step has no other task on this node"
	}
	return fmt.Sprintf("the rank's number: ranks go round the %d GPUs", len(bound))
}
