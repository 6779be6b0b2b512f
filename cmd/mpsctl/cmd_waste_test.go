// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/usage/judge"
)

// played is a report of a job that began at a time, with GPUs whose samples the functions give, one a minute.
func played(job uint32, begin time.Time, minutes int, gpus ...func(minute int) usage.Sample) usage.Report {
	r := usage.Report{
		Schema: usage.Schema, Job: job, Node: "gpu01", User: "root", Account: "physics", Partition: "gpu", Name: "relax",
		Rule: "all", Begin: begin, End: begin.Add(time.Duration(minutes) * time.Minute),
	}
	for n, sample := range gpus {
		g := usage.GPU{Index: n, UUID: gpu0, SMs: 132, MemoryMiB: 100 << 10, Source: "GPM", Resolution: 60}
		for minute := 1; minute <= minutes; minute++ {
			s := sample(minute)
			s.At = begin.Add(time.Duration(minute) * time.Minute)
			g.Add(begin, s)
		}
		r.GPUs = append(r.GPUs, g)
	}
	return r
}

func steady(sm, dram, gib float64, clients int) func(int) usage.Sample {
	return func(int) usage.Sample {
		return usage.Sample{SMUtil: min(2*sm, 100), SMActive: sm, DRAM: dram, UsedMiB: gib * 1024, Clients: clients}
	}
}

var (
	unusedGPU = steady(0, 0, 0, 0)
	smallRank = steady(30, 10, 5, 1)
	fullGPU   = steady(95, 60, 30, 1)
	fullMem   = steady(30, 20, 97, 1)
)

// wasteTime is the end of the month of the tests.
var wasteTime = time.Date(2026, 4, 1, 0, 0, 0, 0, time.Local)

// runWaste runs the command as a program does.
func runWaste(t *testing.T, args ...string) (code int, out, complaint string) {
	t.Helper()
	var o, e bytes.Buffer
	args = append([]string{"waste", "--root", t.TempDir(), "--since", "2026-03-01", "--until", "2026-04-01"}, args...)
	code = command.Run(cli.Process{Args: args, Out: &o, Err: &e}, mpsctl)
	return code, o.String(), e.String()
}

func wasteOf(t *testing.T, args ...string) (a waste) {
	t.Helper()
	code, out, complaint := runWaste(t, append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), &a); err != nil || code != 0 {
		t.Fatalf("code %d, %v: %s%s", code, err, out, complaint)
	}
	return a
}

// keep writes reports as nodes do, in a folder for each node.
func keep(t *testing.T, reports ...usage.Report) (folders []string) {
	t.Helper()
	top := t.TempDir()
	for _, r := range reports {
		folder := filepath.Join(top, r.Node)
		must.OK(t, os.MkdirAll(folder, 0o755))
		if !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
		writeReport(t, filepath.Join(folder, fmt.Sprintf("%d.json", r.Job)), r)
	}
	return folders
}

// month is a small site: one job of each kind, an hour each or two.
func month() []usage.Report {
	at := wasteTime.AddDate(0, 0, -3)
	unused := played(1, at, 120, smallRank, unusedGPU)
	without := played(2, at, 60, unusedGPU)
	half := played(3, at, 60, func(minute int) usage.Sample {
		if minute > 30 {
			return steady(0, 0, 0, 0)(minute)
		}
		return fullGPU(minute)
	})
	full, memory := played(4, at, 60, fullGPU), played(5, at, 60, fullMem)
	part := played(6, at, 60, steady(-1, -1, 10, 1))
	part.Part = lease.Part{Gres: lease.GresShard, Units: 1, Count: 4}
	first, second := played(7, at, 60, fullGPU), played(7, at, 60, unusedGPU)
	first.NodeList, second.NodeList, second.Node = "gpu[01-02]", "gpu[01-02]", "gpu02"
	small := played(8, at, 120, smallRank)
	small.NoMPS = true
	all := []usage.Report{unused, without, half, full, memory, part, first, second, small}
	for n := range all {
		if all[n].Job > 4 {
			all[n].Name, all[n].Account = "fold", "chemistry"
		}
	}
	return all
}

