// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var shares = act{
	title: "Eight processes share two GPUs",
	before: "You see eight processes of one job (Slurm calls them ranks) on two GPUs. A GPU computes with " +
		"multiprocessors (SMs), and an H200 has 132 of them.",
	after: "It means: mpirun-wrap in the script divides each GPU among its ranks, to the last SM. MPS limits how many SMs " +
		"a rank uses at a time. It does not reserve particular SMs for the rank.",
	run: showShares,
}

func showShares(ctx context.Context, s showing) error {
	if _, err := s.must(ctx, s.user, "cat job.sh"); err != nil {
		return err
	}
	id, err := s.submit(ctx, "job.sh")
	if err != nil {
		return err
	}
	if _, err := s.cluster.WaitJob(ctx, int(id)); err != nil {
		return err
	}
	printed, err := s.must(ctx, s.user, "sort job.out")
	if err != nil {
		return err
	}
	parts, err := readParts(printed)
	if err != nil {
		return err
	}
	fmt.Fprint(s.out, "\nThe same as a picture. One column is two SMs:\n\n"+draw(parts))
	if err := checkParts(parts, 8, 2); err != nil {
		return err
	}
	if err := s.waitIdle(ctx); err != nil {
		return err
	}
	return s.checkClients(id, 8)
}

// part is the part of a GPU that a rank had, as CUDA reports it.
type part struct {
	rank, sms int
	gpu       string
}

var partForm = regexp.MustCompile(`(?m)^rank (\d+): (\d+) SMs of (GPU-[0-9a-f]+), [1-9]\d* kernels$`)

// readParts reads the output of the program app.
func readParts(printed string) (parts []part, err error) {
	for _, m := range partForm.FindAllStringSubmatch(printed, -1) {
		rank, _ := strconv.Atoi(m[1])
		sms, _ := strconv.Atoi(m[2])
		parts = append(parts, part{rank, sms, m[3]})
	}
	if lines := strings.Count(printed, "\n"); len(parts) != lines {
		return parts, fmt.Errorf("cannot read what the ranks print: %d of %d lines name a part of a GPU", len(parts), lines)
	}
	slices.SortFunc(parts, func(a, b part) int { return a.rank - b.rank })
	return parts, nil
}

const smsOfGPU, smsOfColumn = 132, 2

// byGPU groups the parts by GPU. The groups are in the order of the first rank on each GPU.
func byGPU(parts []part) (groups [][]part) {
	place := map[string]int{}
	for _, p := range parts {
		if _, known := place[p.gpu]; !known {
			place[p.gpu] = len(groups)
			groups = append(groups, nil)
		}
		groups[place[p.gpu]] = append(groups[place[p.gpu]], p)
	}
	return groups
}

// draw draws each GPU as a bar of its SMs.
func draw(parts []part) string {
	var b strings.Builder
	for i, group := range byGPU(parts) {
		bar, numbers := "", ""
		for _, p := range group {
			width := p.sms / smsOfColumn
			bar += "[" + centred(fmt.Sprintf("rank %d", p.rank), width-2, "=") + "]"
			numbers += centred(fmt.Sprintf("%d SMs", p.sms), width, " ")
		}
		fmt.Fprintf(&b, "    GPU %d  %s\n           %s\n", i, bar, strings.TrimRight(numbers, " "))
	}
	return b.String()
}

// centred puts a text in the middle of a field of width characters.
func centred(text string, width int, fill string) string {
	free := max(0, width-len(text))
	return strings.Repeat(fill, free/2) + text + strings.Repeat(fill, free-free/2)
}

// checkParts checks that the ranks share the GPUs equally, and that the SMs add up to all SMs of each GPU.
func checkParts(parts []part, ranks, gpus int) error {
	groups := byGPU(parts)
	if len(parts) != ranks || len(groups) != gpus {
		return fmt.Errorf("%d ranks ran on %d GPUs, want %d ranks on %d GPUs", len(parts), len(groups), ranks, gpus)
	}
	for i, group := range groups {
		sum := 0
		for _, p := range group {
			sum += p.sms
		}
		if sum != smsOfGPU || len(group) != ranks/gpus {
			return fmt.Errorf("GPU %d has %d ranks with %d SMs together, not %d with %d", i, len(group), sum, ranks/gpus, smsOfGPU)
		}
	}
	return nil
}

// checkClients checks in the log that the job's processes were clients of MPS, and that no process computed outside
// MPS.
func (m *machine) checkClients(job uint32, least int) error {
	summaries := m.logged("epilog", job, "summary")
	if len(summaries) != 1 {
		return fmt.Errorf("cannot check job %d: the log has %d summaries of it", job, len(summaries))
	}
	if s := summaries[0]; s.Clients < least || s.Outside > 0 {
		return fmt.Errorf("%d processes of job %d were under MPS and %d outside it", s.Clients, job, s.Outside)
	}
	return nil
}
