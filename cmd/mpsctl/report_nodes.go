// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl report of all nodes of a job: nodes copy their reports into a folder that all nodes have, and
// another machine reads them there (docs/decisions.md, 62).

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/usage/judge"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// jobAnswer is the JSON of a job. What a report has is of all nodes together.
type jobAnswer struct {
	judge.Judged
	Nodes   []listed `json:"nodes"`
	Missing []string `json:"missing"` // nodes of the job without a report
	nodes   []usage.Report
}

func answerOf(nodes []usage.Report, now time.Time) jobAnswer {
	a := jobAnswer{judge.Job{Report: together(nodes)}.Judge(now), listOf(nodes, now), []string{}, nodes}
	a.GPUHours = 0
	for _, l := range a.Nodes {
		a.GPUHours += l.GPUHours
	}
	all, _ := slurm.ExpandHostlist(a.NodeList) // "" names none
	for _, name := range all {
		if !slices.ContainsFunc(nodes, func(r usage.Report) bool { return r.Node == name }) {
			a.Missing = append(a.Missing, name)
		}
	}
	return a
}

// numberOf is the job's own number. The name in an array is from a client's environment, which can be that of a job that
// has submitted this one.
func numberOf(r usage.Report) string { return strconv.FormatUint(uint64(r.Job), 10) }

// nameOf is the job's number, and what it says to be in an array.
func nameOf(r usage.Report) string {
	if r.Array == "" || r.Array == numberOf(r) {
		return numberOf(r)
	}
	return fmt.Sprintf("%s (%s)", numberOf(r), r.Array)
}

// oneJob returns an error if reports that have the name of a task of an array are of several jobs.
func oneJob(all []usage.Report) error {
	claims := map[string]bool{}
	for _, r := range all {
		claims[fmt.Sprintf("job %d of %s", r.Job, r.User)] = true
	}
	if len(claims) < 2 {
		return nil
	}
	names := slices.Sorted(maps.Keys(claims))
	return fmt.Errorf("several jobs have this name: give the number of one: %s", strings.Join(names[:min(len(names), maxNamed)], ", "))
}

// nodesOf returns the reports of a job: this node's, or else those of all nodes in the site's shared folder, or those
// in the folder that is given.
func nodesOf(paths site.Paths, job, from string) ([]usage.Report, error) {
	if from != "" {
		return latestRun(from, job)
	}
	r, err := latestReport(paths, job)
	config, _ := policyfile.ReadConfig(paths)
	if errors.Is(err, errNoReport) && config.SharedReports != "" {
		if self, unknown := user.Current(); unknown == nil {
			return latestRun(strings.ReplaceAll(config.SharedReports, "%u", self.Username), job)
		}
	}
	return []usage.Report{r}, err
}

// latestRun reads the reports of a job in a folder, which are this user's own, one of each node.
func latestRun(folder, job string) (nodes []usage.Report, _ error) {
	entries, failed := os.ReadDir(folder)
	for _, e := range entries {
		r, err := usage.ReadOwn(filepath.Join(folder, e.Name()), uint32(os.Geteuid()))
		switch {
		case err != nil:
			failed = err
		case r.Array == job || numberOf(r) == job:
			nodes = append(nodes, r)
		}
	}
	if err := oneJob(nodes); err != nil {
		return nil, err
	}
	if nodes = lastRun(nodes); len(nodes) > 0 {
		return nodes, nil
	}
	err := fmt.Errorf("%s has no copy of its report that is your own: it comes at the job's end", folder)
	if failed != nil {
		err = fmt.Errorf("%w; %w", err, failed)
	}
	return nil, err
}

// lastRun returns the latest report of each node. A requeued job may have run on other nodes before: a report that
// ended before another one began is of an earlier run.
func lastRun(reports []usage.Report) []usage.Report {
	byNode := map[string]usage.Report{}
	for _, r := range reports {
		if !r.Begin.Before(byNode[r.Node].Begin) {
			byNode[r.Node] = r
		}
	}
	nodes := slices.SortedFunc(maps.Values(byNode), func(a, b usage.Report) int { return b.Begin.Compare(a.Begin) })
	earlier := func(r usage.Report) bool { return !r.End.IsZero() && r.End.Before(nodes[0].Begin) }
	nodes = slices.DeleteFunc(nodes, earlier)
	slices.SortFunc(nodes, func(a, b usage.Report) int { return cmp.Compare(a.Node, b.Node) })
	return nodes
}