func near(got, want float64) bool { return math.Abs(got-want) < 0.002 }

// The sums of each kind of job, as a person counts them.
func TestWasteOfEachKind(t *testing.T) {
	for n, want := range []map[string]float64{
		{"gpu_hours": 4, "never_used_hours": 2, "sm_active": 15, "dram": 5, "memory": 2.5, "pay": 1, "more_fit": 1},
		{"gpu_hours": 1, "never_used_hours": 1, "sm_active": 0, "dram": 0, "memory": 0, "not_known": 1},
		{"gpu_hours": 1, "no_process_hours": 0.5, "sm_active": 47.5, "dram": 30, "memory": 30, "no_gain": 1},
		{"gpu_hours": 1, "sm_active": 95, "dram": 60, "memory": 30, "no_gain": 1},
		{"gpu_hours": 1, "sm_active": 30, "dram": 20, "memory": 97, "no_gain": 1},
		{"gpu_hours": 0.25, "sm_active": -1, "dram": -1, "memory": -1, "not_known": 1},
		{"gpu_hours": 2, "never_used_hours": 1, "sm_active": 47.5, "dram": 30, "memory": 15, "no_gain": 1},
		{"gpu_hours": 2, "sm_active": 30, "dram": 10, "memory": 5, "pay": 1, "more_fit": 1},
	} {
		job := slices.DeleteFunc(month(), func(r usage.Report) bool { return r.Job != uint32(n+1) })
		a := wasteOf(t, keep(t, job...)...)
		for _, c := range wasteColumns {
			expect := want[c.key]
			if c.key == "jobs" {
				expect = 1
			}
			got := *c.of(&a.All.Sums)[0]
			must.Hold(t, strings.HasPrefix(c.key, "win") || c.key == "more_fit" || near(got, expect),
				"job %d: %s is %v, want %v", n+1, c.key, got, expect)
		}
		if fits := a.All.Sums.MoreFit; want["more_fit"] > 0 && fits != 1 || n == 4 && fits != 0 {
			t.Errorf("job %d: more fit of %v jobs", n+1, fits)
		}
		if won := a.All.Sums.Win; (won > 0) != (want["pay"] > 0) {
			t.Errorf("job %d wins %v hours", n+1, won)
		}
	}
}

// Each sum is in one column, which has its key in JSON.
func TestWasteColumns(t *testing.T) {
	var sums judge.Sums
	want := map[string]float64{}
	for _, c := range wasteColumns {
		for n, value := range c.of(&sums) {
			*value = float64(len(want) + 1)
			want[c.key+[]string{"", "_of"}[n]] = *value
		}
	}
	content, err := json.Marshal(sums)
	got := map[string]float64{}
	if err = errors.Join(err, json.Unmarshal(content, &got)); err != nil || !maps.Equal(got, want) {
		t.Errorf("got  %v, %v\nwant %v", got, err, want)
	}
}

// Hours to win are of the time with a process alone, and of no job without a prediction.
func TestHoursToWin(t *testing.T) {
	small := month()[8]
	p := answerOf([]usage.Report{small}, small.End).Packing
	a := wasteOf(t, keep(t, month()...)...)
	saves := func(gain float64) float64 { return (2 + 2) * (1 - 1/gain) } // of jobs 1 and 8, 2 hours with a process each
	if s := a.All.Sums; p.Low <= 1 || !near(s.Win, saves(p.Gain)) || !near(s.WinLow, saves(p.Low)) ||
		!near(s.WinHigh, saves(p.High)) {
		t.Errorf("%+v, %v", p, s)
	}
}

