// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl waste: what jobs did not use of their GPUs, and what would change that. It adds up the reports of
// many nodes and users. A user may have made any of the files.

package main

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/usage/judge"
	"github.com/slurm-mps/slurm-mps/site/usage/page"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

const wasteHelp = `waste adds up the reports of jobs that ended in a time: GPU hours without a process, how busy the
GPUs were, how many jobs would gain from more ranks on a GPU, how many not, and what to write into a script.

Without a FOLDER, it reads this node's reports; else those in folders of any nodes, as JOB.json or JOB.NODE.json. All
reports count that you can read: as root all, else your own. A file must be root's or that of the job's user, and no
link. A user could have changed a copy, so root's files alone are proof. A copy adds a node to them, in their job's time.
An account, partition or name with * is from copies alone.

A job of several nodes is one job, and of a requeued job the last run counts. A part of a GPU counts as that part of its
hours. Means are over whole GPUs with known figures. GPU hours to win are what more ranks save of the time with a
process, by the prediction of mpsctl report. A job without a prediction wins none.

It exits with 0 if it could print, with 1 if all that it found was wrong, and with 2 for a wrong argument.`

// wasteBy are the values of --by.
var wasteBy = map[string]func(usage.Report) string{
	"user":      func(r usage.Report) string { return r.User },
	"account":   func(r usage.Report) string { return r.Account },
	"name":      func(r usage.Report) string { return r.Name },
	"partition": func(r usage.Report) string { return r.Partition },
}

func wasteCommand(call *command.Invocation) *cobra.Command {
	var since, until, by, of, html string
	var asCSV bool
	c := &cobra.Command{
		Use: "waste [FOLDER...]", Short: "print what jobs did not use of their GPUs", Long: wasteHelp,
		Example: "  mpsctl waste --since now-7days\n  mpsctl waste --html waste.html reports\n" +
			"  mpsctl waste --by account --since 2026-11-01 --until 2026-12-01 reports/*",
		RunE: func(_ *cobra.Command, folders []string) error {
			now := time.Now()
			from, err1 := sacctTime("since", since, now)
			to, err2 := sacctTime("until", until, now)
			err := errors.Join(err1, err2)
			switch {
			case err != nil:
				return err
			case wasteBy[by] == nil:
				return fmt.Errorf("cannot add up by %.40q: --by is user, account, name or partition", by)
			case asCSV && (html != "" || call.JSON) || html != "" && call.JSON:
				return errors.New("cannot print in several forms: give one of --csv, --html and --json")
			case !from.Before(to):
				return fmt.Errorf("cannot count from %s to %s: give --since an earlier time", since, until)
			}
			if _, none := os.Stat(call.Paths.Reports()); len(folders) == 0 && !errors.Is(none, fs.ErrNotExist) {
				folders = []string{call.Paths.Reports()}
			}
			a := waste{
				Since: from, Until: to, By: by, LeftOut: map[string]int{}, now: now, user: of,
				rows: map[string]wasteRow{}, changes: map[string]wasteRow{}, room: maxCopies,
				warn: func(err error) { call.PrintError("mpsctl", err) },
			}
			a.read(folders)
			a.finish()
			switch {
			case html != "":
				err = writePage(html, func(w io.Writer) error { return page.Write(w, a) })
			case asCSV:
				err = command.WriteError("waste", csv.NewWriter(call.Out).WriteAll(a.table().csv()))
			default:
				err = call.Print("waste", a, a.text)
			}
			if err == nil && len(a.Rows) == 0 && a.LeftOut[wrongFiles] > 0 {
				return cli.ErrFindings
			}
			return err
		},
	}
	c.Flags().StringVar(&since, "since", "now-30days", "count jobs that ended at this `TIME` or later")
	c.Flags().StringVar(&until, "until", "now", "count jobs that ended before this `TIME`, as 2026-11-01 or now-7days")
	c.Flags().StringVar(&by, "by", "user", "add up by user, account, name (of the job) or partition")
	c.Flags().StringVar(&of, "user", "", "count the jobs of this `USER`")
	c.Flags().BoolVar(&asCSV, "csv", false, "print the table as CSV")
	c.Flags().StringVar(&html, "html", "", "write a page into this `FILE`")
	return c
}