// together returns one report of several nodes. Its GPUs name their nodes, and it has the sums of their counts.
func together(nodes []usage.Report) usage.Report {
	all := nodes[0]
	if len(nodes) == 1 {
		return all
	}
	all.Node, all.SharedWith, all.GPUs, all.Clients, all.Faults, all.Totals = "", nil, nil, nil, nil, usage.Totals{}
	for _, r := range nodes {
		before := len(all.GPUs)
		for _, g := range r.GPUs {
			g.Node = r.Node
			all.GPUs = append(all.GPUs, g)
		}
		for _, c := range r.Clients {
			if c.GPU >= 0 {
				c.GPU += before
			}
			all.Clients = append(all.Clients, c)
		}
		for _, f := range r.Faults {
			f.GPU += before
			all.Faults = append(all.Faults, f)
		}
		all.ClientsSeen += r.ClientsSeen
		all.ClientsPeak += r.ClientsPeak
		all.OutsideSeen += r.OutsideSeen
		all.Pauses += r.Pauses
		all.PausedMillis += r.PausedMillis
		all.BadEnds += r.BadEnds
		all.EnergyJ += r.EnergyJ
		all.Node = strings.TrimPrefix(all.Node+","+r.Node, ",")
		if r.Begin.Before(all.Begin) {
			all.Begin = r.Begin
		}
		if r.End.IsZero() || !all.End.IsZero() && r.End.After(all.End) { // it runs as long as one node does
			all.End = r.End
		}
		if !r.Whole() {
			all.Part = r.Part
		}
		if all.DaemonGone.IsZero() {
			all.DaemonGone = r.DaemonGone
		}
	}
	return all
}

const (
	// sharedAge is how long a node tries to copy a report. Older ones are not even read.
	sharedAge = 24 * time.Hour
	// shareWait bounds a run. Its unit is ended after a minute.
	shareWait = 30 * time.Second
)

