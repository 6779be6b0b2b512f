// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl report without a job: the jobs that have a report on this node.

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/usage/judge"
)

// maxListed is the number of ended jobs in the list: the latest ones.
const maxListed = 20

type listed struct {
	Job       uint32     `json:"job"`
	Name      string     `json:"name,omitempty"`
	User      string     `json:"user"`
	Partition string     `json:"partition,omitempty"`
	Begin     time.Time  `json:"begin"`
	End       time.Time  `json:"end,omitzero"`
	GPUs      int        `json:"gpus"`
	Part      lease.Part `json:"part,omitzero"`
	GPUHours  float64    `json:"gpu_hours"`
	usage.Totals
	Mean usage.Sample `json:"mean"`
}

func printReports(call *command.Invocation) error {
	found, now := readableReports(call.Paths), time.Now()
	all := []listed{}
	for _, r := range found {
		all = append(all, listed{r.Job, r.Name, r.User, r.Partition, r.Begin, r.End, len(r.GPUs), r.Part,
			judge.Job{Report: r}.GPUHours(now), r.Totals, r.Mean()})
	}
	return call.Print("report", all, func(s command.Screen) string { return reportsText(found, s) })
}

// readableReports returns the reports that the caller may read: those of running jobs, and of the latest ended ones,
// the latest first. It leaves out those that it cannot read, such as other users' reports.
func readableReports(paths site.Paths) (all []usage.Report) {
	store := lease.OpenReadOnly(paths.Run(), "")
	running, _ := store.Dirs()
	for _, job := range running {
		files := []string{filepath.Join(store.JobDir(job), usage.Running)}
		if lease.IsShared(job) {
			files, _ = filepath.Glob(filepath.Join(store.JobDir(job), "report-*.json"))
		}
		for _, file := range files {
			if r, err := usage.Read(file); err == nil {
				all = append(all, r)
			}
		}
	}
	limit := len(all) + maxListed
	for _, path := range latestFirst(paths.Reports()) {
		if len(all) == limit {
			break
		}
		r, err := usage.Read(path)
		if err == nil && !slices.ContainsFunc(all, func(other usage.Report) bool { return other.Job == r.Job }) {
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b usage.Report) int { return b.Begin.Compare(a.Begin) })
	return all
}

// latestFirst returns the files of a folder, the latest first.
func latestFirst(folder string) (paths []string) {
	entries, _ := os.ReadDir(folder)
	changed := map[string]time.Time{}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			path := filepath.Join(folder, e.Name())
			paths, changed[path] = append(paths, path), info.ModTime()
		}
	}
	slices.SortFunc(paths, func(a, b string) int { return cmp.Or(changed[b].Compare(changed[a]), cmp.Compare(a, b)) })
	return paths
}

func reportsText(all []usage.Report, screen command.Screen) string {
	if len(all) == 0 {
		return screen.Wrap("", "This node has no report that you may read. "+
			"A job has one if it ran here with a client of MPS in the last 30 days.")
	}
	user := 0
	if slices.ContainsFunc(all, func(r usage.Report) bool { return r.User != all[0].User }) {
		user = 9
	}
	name, active := max(screen.Columns-64-user, 7), usage.All[0]
	row := fmt.Sprintf("%%-10v %%-%d.%ds%%-%d.%ds %%-11s %%6s %%4v %%7v %%8v %%9s", user, max(user-1, 0), name, name)
	var b strings.Builder
	b.WriteString(screen.Faint(fmt.Sprintf(row, "job", "user", "name", "begin", "took", "GPUs", "clients", "bad ends",
		active.Name)) + "\n")
	for _, r := range all {
		took := "runs"
		if !r.End.IsZero() {
			took = age(r.End.Sub(r.Begin))
		}
		fmt.Fprintf(&b, row+"\n", r.Job, r.User, r.Name, r.Begin.Local().Format("01-02 15:04"), took, len(r.GPUs),
			r.ClientsSeen, r.BadEnds,
			usage.Percent(active.Of(r.Mean())))
	}
	return b.String() + "\n" + screen.Wrap("", "mpsctl report JOB prints one of them.")
}