// sacctTime reads a time in a form that sacct knows, too.
func sacctTime(flag, text string, now time.Time) (time.Time, error) {
	var days uint16
	_, err := fmt.Sscanf(text, "now-%ddays", &days)
	if text == "now" || err == nil && text == fmt.Sprintf("now-%ddays", days) {
		return now.AddDate(0, 0, -int(days)), nil
	}
	t, err := time.ParseInLocation(time.DateOnly, text, time.Local)
	if err != nil {
		err = fmt.Errorf("cannot read --%s: it is %.40q: want 2026-11-01, now or now-7days", flag, text)
	}
	return t, err
}

// waste is the answer of mpsctl waste, while and after reports are added up.
type waste struct {
	Since   time.Time      `json:"since"`
	Until   time.Time      `json:"until"`
	By      string         `json:"by"`
	Verdict string         `json:"verdict"`
	All     wasteRow       `json:"all"`
	Rows    []wasteRow     `json:"rows"`     // the most GPU hours first
	Changes []wasteRow     `json:"changes"`  // lines of scripts, by users and names of jobs, 100 at most
	LeftOut map[string]int `json:"left_out"` // what is not in the sums, and what may be wrong there

	rows, changes map[string]wasteRow
	now           time.Time
	user          string // "" for all
	room          int    // as maxCopies
	warn          func(error)
}

// wasteRow has the sums of some jobs. The answer has means in place of their sums, beside their hours.
type wasteRow struct {
	Name string     `json:"name"`
	Line string     `json:"line,omitempty"` // to write into a script
	Sums judge.Sums `json:"sums"`
}

// wasteColumns are the sums of a row: their keys in JSON and CSV, their names for people, and the sum, of a mean with
// its hours.
var wasteColumns = []struct {
	column
	of func(*judge.Sums) []*float64
}{
	{column{key: "jobs", name: "jobs"}, func(s *judge.Sums) []*float64 { return []*float64{&s.Jobs} }},
	{column{key: "gpu_hours", name: "GPU hours", unit: "h"}, func(s *judge.Sums) []*float64 { return []*float64{&s.GPUHours} }},
	{column{key: "never_used_hours", name: "never used", unit: "h"}, func(s *judge.Sums) []*float64 { return []*float64{&s.NeverUsed} }},
	{column{key: "no_process_hours", name: "no process", unit: "h"}, func(s *judge.Sums) []*float64 { return []*float64{&s.NoProcess} }},
	{column{key: "sm_active", name: "SM active", unit: "%"}, func(s *judge.Sums) []*float64 { return []*float64{&s.SMActive, &s.SMActiveOf} }},
	{column{key: "dram", name: "DRAM", unit: "%"}, func(s *judge.Sums) []*float64 { return []*float64{&s.DRAM, &s.DRAMOf} }},
	{column{key: "memory", name: "memory", unit: "%"}, func(s *judge.Sums) []*float64 { return []*float64{&s.Memory, &s.MemoryOf} }},
	{column{key: "more_fit", name: "more fit"}, func(s *judge.Sums) []*float64 { return []*float64{&s.MoreFit} }},
	{column{key: "pay", name: "pay"}, func(s *judge.Sums) []*float64 { return []*float64{&s.Pay} }},
	{column{key: "no_gain", name: "no gain"}, func(s *judge.Sums) []*float64 { return []*float64{&s.NoGain} }},
	{column{key: "not_known", name: "not known"}, func(s *judge.Sums) []*float64 { return []*float64{&s.NotKnown} }},
	{column{key: "win_hours", name: "to win", unit: "h"}, func(s *judge.Sums) []*float64 { return []*float64{&s.Win} }},
	{column{key: "win_hours_low", name: "at least", unit: "h"}, func(s *judge.Sums) []*float64 { return []*float64{&s.WinLow} }},
	{column{key: "win_hours_high", name: "at most", unit: "h"}, func(s *judge.Sums) []*float64 { return []*float64{&s.WinHigh} }},
}