// shareReports copies this node's reports into the site's shared folder, which may not answer: so no hook does this,
// but one process of a node, by a lock that no user can take. One user's folder delays no copy of another user.
func shareReports(paths site.Paths) error {
	config, status := policyfile.ReadConfig(paths)
	if status.Err != nil || config.SharedReports == "" {
		return status.Err
	}
	lock, err := os.OpenFile(filepath.Join(paths.Kept(), ".share"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		defer lock.Close()
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return fmt.Errorf("cannot share reports, as one process of root can at a time: %w", err)
	}
	byUser := map[string][]usage.Report{}
	for _, path := range latestFirst(paths.Reports()) {
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > sharedAge {
			break
		}
		if r, err := usage.Read(path); err == nil {
			byUser[r.User] = append(byUser[r.User], r)
		}
	}
	late := fmt.Errorf("%s does not answer within %v", config.SharedReports, shareWait)
	ctx, cancel := context.WithTimeoutCause(context.Background(), shareWait, late)
	defer cancel()
	users := slices.Sorted(maps.Keys(byUser))
	return wait.Each(len(users), func(n int) error {
		folder := strings.ReplaceAll(config.SharedReports, "%u", users[n])
		_, err := wait.Within(ctx, func() (any, error) { return nil, copyAs(users[n], folder, byUser[users[n]]) })
		if err != nil {
			return fmt.Errorf("cannot share reports of %s: %w", users[n], err)
		}
		return nil
	})
}

// copyAs copies reports into a folder with the rights of their user, who may have put links there, and without the
// capabilities that pass quotas and the links of /proc. A server that trusts no root takes them, too. The process stays
// root's: the user can neither trace nor stop it.
func copyAs(name, folder string, reports []usage.Report) error {
	owner, err := user.Lookup(name)
	if err != nil {
		return err
	}
	uid, err1 := strconv.Atoi(owner.Uid)
	gid, err2 := strconv.Atoi(owner.Gid)
	runtime.LockOSThread() // the thread has these rights, and ends with this goroutine
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	err = errors.Join(err1, err2, unix.Setfsgid(gid), unix.Setfsuid(uid), unix.Capset(&header, &none[0]))
	nowGID, _ := unix.SetfsgidRetGid(-1) // the kernel reports no failure of these
	nowUID, _ := unix.SetfsuidRetUid(-1)
	if errno != 0 || nowUID != uid || nowGID != gid {
		err = errors.Join(err, fmt.Errorf("cannot act as uid %d: %w", uid, unix.EPERM))
	}
	if err == nil {
		err = os.MkdirAll(folder, 0o700)
	}
	for _, r := range reports {
		path := filepath.Join(folder, fmt.Sprintf("%d.%s.json", r.Job, r.Node))
		if info, absent := os.Lstat(path); err != nil || absent == nil && info.ModTime().Unix() == r.End.Unix() {
			continue
		}
		content, wrong := json.Marshal(r)
		err = errors.Join(wrong, osfile.File{Content: content, Mode: 0o600}.WriteTo(path))
		if err == nil {
			err = os.Chtimes(path, r.End, r.End) // it is copied
		}
	}
	return err
}

// maxListed is the number of ended jobs in the list: the latest ones.
const maxListed = 20

type listed struct {
	Job       uint32     `json:"job"`
	Node      string     `json:"node"`
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
	found := readableReports(call.Paths, maxListed, func(usage.Report) bool { return true })
	all := listOf(found, time.Now())
	return call.Print("report", all, func(s command.Screen) string { return reportsText(found, s) })
}

func listOf(reports []usage.Report, now time.Time) []listed {
	all := []listed{}
	for _, r := range reports {
		all = append(all, listed{r.Job, r.Node, r.Name, r.User, r.Partition, r.Begin, r.End, len(r.GPUs), r.Part,
			judge.Job{Report: r}.GPUHours(now), r.Totals, r.Mean()})
	}
	return all
}

// readableReports returns the reports that the caller may read: those of running jobs, and of the latest ended ones,
// the latest first. It leaves out those that it cannot read, such as other users' reports.
func readableReports(paths site.Paths, ended int, wanted func(usage.Report) bool) (all []usage.Report) {
	store := lease.OpenReadOnly(paths.Run(), "")
	running, _ := store.Dirs()
	for _, job := range running {
		files := []string{filepath.Join(store.JobDir(job), usage.Running)}
		if lease.IsShared(job) {
			files, _ = filepath.Glob(filepath.Join(store.JobDir(job), "report-*.json"))
		}
		for _, file := range files {
			if r, err := usage.Read(file); err == nil && wanted(r) {
				all = append(all, r)
			}
		}
	}
	limit := len(all) + ended
	for _, path := range latestFirst(paths.Reports()) {
		if len(all) == limit {
			break
		}
		r, err := usage.Read(path)
		same := func(other usage.Report) bool { return other.Job == r.Job }
		if err == nil && wanted(r) && !slices.ContainsFunc(all, same) {
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
			"A job has one if it ran here with MPS in the last 30 days, and had a client or lasted a minute.")
	}
	several := slices.ContainsFunc(all, func(r usage.Report) bool { return r.User != all[0].User })
	user := column{name: "user", left: true, width: 8}
	name, active := column{name: "name", left: true, width: max(screen.Columns-64, 7)}, usage.All[0]
	if several {
		name.width = max(name.width-user.width-1, 7)
	}
	t := table{gap: 1, columns: []column{{name: "job", left: true}, user, name, {name: "begin", left: true}, {name: "took"}, {name: "GPUs"},
		{name: "clients"}, {name: "bad ends"}, {name: active.Name, unit: "%"}}}
	for _, r := range all {
		took := "runs"
		if !r.End.IsZero() {
			took = age(r.End.Sub(r.Begin))
		}
		t.rows = append(t.rows, []any{numberOf(r), r.User, r.Name, r.Begin.Local().Format("01-02 15:04"), took, len(r.GPUs),
			r.ClientsSeen, r.BadEnds, active.Of(r.Mean())})
	}
	if !several {
		t = t.part(2, len(t.columns))
	}
	return t.text(screen) + "\n" + screen.Wrap("", "mpsctl report JOB prints one of them.")
}