// Of ranks that wait for their processors, only the least gain is known. Their hours are by that.
func TestHoursToWinOfRanksThatWait(t *testing.T) {
	r := played(1, wasteTime.AddDate(0, 0, -3), 60, steady(3, 1, 5, 1))
	p := answerOf([]usage.Report{r}, r.End).Packing
	a := wasteOf(t, keep(t, r)...)
	for _, won := range []float64{a.All.Sums.Win, a.All.Sums.WinLow, a.All.Sums.WinHigh} {
		must.Hold(t, p.Gain == 0 && p.Low > 1 && near(won, 1-1/p.Low), "%v hours to win: %+v", won, p)
	}
}

func TestWasteGoldens(t *testing.T) {
	folders := keep(t, month()...)
	none := t.TempDir()
	for name, args := range map[string][]string{
		"user": folders, "name": append([]string{"--by", "name"}, folders...), "none": {none},
		"csv": append([]string{"--csv", "--by", "account"}, folders...),
	} {
		code, out, complaint := runWaste(t, args...)
		must.Hold(t, code == 0 && complaint == "", "%s: code %d: %s", name, code, complaint)
		golden.CompareIn(t, goldens, "waste/"+name+".txt", out)
		if name != "csv" {
			fitsColumns(t, out)
		}
	}
}

// A job is in the month in which it ended, and of a user if it is asked for.
func TestWasteOfATimeAndAUser(t *testing.T) {
	early := played(1, wasteTime.AddDate(0, -1, 0).Add(-2*time.Hour), 60, fullGPU)
	late := played(2, wasteTime.Add(-30*time.Minute), 40, fullGPU)
	in := played(3, wasteTime.AddDate(0, -1, 0).Add(-30*time.Minute), 60, fullGPU)
	running := played(4, wasteTime.Add(-time.Hour), 60, fullGPU)
	running.End = time.Time{}
	folders := keep(t, early, late, in, running)
	if a := wasteOf(t, folders...); a.All.Sums.Jobs != 1 || a.LeftOut["Jobs that still run"] != 1 {
		t.Errorf("%+v", a)
	}
	a := wasteOf(t, append(folders, "--user", "hpc1")...)
	must.Hold(t, a.All.Sums.Jobs == 0 && strings.HasPrefix(a.Verdict, "No such job"), "%+v", a)
}