// finish puts the sums in order.
func (a *waste) finish() {
	total := map[string]wasteRow{}
	sum(total, "all", "", judge.Sums{})
	for _, row := range a.rows {
		sum(total, "all", "", row.Sums)
	}
	a.All, a.Rows, a.Changes = sorted(total)[0], sorted(a.rows), sorted(a.changes)
	a.Changes = a.Changes[:min(len(a.Changes), 100)]
	all := a.All.Sums
	a.Verdict = fmt.Sprintf("Of %.1f GPU hours, %.1f had no process: %.1f of these on GPUs that a job never used. More "+
		"ranks a GPU would save about %.1f (%.1f to %.1f). Of %s, %.0f would not gain, and of %.0f it is not known.",
		all.GPUHours, all.NeverUsed+all.NoProcess, all.NeverUsed, all.Win, all.WinLow, all.WinHigh,
		words.Count(int(all.Jobs), "job"), all.NoGain, all.NotKnown)
	if len(a.Rows) == 0 {
		a.Verdict = "No such job has a report here that you can read: name folders of reports, or an earlier --since."
	}
}

// table has a row for each name, and one for all.
func (a waste) table() table {
	t := table{gap: 2, columns: []column{{key: a.By, name: a.By, width: 12}}}
	for _, c := range wasteColumns {
		t.columns = append(t.columns, c.column)
	}
	for _, r := range append(a.Rows, a.All) {
		row := []any{r.Name}
		for _, c := range wasteColumns {
			row = append(row, *c.of(&r.Sums)[0])
		}
		t.rows = append(t.rows, row)
	}
	return t
}

func (a waste) text(screen command.Screen) string {
	const ranksColumn, maxRows, maxChanges = 8, 20, 10
	var b strings.Builder
	b.WriteString(screen.Wrap("", screen.Bold(a.Verdict)))
	if len(a.Rows) == 0 && len(a.LeftOut) == 0 {
		return b.String()
	}
	t := a.table()
	t.rows = append(t.rows[:min(len(a.Rows), maxRows)], t.rows[len(a.Rows)])
	for _, half := range []table{t.part(1, ranksColumn), t.part(ranksColumn, len(t.columns))} {
		b.WriteString("\n" + half.text(screen))
	}
	if n := len(a.Rows) - maxRows; n > 0 {
		fmt.Fprintf(&b, "%s more: see --csv.\n", words.Count(n, "line"))
	}
	b.WriteString("\n")
	for _, c := range a.Changes[:min(len(a.Changes), maxChanges)] {
		b.WriteString(screen.Wrap("", fmt.Sprintf("%s: %s: %.1f GPU hours of %s", c.Name, c.Line, c.Sums.GPUHours,
			words.Count(int(c.Sums.Jobs), "job"))))
	}
	for _, text := range slices.Sorted(maps.Keys(a.LeftOut)) {
		b.WriteString(screen.Wrap("", fmt.Sprintf("%s: %d.", text, a.LeftOut[text])))
	}
	return b.String()
}

// kept is a file in an open folder, with the job in its name.
type kept struct {
	dir  *os.File
	name string
	job  uint64
}

const (
	maxKept    = 100_000   // files of a folder, which a user can fill
	maxCopies  = 512 << 20 // bytes of the copies of a job and a user in memory: 512 nodes of 8 GPUs for a month
	wrongFiles = "Files and folders without good reports"
)

