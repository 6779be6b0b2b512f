// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// row is a placement in JSON: the fields of a rank in mpsctl plan, and more.
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

// Print writes the placement and its environment, as lines for a shell or as JSON.
func (s Placement) Print(out io.Writer, asJSON bool) error {
	if asJSON {
		return s.printJSON(out)
	}
	if err := s.Report(out, false); err != nil {
		return err
	}
	return s.Export(out)
}

// Export writes the placement's variables as lines for a TaskProlog or a shell.
func (s Placement) Export(out io.Writer) error {
	for _, v := range s.Variables() {
		line := "export " + v.Name + "=" + v.Value
		if v.Value == "" {
			line = "unset " + v.Name
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return fmt.Errorf("cannot print placement: %w", err)
		}
	}
	return nil
}

// Report writes the placement in one line, and the reasons for it in a line each.
func (s Placement) Report(out io.Writer, asJSON bool) error {
	if asJSON {
		return s.printJSON(out)
	}
	var parts []string
	for _, part := range s.parts() {
		parts = append(parts, part.String())
	}
	text := fmt.Sprintf("# rank %d of %d: %s\n", s.Task.LocalRank, s.Task.LocalSize, strings.Join(parts, "; "))
	for _, reason := range s.Why {
		text += "#   " + reason + "\n"
	}
	if _, err := io.WriteString(out, text); err != nil {
		return fmt.Errorf("cannot print placement: %w", err)
	}
	return nil
}

// shortUUID is the length of "GPU-" and eight digits, which distinguish the GPUs of a node.
const shortUUID = 12

// String describes the part.
func (p GPUShare) String() string {
	share, memory, ranks := "no cap", "", "ranks"
	if p.Share.Percent != 0 {
		share = fmt.Sprintf("%.1f %%", float64(p.Share.Percent)/float64(policy.PercentFrom(1)))
	}
	if p.Ceiling < policy.PercentFrom(100) {
		share += ", ceiling " + p.Ceiling.String() + " %"
	}
	if p.Memory.LimitMiB > 0 {
		memory = fmt.Sprintf(", %d MiB", p.Memory.UsableMiB)
	}
	if p.RanksOnGPU == 1 {
		ranks = "rank"
	}
	uuid := string(p.Device.UUID)
	return fmt.Sprintf("GPU %d (%s), %d of %d SMs (%s)%s, %d %s on it", p.GPU, uuid[:min(shortUUID, len(uuid))], p.Share.SMs, p.Device.SMs, share, memory, p.RanksOnGPU, ranks)
}

// why returns the reasons for a placement.
func (r Rank) why(ticket lease.Ticket, part GPUShare) []string {
	granted, own := ticket.Grant.Rule(), r.rule(ticket)
	share := "share " + own.String()
	if r.Options.Share != (policy.ShareRule{}) {
		share += " by " + given("share", r.Options.Own) + ", in place of " + granted.String()
	}
	if r.tunedBy != "" {
		share += " (tuned: " + r.tunedBy + ")"
	}
	ceiling := policy.PercentFrom(ticket.Grant.Ceiling)
	limit := policy.GPU{SMs: part.Device.SMs, SMsPerTPC: part.Device.TPC}.SMsAt(ceiling)
	return []string{
		"number of ranks by " + whoCounted(r.Task),
		"GPU by " + r.whyGPU(ticket.Devices),
		fmt.Sprintf("%s by rule %q of the policy", share, ticket.Rule),
		fmt.Sprintf("ceiling %s %% by that rule: at most %d SMs", ceiling, limit),
	}
}

// given names the flag that set an option, or its variable.
func given(flag string, byFlag bool) string {
	if byFlag {
		return "--" + flag
	}
	return Setting{Flag: flag}.Variable()
}

// whoCounted names the source of a rank's number for the user.
func whoCounted(task slurm.Task) string {
	switch task.Source {
	case slurm.SourceStepd:
		return "srun"
	case slurm.SourceInherited:
		return "srun, whose task started this process"
	case slurm.SourceSingle:
		return "no launcher: this process is alone"
	case slurm.SourceSlot:
		return "--slots"
	}
	return task.Source
}

// whyGPU names what chooseGPU has followed.
func (r Rank) whyGPU(devices []lease.TicketDevice) string {
	bound, confined := ownDevices(devices, r.Task, r.Binding, r.Host)
	alone := r.Task.BySlurm() && !r.Binding.AllOfStep
	switch {
	case len(devices) == 1:
		return "the job: it has no other on this node"
	case confined && alone:
		return "Slurm: the rank can open no other"
	case r.Options.GPU != "" && r.Options.GPU != Auto:
		return fmt.Sprintf("%s: %s", given("gpu", r.Options.OwnGPU), r.Options.GPU)
	case len(bound) < len(devices) && alone:
		return "Slurm: it is bound to the task"
	case r.Binding.OneTask && r.Task.BySlurm():
		return "Slurm: the step has no other task on this node"
	}
	return fmt.Sprintf("the rank's number: ranks go round the %d GPUs", len(bound))
}

func (s Placement) printJSON(out io.Writer) error {
	env := map[string]*string{}
	for _, v := range s.Variables() {
		env[v.Name] = nil
		if v.Value != "" {
			env[v.Name] = &v.Value
		}
	}
	var memory *int
	if s.Memory.LimitMiB > 0 {
		memory = &s.Memory.UsableMiB
	}
	content, err := json.Marshal(row{
		s.Task.LocalRank, s.GPU, s.Share.SMs, s.Percent(), memory, s.visible(), s.Daemon.PipeDir, env, s.Why,
	})
	if err != nil {
		return fmt.Errorf("cannot print placement: %w", err)
	}
	if _, err := fmt.Fprintln(out, string(content)); err != nil {
		return fmt.Errorf("cannot print placement: %w", err)
	}
	return nil
}
