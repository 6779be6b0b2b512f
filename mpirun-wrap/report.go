// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
)

// row is a placement in JSON: the fields of mpsctl plan, and more for a real rank.
type row struct {
	Rank      int               `json:"rank"`
	GPU       int               `json:"gpu"`
	SMs       int               `json:"sms"`
	Percent   policy.Percent    `json:"percent"`
	MemoryMiB *int              `json:"memory_mib"`
	UUID      string            `json:"uuid"` // for a rank with several GPUs: all of them, in order
	PipeDir   string            `json:"pipe_dir"`
	Env       map[string]string `json:"env"` // an empty value: the variable is unset
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

// Report writes the placement in one line.
func (s Placement) Report(out io.Writer, asJSON bool) error {
	if asJSON {
		return s.printJSON(out)
	}
	var parts []string
	for _, part := range s.parts() {
		parts = append(parts, part.String())
	}
	if len(s.Sees) > 1 {
		parts = append(parts, fmt.Sprintf("sees %d GPUs", len(s.Sees)))
	}
	_, err := fmt.Fprintf(out, "# rank %d of %d on this node (%s): %s\n", s.Task.LocalRank, s.Task.LocalSize, s.Task.Source, strings.Join(parts, "; "))
	if err != nil {
		return fmt.Errorf("cannot print placement: %w", err)
	}
	return nil
}

// String describes the part.
func (p GPUShare) String() string {
	share := "no cap"
	if p.Share.Percent != 0 {
		share = p.Share.Percent.String() + " %"
	}
	return fmt.Sprintf("GPU %d %s, %d of %d SMs (%s), %d ranks on it", p.GPU, p.Device.UUID, p.Share.SMs, p.Device.SMs, share, p.RanksOnGPU)
}

func (s Placement) printJSON(out io.Writer) error {
	env := map[string]string{}
	for _, v := range s.Variables() {
		env[v.Name] = v.Value
	}
	var memory *int
	if s.Memory.LimitMiB > 0 {
		memory = &s.Memory.UsableMiB
	}
	content, err := json.Marshal(map[string][]row{"ranks": {{
		s.Task.LocalRank, s.GPU, s.Share.SMs, s.Percent(), memory, s.visible(), s.Daemon.PipeDir, env,
	}}})
	if err != nil {
		return fmt.Errorf("cannot print placement: %w", err)
	}
	if _, err := fmt.Fprintln(out, string(content)); err != nil {
		return fmt.Errorf("cannot print placement: %w", err)
	}
	return nil
}