// read reads the reports in folders. One job's are in memory at a time: its number is in the names of its files.
func (a *waste) read(folders []string) {
	var files []kept
	for _, path := range folders { // without a slash at the end, which would follow a link
		fd, err := unix.Open(filepath.Clean(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			a.leave(&fs.PathError{Op: "cannot read folder", Path: path, Err: err})
			continue
		}
		dir := os.NewFile(uintptr(fd), path) // open, so no one can put another folder in its place
		defer dir.Close()
		names, _ := dir.Readdirnames(maxKept + 1)
		if len(names) > maxKept {
			a.leave(fmt.Errorf("cannot read all of %s: it has more than %d files", path, maxKept))
		}
		for _, name := range names[:min(len(names), maxKept)] {
			job, _ := strconv.ParseUint(name[:len(name)-len(strings.TrimLeft(name, "0123456789"))], 10, 32)
			if name[0] != '.' { // the lock, and files that are being written
				files = append(files, kept{dir, name, job})
			}
		}
	}
	slices.SortFunc(files, func(a, b kept) int {
		return cmp.Or(cmp.Compare(a.job, b.job), strings.Compare(a.dir.Name(), b.dir.Name()), strings.Compare(a.name, b.name))
	})
	for n := 0; n < len(files); {
		byUser, roots, copies := map[string][]usage.Report{}, map[string][]usage.Report{}, []usage.Report{}
		held := map[uint32]int{} // bytes by owner
		for job := files[n].job; n < len(files) && files[n].job == job; n++ {
			r, owner, size, err := a.readFile(files[n])
			if err == nil && owner != 0 {
				held[owner] += size
			}
			switch {
			case err == nil && held[owner] > a.room:
				a.LeftOut["Copies of a job that are too large together"]++
			case err != nil:
				a.leave(err)
			case r.Job > 0 && owner == 0:
				roots[r.User] = append(roots[r.User], r)
			case r.Job > 0:
				copies = append(copies, r)
			}
		}
		maps.Copy(byUser, roots)
		for _, r := range copies {
			switch of := roots[r.User]; {
			case slices.ContainsFunc(of, func(n usage.Report) bool { return n.Node == r.Node }):
			case len(of) > 0 && !adds(of, r):
				a.LeftOut["Copies that do not fit root's reports of their job"]++
			default:
				byUser[r.User] = append(byUser[r.User], r)
				a.LeftOut["Reports that their users could have changed"]++
			}
		}
		for _, user := range slices.Sorted(maps.Keys(byUser)) {
			a.add(byUser[user], roots[user])
		}
	}
}

// adds reports whether a user's copy can be of another node of a job of which root's reports are known. It must neither
// end their run nor make it longer.
func adds(roots []usage.Report, r usage.Report) bool {
	const late = 10 * time.Minute // between the prologs or epilogs of a job's nodes
	last := lastRun(roots)
	nodes, _ := slurm.ExpandHostlist(last[0].NodeList)
	run := together(last)
	fits := slices.Contains(nodes, r.Node) && !r.End.IsZero() && !r.Begin.Before(run.Begin.Add(-late)) &&
		(run.End.IsZero() || !r.End.After(run.End.Add(late)))
	for _, n := range last {
		fits = fits && (n.End.IsZero() || !n.End.Before(r.Begin)) && !r.End.Before(n.Begin)
	}
	return fits
}

// leave leaves something out. Of other users' files, there may be many.
func (a *waste) leave(err error) {
	if errors.Is(err, fs.ErrPermission) {
		a.LeftOut["Files and folders that only others can read"]++
	} else if a.LeftOut[wrongFiles]++; a.LeftOut[wrongFiles] <= maxIncidents {
		a.warn(err)
	}
}

// readFile reads a report, which is the file of root or of the job's user, and no link. It has no job if it is too old.
// Its size in memory is at most that of its text and of its samples, which can be short there.
func (a *waste) readFile(file kept) (r usage.Report, owner uint32, size int, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(int(file.dir.Fd()), file.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG: // to open a device has effects
		err = errors.New("it is not a regular file")
	case err == nil && time.Unix(st.Mtim.Unix()).Before(a.Since.Add(-time.Minute)):
		return r, 0, 0, nil
	case err == nil:
		path := fmt.Sprintf("/proc/self/fd/%d/%s", file.dir.Fd(), file.name)
		if r, err = usage.ReadOwn(path, st.Uid); err != nil && !errors.Is(err, fs.ErrPermission) {
			err = errors.New(strings.TrimPrefix(err.Error(), "cannot read "+path+": "))
		}
	}
	account, unknown := user.LookupId(strconv.Itoa(int(st.Uid)))
	switch {
	case err != nil:
	case st.Uid != 0 && int(st.Uid) != os.Geteuid() && (unknown != nil || account.Username != r.User):
		err = fmt.Errorf("its owner is uid %d and its job's user %.40q", st.Uid, r.User)
	case !possible(r, a.now) || uint64(r.Job) != file.job:
		err = errors.New("its times, figures or name are not possible")
	}
	if err != nil {
		return usage.Report{}, 0, 0, fmt.Errorf("cannot count %s: %w", filepath.Join(file.dir.Name(), file.name), err)
	}
	size = int(st.Size)
	for _, g := range r.GPUs {
		size += cap(g.Samples) * int(unsafe.Sizeof(usage.Sample{}))
	}
	return r, st.Uid, size, nil
}

// possible reports whether a job can have had such figures, because a forged report must not spoil the sums.
func possible(r usage.Report, now time.Time) bool {
	const year = 366 * 24 * time.Hour
	part, lasted := r.Part.Fraction(), r.End.Sub(r.Begin)
	good := r.End.IsZero() || lasted >= 0 && lasted < year && r.End.Before(now.Add(time.Hour))
	good = good && part >= 0 && part <= 1
	good = good && slices.Contains([]string{"", lease.GresShard, lease.GresMPS}, r.Part.Gres) // which is printed
	for _, g := range r.GPUs {
		for _, s := range g.Samples {
			good = good && max(s.SMActive, s.SMUtil, s.DRAM) <= 100 && s.Clients >= 0 && s.At.Sub(r.Begin).Abs() < year
		}
	}
	return good
}

// add counts a job, with the reports of its nodes, of which some are root's.
func (a *waste) add(reports, roots []usage.Report) {
	nodes, mark := lastRun(reports), ""
	all := together(nodes)
	switch {
	case len(roots) > 0:
		of := lastRun(roots)[0]
		all.Account, all.Partition, all.Name = of.Account, of.Partition, of.Name
	case a.By != "user":
		mark = "*"
	}
	switch {
	case all.End.IsZero():
		a.LeftOut["Jobs that still run"]++
		return
	case a.user != "" && a.user != all.User, all.End.Before(a.Since), !all.End.Before(a.Until):
		return
	}
	for _, r := range reports {
		same := func(n usage.Report) bool { return n.Node == r.Node && n.Begin.Equal(r.Begin) }
		if !slices.ContainsFunc(nodes, same) {
			a.LeftOut["Reports of earlier runs of requeued jobs"]++
		}
	}
	sums, lines := judge.Job{Report: all}.Waste(nodes)
	if sums.GPUHours == 0 {
		a.LeftOut["Jobs whose GPU hours are not known"]++
	}
	sum(a.rows, mark+shortName(wasteBy[a.By](all)), "", sums)
	for line, hours := range lines {
		sum(a.changes, shortName(all.User)+", "+shortName(all.Name), line, judge.Sums{Jobs: 1, GPUHours: hours})
	}
}

// shortName returns a name that a user has chosen, for a table.
func shortName(name string) string {
	name = words.Printable(name)
	return cmp.Or(strings.ToValidUTF8(name[:min(len(name), 64)], "?"), "(none)")
}

// sum adds sums to a row.
func sum(rows map[string]wasteRow, name, line string, sums judge.Sums) {
	row := rows[name+"\n"+line]
	row.Name, row.Line = name, line
	for _, c := range wasteColumns {
		for n, to := range c.of(&row.Sums) {
			*to += *c.of(&sums)[n]
		}
	}
	rows[name+"\n"+line] = row
}

// sorted returns the rows with the most GPU hours first, with means in place of their sums, and with three decimals.
func sorted(rows map[string]wasteRow) []wasteRow {
	all := []wasteRow{}
	for _, row := range rows {
		for _, c := range wasteColumns {
			switch values := c.of(&row.Sums); {
			case len(values) > 1 && *values[1] > 0:
				*values[0] /= *values[1]
			case len(values) > 1:
				*values[0] = usage.Unknown
			}
			*c.of(&row.Sums)[0] = math.Round(*c.of(&row.Sums)[0]*1000) / 1000
		}
		all = append(all, row)
	}
	slices.SortFunc(all, func(a, b wasteRow) int {
		return cmp.Or(cmp.Compare(b.Sums.GPUHours, a.Sums.GPUHours), strings.Compare(a.Name+a.Line, b.Name+b.Line))
	})
	return all
}