func TestSacctTime(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 30, 0, 0, time.Local)
	for text, want := range map[string]time.Time{
		"now": now, "now-30days": now.AddDate(0, 0, -30), "now-0days": now,
		"2026-11-01": time.Date(2026, 11, 1, 0, 0, 0, 0, time.Local),
	} {
		if got, err := sacctTime("since", text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "now-", "now-30", "now-30daysx", "now--3days", "now-99999days", "now-1days 2",
		"tomorrow", "2026-13-01", "2026-11-01T08:05", "1"} {
		if got, err := sacctTime("since", text, now); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
	for args, want := range map[string]string{
		"--since x": "cannot read --since", "--until x": "cannot read --until", "--by x": "cannot add up by",
		"--since 2026-04-01": "give --since an earlier time",
		"--csv --json":       "cannot print in several forms", "--csv --html x": "cannot print in several forms",
		"--json --html x": "cannot print in several forms",
	} {
		if code, _, complaint := runWaste(t, strings.Fields(args)...); code != 2 || !strings.Contains(complaint, want) {
			t.Errorf("%s: code %d, %s, want %s", args, code, complaint, want)
		}
	}
}

// A job of several nodes is one job, of a requeued one the last run counts, and a copy counts once.
func TestAJobCountsOnce(t *testing.T) {
	at := wasteTime.AddDate(0, 0, -3)
	earlier, first := played(9, at, 60, fullGPU, fullGPU), played(9, at.Add(2*time.Hour), 60, fullGPU)
	second := first
	earlier.Node, second.Node = "gpu03", "gpu02"
	folders := keep(t, earlier, first, second)
	writeReport(t, filepath.Join(folders[1], "9.gpu01.json"), first)
	a := wasteOf(t, append(folders, folders...)...)
	s := a.All.Sums
	must.Hold(t, s.Jobs == 1 && s.GPUHours == 2 && a.LeftOut["Reports of earlier runs of requeued jobs"] != 0, "%+v", a)
}

// Names are users' text: no terminal obeys it, no table program takes it for a formula, and a long one is cut.
func TestNamesOfUsers(t *testing.T) {
	hostile := []string{"\x1b[31mred\n\u202e", "=HYPERLINK(\"http://x\")", "@SUM(1)", strings.Repeat("ü", 300),
		"\xff\xfe", ""}
	var all []usage.Report
	for n, name := range hostile {
		r := played(uint32(n+1), wasteTime.AddDate(0, 0, -3), 60, smallRank)
		r.Name = name
		all = append(all, r)
	}
	folders := append(keep(t, all...), "--by", "name")
	_, text, _ := runWaste(t, folders...)
	_, table, _ := runWaste(t, append(folders, "--csv")...)
	fitsColumns(t, text)
	for _, out := range []string{text, table} {
		if strings.ContainsAny(out, "\x1b\u202e") || !utf8.ValidString(out) ||
			!strings.Contains(out, "?[31mred??") || !strings.Contains(out, "(none)") {
			t.Errorf("%q", out)
		}
	}
	rows, err := csv.NewReader(strings.NewReader(table)).ReadAll()
	must.Hold(t, err == nil && len(rows) == len(hostile)+2, "%d lines, %v", len(rows), err)
	for _, row := range rows {
		if strings.ContainsAny(row[0][:1], "=+-@") {
			t.Errorf("a formula: %q", row[0])
		}
	}
}

// Broken, foreign, giant and forged files: a line for each of the first ones, and the good one counts.
func TestFilesThatAreNoGoodReports(t *testing.T) {
	good := played(1, wasteTime.AddDate(0, 0, -3), 60, fullGPU)
	folder := keep(t, good)[0]
	forged := map[string]func(*usage.Report){
		"10": func(r *usage.Report) { r.Begin = r.Begin.AddDate(-900, 0, 0) },
		"11": func(r *usage.Report) { r.End = r.End.AddDate(2, 0, 0) },
		"12": func(r *usage.Report) { r.GPUs[0].Samples[3].SMActive = 1e300 },
		"13": func(r *usage.Report) { r.Part = lease.Part{Gres: lease.GresShard, Units: -500, Count: 1} },
		"14": func(r *usage.Report) { r.End = r.Begin.Add(-time.Hour) },
		"15": func(r *usage.Report) { r.GPUs = slices.Repeat(r.GPUs, 500) },
		"16": func(r *usage.Report) { r.GPUs[0].Samples[3].Clients = -1 },
		"17": func(r *usage.Report) { r.GPUs[0].Samples[59].At = r.End.AddDate(5, 0, 0) },
		"19": func(r *usage.Report) { r.Job = 1 },
		"26": func(r *usage.Report) { r.Part = lease.Part{Gres: "shard\x1b[31m", Units: 1, Count: 2} },
		"18": func(r *usage.Report) { r.GPUs[0].Samples[3].At = r.Begin.AddDate(-200, 0, 0) },
	}
	for name, forge := range forged {
		r := played(1, wasteTime.AddDate(0, 0, -3), 60, fullGPU)
		job, _ := strconv.Atoi(name)
		r.Job = uint32(job)
		forge(&r)
		writeReport(t, filepath.Join(folder, name+".json"), r)
	}
	must.OK(t, errors.Join(
		os.WriteFile(filepath.Join(folder, "2.json"), []byte("{"), 0o600),
		os.WriteFile(filepath.Join(folder, "27.json"), []byte(`{"schema":1,"job":27,"clients":[`+strings.Repeat("{},", 1e5)+"{}]}"), 0o600),
		os.WriteFile(filepath.Join(folder, "21.json"), make([]byte, 5<<20), 0o600),
		os.WriteFile(filepath.Join(folder, ".share"), nil, 0o600),
		os.WriteFile(filepath.Join(folder, "3.json"), []byte(`{"schema":1,"job":22,"gpus":[{"samples":[{"at":"`), 0o600),
		os.WriteFile(filepath.Join(folder, "4\x1b[31m.json"), []byte(strings.Repeat("[", 3<<20)), 0o600),
		os.Symlink(filepath.Join(folder, "1.json"), filepath.Join(folder, "24.json")),
		os.Mkdir(filepath.Join(folder, "25.json"), 0o755),
		os.Symlink(folder, filepath.Join(filepath.Dir(folder), "link"))))
	bad := len(forged) + 5 + 2 + 2 // files, a link and a folder, and two folders that are none
	link, none := filepath.Join(filepath.Dir(folder), "link")+"/", filepath.Join(folder, "none")
	code, out, complaint := runWaste(t, folder, link, none)
	if code != 0 || strings.Count(complaint, "\n") != maxIncidents ||
		strings.Count(complaint, "mpsctl: cannot ") != maxIncidents || strings.Contains(complaint, "/proc/") ||
		strings.Contains(complaint, "\x1b") {
		t.Errorf("code %d:\n%s", code, complaint)
	}
	if !strings.Contains(out, fmt.Sprintf("Files and folders without good reports: %d.", bad)) ||
		!strings.HasPrefix(out, "Of 1.0 GPU hours, 0.0 had no process") {
		t.Errorf("want %d bad files:\n%s", bad, out)
	}
	if code, _, _ := runWaste(t, filepath.Join(folder, "none")); code != cli.ExitFindings {
		t.Errorf("only wrong files: code %d", code)
	}
}

// Root counts users' own copies, and no file that names another user.
func TestWhoseReportsCount(t *testing.T) {
	other, err := user.Lookup("nobody")
	if os.Geteuid() != 0 || err != nil {
		t.Skip("needs root and the user nobody")
	}
	uid, _ := strconv.Atoi(other.Uid)
	for name, c := range map[string]struct {
		named string
		mode  os.FileMode
		owner int
		jobs  float64
	}{
		"a copy": {"nobody", 0o600, uid, 1}, "another user's name": {"daemon", 0o600, uid, 0},
		"others can write": {"nobody", 0o622, uid, 0},
		"root's file":      {"nobody", 0o640, 0, 1},
	} {
		r := played(1, wasteTime.AddDate(0, 0, -3), 60, fullGPU)
		r.User = c.named
		path := filepath.Join(keep(t, r)[0], "1.json")
		must.OK(t, errors.Join(os.Chown(path, c.owner, -1), os.Chmod(path, c.mode)))
		_, out, _ := runWaste(t, filepath.Dir(path), "--json")
		var a waste
		if err := json.Unmarshal([]byte(out), &a); err != nil || a.All.Sums.Jobs != c.jobs {
			t.Errorf("%s: %v jobs, want %v: %v %v", name, a.All.Sums.Jobs, c.jobs, a.LeftOut, err)
		}
		if copies := a.LeftOut["Reports that their users could have changed"]; (copies == 1) != (name == "a copy") {
			t.Errorf("%s: %d copies", name, copies)
		}
	}
}

// The page is written whole, and has the answer.
func TestThePageOfWaste(t *testing.T) {
	file := filepath.Join(t.TempDir(), "waste.html")
	code, out, complaint := runWaste(t, append(keep(t, month()...), "--html", file)...)
	content, err := os.ReadFile(file)
	must.Hold(t, code == 0 && out+complaint == "" && err == nil && bytes.Contains(content, []byte(`"gpu_hours":12.25`)),
		"code %d, %s%s, %v: %.300s", code, out, complaint, err, content)
	code, _, complaint = runWaste(t, append(keep(t, month()...), "--html", "/none/x.html")...)
	must.Hold(t, code == 1 && strings.Contains(complaint, "cannot write /none/x.html"), "code %d, %s", code, complaint)
}

// A user's own copy does not count before root's report of the same node, whatever the copy says.
func TestACopyDoesNotReplaceRootsReport(t *testing.T) {
	other, err := user.Lookup("nobody")
	if err != nil || os.Getuid() != 0 {
		t.Skip("run as root, beside the user nobody")
	}
	uid, _ := strconv.Atoi(other.Uid)
	idle := played(7, wasteTime.AddDate(0, 0, -3), 60, unusedGPU)
	idle.User, idle.NodeList = other.Username, "gpu[00-01]"
	forged := played(7, idle.Begin.Add(time.Minute), 59, fullGPU)
	forged.User = idle.User
	forged.Account = "chemistry"
	folders := keep(t, idle)
	for name, c := range map[string]struct {
		hours float64
		left  int
		forge func(*usage.Report)
	}{
		"the same node": {1, 0, func(*usage.Report) {}},
		"no node of it": {1, 1, func(r *usage.Report) { r.Node = "gpu77" }},
		"another node":  {2, 0, func(r *usage.Report) { r.Node = "gpu00" }},
		"a later run": {1, 1, func(r *usage.Report) {
			r.Node, r.Begin, r.End = "gpu00", r.End.Add(5*time.Minute), r.End.Add(6*time.Minute)
		}},
		"a longer run":   {1, 1, func(r *usage.Report) { r.Node, r.End = "gpu00", r.End.Add(time.Hour) }},
		"an earlier one": {1, 1, func(r *usage.Report) { r.Node, r.Begin = "gpu00", r.Begin.Add(-time.Hour) }},
		"it runs":        {1, 1, func(r *usage.Report) { r.Node, r.End = "gpu00", time.Time{} }},
	} {
		r := forged
		c.forge(&r)
		path := filepath.Join(t.TempDir(), "7.x.json")
		writeReport(t, path, r)
		must.OK(t, os.Chown(path, uid, -1))
		a := wasteOf(t, append(folders, filepath.Dir(path), "--by", "account")...)
		s, left := a.All.Sums, a.LeftOut["Copies that do not fit root's reports of their job"]
		if s.Jobs != 1 || math.Round(s.GPUHours) != c.hours || s.NeverUsed != 1 || left != c.left || len(a.Rows) != 1 || a.Rows[0].Name != "physics" {
			t.Errorf("%s: %+v", name, a)
		}
		if a := wasteOf(t, filepath.Dir(path), "--by", "account"); len(a.Rows) > 0 && a.Rows[0].Name != "*chemistry" {
			t.Errorf("%s alone: %+v", name, a.Rows)
		}
	}
}

// The copies of one job that a user could have made are in memory together, up to a bound for each user.
func TestCopiesOfAJobAreBounded(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("run as root")
	}
	folder, name := t.TempDir(), map[int]string{1: "daemon", 65534: "nobody"}
	for n := range 10 {
		for uid, user := range name {
			r := played(7, wasteTime.AddDate(0, 0, -3), 60, fullGPU)
			r.Node, r.User = fmt.Sprint("n", n), user
			path := filepath.Join(folder, fmt.Sprintf("7.n%d.%d.json", n, uid))
			writeReport(t, path, r)
			must.OK(t, os.Chown(path, uid, -1))
		}
	}
	a := waste{LeftOut: map[string]int{}, By: "user", Until: wasteTime, now: wasteTime, room: 60_000, rows: map[string]wasteRow{}, changes: map[string]wasteRow{}}
	a.read([]string{folder})
	a.finish()
	left := a.LeftOut["Copies of a job that are too large together"]
	must.Hold(t, len(a.Rows) == 2 && left >= 10 && left <= 16 && a.All.Sums.GPUHours == float64(20-left),
		"%d left out, %+v", left, a)
}
