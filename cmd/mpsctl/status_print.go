// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/usage/judge"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// view is the text of mpsctl status, to which its methods append.
type view struct {
	strings.Builder
	state.Node
	found  []state.Finding
	screen command.Screen
}

func (v *view) line(format string, args ...any) { fmt.Fprintf(v, format+"\n", args...) }

func statusText(n state.Node, found []state.Finding, screen command.Screen) string {
	v := &view{Node: n, found: found, screen: screen}
	v.head()
	for _, j := range n.Jobs {
		v.job(j)
	}
	v.gpus()
	v.WriteString(findingsText(found, screen))
	v.WriteString(unseenText(n.Incomplete, screen))
	return v.String()
}

func (v *view) head() {
	v.line("%s  %s  %s, %s, %s", v.screen.Bold(v.Name), v.Time.Format("2006-01-02 15:04:05"),
		words.Count(len(v.GPUs), "GPU"), words.Count(len(v.Jobs), "job"), words.Count(v.Clients(), "client"))
}

func (v *view) job(j state.Job) {
	v.line("")
	line := v.screen.Bold(lease.Name(j.ID))
	if j.User != "" {
		line += "  " + j.User
	}
	if j.Rule != "" {
		line += "  rule " + j.Rule
	}
	line += "  " + v.state(string(j.Phase))
	if j.Since != nil {
		line += "  " + v.since(*j.Since)
	}
	if j.Acting != 0 {
		line += fmt.Sprintf("  (pid %d is at work)", j.Acting)
	}
	v.line("%s%s", line, v.processMarks(j, 0))
	if j.Refused != "" {
		v.WriteString(v.screen.Wrap("  ", "no MPS: "+j.Refused))
	}
	if j.Share != "" {
		v.line("  granted  share %s, ceiling %s %%, memory %s", j.Share, j.Ceiling, j.Memory)
	}
	if j.Part.Shared() {
		v.line("  part     %s of each GPU", j.Part)
	}
	if j.Joined != 0 {
		v.line("  served   by %s", lease.Name(j.Joined))
	}
	for _, d := range j.Daemons {
		v.daemon(j, d)
	}
	if j.Guard != nil {
		v.guard(j, *j.Guard)
	}
	if j.Report.BadEnds > 0 {
		v.line("  ended    %s", v.screen.Red(fmt.Sprintf("%d of %s badly: mpsctl report %d", j.Report.BadEnds,
			words.Count(j.Report.ClientsSeen, "client"), j.ID)))
	}
	if text := judge.PauseText(pausesOf(j)); text != "" {
		v.WriteString(v.screen.Wrap("  ", text))
	}
	if j.Joined != 0 { // the clients stand with the daemon
		return
	}
	for _, held := range j.Devices {
		v.device(j, held)
	}
}

// pausesOf returns the pauses of a job's ranks. The guard's state is the latest, but only root can read it.
func pausesOf(j state.Job) usage.Totals {
	if j.Guard != nil {
		return usage.Totals{Counts: j.Guard.Counts}
	}
	return j.Report.Totals
}

func (v *view) guard(j state.Job, g state.Guard) {
	life := v.screen.Green("running")
	switch {
	case !g.Running && j.Phase == state.Closing:
		life = "ended"
	case !g.Running:
		life = v.screen.Red("gone")
	case g.Stalled != nil:
		life = v.screen.Red("stalled since " + g.Stalled.In(v.Time.Location()).Format("15:04:05"))
	}
	line := fmt.Sprintf("  guard    pid %d  %s  %s", g.PID, life, words.Count(g.Clients, "client"))
	if g.Dead > 0 {
		line += fmt.Sprintf("  holds files of %d that ended", g.Dead)
	}
	if g.OutsideSeen > 0 {
		line += fmt.Sprintf("  %s outside of MPS: see mpsctl audit", words.Count(g.OutsideSeen, "process"))
	}
	if g.Silent > 0 {
		line += fmt.Sprintf("  no answer of %s in an exec", words.Count(g.Silent, "process"))
	}
	v.line("%s%s", line, v.processMarks(j, g.PID))
}

// state colours the state of a job, a daemon or a server.
func (v *view) state(word string) string {
	switch word {
	case string(state.Opened), string(state.Recorded), string(state.Serves), "ACTIVE":
		return v.screen.Green(word)
	case string(state.Alive), string(state.NotStarted):
		return word
	case string(state.Unreadable), string(state.Orphaned), "FAULT", string(state.NotServing), string(state.NoAnswer),
		string(state.Gone), string(state.Replaced), string(state.Unclear):
		return v.screen.Red(word)
	}
	return v.screen.Yellow(word)
}

func (v *view) since(begin time.Time) string {
	local, form := begin.In(v.Time.Location()), "15:04:05"
	if local.YearDay() != v.Time.YearDay() || local.Year() != v.Time.Year() {
		form = "2006-01-02 15:04"
	}
	return fmt.Sprintf("since %s (%s)", local.Format(form), age(v.Time.Sub(begin)))
}

// age returns a duration in its two largest units.
func age(d time.Duration) string {
	d = max(d, 0)
	day, hour, minute, second := int(d.Hours())/24, int(d.Hours())%24, int(d.Minutes())%60, int(d.Seconds())%60
	switch {
	case day > 0:
		return fmt.Sprintf("%dd%dh", day, hour)
	case hour > 0:
		return fmt.Sprintf("%dh%dm", hour, minute)
	case minute > 0:
		return fmt.Sprintf("%dm%ds", minute, second)
	}
	return fmt.Sprintf("%ds", second)
}

func (v *view) daemon(j state.Job, d state.Daemon) {
	line := "  daemon   "
	if d.PID != 0 {
		line += fmt.Sprintf("pid %d  ", d.PID)
	}
	if d.State == state.Gone && j.Phase == state.Closing { // as the epilog wants it
		line += "ended"
	} else {
		line += v.state(string(d.State))
	}
	if len(j.Daemons) > 1 {
		var names []string
		for _, uuid := range d.Devices {
			names = append(names, v.name(uuid))
		}
		line += "  for " + strings.Join(names, ", ")
	}
	if d.Ceiling != nil {
		line += fmt.Sprintf("  ceiling %.1f %%", *d.Ceiling)
	}
	v.line("%s%s", line, v.processMarks(j, d.PID))
	for _, s := range d.Servers {
		v.line("  server   pid %d  %s  ceiling %.1f %%%s", s.PID, v.state(s.Status), s.Percent, v.processMarks(j, s.PID))
	}
	if d.State == state.Serves && len(d.Servers) == 0 {
		v.line("  server   none: the first client starts it")
	}
}

func (v *view) name(uuid site.UUID) string {
	if g := v.GPU(uuid); g != nil {
		return g.String()
	}
	return string(uuid)
}

func (v *view) device(j state.Job, held state.Held) {
	var g state.GPU
	line := "  " + v.name(held.UUID)
	if seen := v.GPU(held.UUID); seen != nil {
		g = *seen
		line = fmt.Sprintf("  %-8s %s, %d SMs", g, g.Name, g.SMs)
	}
	if g.Mode != "" {
		line += ", " + string(g.Mode)
	}
	sms := 0 // more than the GPU has if shares overlap
	for _, c := range held.Clients {
		sms += c.SMs
	}
	if sms > 0 {
		line += fmt.Sprintf(", %d SMs assigned", sms)
	}
	v.line("%s%s", line, v.marks(func(f state.Finding) bool { return f.Job == j.ID && f.GPU == held.UUID }))
	v.use(held)
	v.clients(held.Clients, g)
}

// use appends the line with the use of a GPU. Its bar shows the SMs that have work. Without GPM the bar shows the
// part of the time in which a kernel runs.
func (v *view) use(held state.Held) {
	if held.Use == nil {
		return
	}
	load := max(held.Use.SMActive, 0)
	if held.Use.SMActive < 0 {
		load = max(held.Use.SMUtil, 0)
	}
	values := []string{}
	for _, f := range usage.All {
		values = append(values, f.Name+" "+f.TextOf(*held.Use))
	}
	const title = "  in use   "
	line := v.screen.Wrap(strings.Repeat(" ", len(title)), strings.Join(values, ", "))
	line = title + strings.TrimSuffix(line[len(title):], "\n")
	if cells := min(v.screen.Columns-len(line)-2, 30); cells >= 8 {
		line += "  " + command.Bar(int(load+0.5), 100, cells)
	}
	v.line("%s", line)
}

// clients appends the table of a GPU's clients. The command has the width that the other columns leave.
func (v *view) clients(clients []state.Client, g state.GPU) {
	if len(clients) == 0 {
		return
	}
	t := table{gap: 2, columns: []column{{name: "rank"}, {name: "step"}, {name: "pid"},
		{name: "command", left: true, width: min(max(v.screen.Columns-57, 6), 24)}, {name: "share"}, {name: "memory"}, {name: "limit"}}}
	for _, c := range clients {
		rank, used, share, limit := "-", "-", "-", "-"
		if c.Rank >= 0 {
			rank = strconv.Itoa(c.Rank)
		}
		if c.UsedMiB > 0 {
			used = memoryText(&c.UsedMiB)
		}
		if c.Unknown == "" {
			share, limit = clientShare(c, g), memoryText(c.MemoryMiB)
		}
		t.rows = append(t.rows, []any{rank, cmp.Or(c.Step, "-"), c.PID, c.Command, share, used, limit})
	}
	lines := t.lines(v.screen)
	v.line("  %s", lines[0])
	for n, c := range clients {
		v.line("  %s", lines[n+1])
		if c.Unknown != "" {
			v.WriteString(v.screen.Wrap("          ", "limits not known: "+c.Unknown))
		}
	}
}

// clientShare returns a client's share in SMs, or its percentage if its SMs are not known.
func clientShare(c state.Client, g state.GPU) string {
	switch {
	case c.SMs > 0 && g.SMs > 0:
		return strconv.Itoa(c.SMs) + " SMs"
	case c.Percent == 0:
		return "no cap"
	}
	return c.Percent.String() + " %"
}

// gpus appends the table of GPUs. On a narrow screen it has no names, because the lines of the jobs have them.
func (v *view) gpus() {
	if len(v.GPUs) == 0 {
		return
	}
	t := table{gap: 1, columns: []column{{name: "GPU", left: true}, {name: "name", left: true, width: 20}, {name: "mode", left: true},
		{name: "held by", left: true}, {name: "clients"}, {name: "others"}}}
	for _, g := range v.GPUs {
		clients, others := 0, 0
		for _, process := range g.Processes {
			switch process.Kind {
			case state.KindClient:
				clients++
			case state.KindCompute:
				others++
			}
		}
		t.rows = append(t.rows, []any{g.String(), g.Name, cmp.Or(string(g.Mode), "-"), holder(g), clients, others})
	}
	if v.screen.Columns < 80 {
		t = t.part(2, len(t.columns))
	}
	lines := t.lines(v.screen)
	v.line("\n%s", lines[0])
	for n, g := range v.GPUs {
		v.line("%s%s", lines[n+1], v.marks(func(f state.Finding) bool { return f.GPU == g.UUID && (g.Holder == nil || f.Job != *g.Holder) }))
	}
}

func holder(g state.GPU) string {
	switch {
	case len(g.Holders) > 1:
		return fmt.Sprintf("%d jobs", len(g.Holders))
	case len(g.Holders) == 1:
		return lease.Name(g.Holders[0])
	case g.Holder != nil:
		return lease.Name(*g.Holder)
	case g.Held:
		return "another job"
	}
	return "no job"
}

// processMarks returns the kinds of the findings of a process of a job, or of the job itself if pid is 0.
func (v *view) processMarks(j state.Job, pid int) string {
	return v.marks(func(f state.Finding) bool { return f.Job == j.ID && f.PID == pid && f.GPU == "" })
}

func (v *view) marks(here func(state.Finding) bool) string {
	var kinds []string
	for _, f := range v.found {
		if here(f) {
			kinds = append(kinds, string(f.Kind))
		}
	}
	if len(kinds) == 0 {
		return ""
	}
	return v.screen.Red("  ! " + strings.Join(kinds, ", "))
}

func findingsText(found []state.Finding, screen command.Screen) string {
	if len(found) == 0 {
		return ""
	}
	text := "\n" + screen.Red(words.Count(len(found), "finding")) + "\n"
	for _, f := range found {
		text += findingText(f, screen)
	}
	return text
}

// findingText prints a finding for people: kind and place, then the fault, then the repair.
func findingText(f state.Finding, screen command.Screen) string {
	head := fmt.Sprintf("%s %s  %s\n", mark(f.Level, screen), screen.Bold(string(f.Kind)), words.Printable(f.Where))
	return head + screen.Wrap("    ", words.Printable(strings.Join(strings.Fields(f.What), " "))) + fixText(f.Fix)
}

func mark(level state.Level, screen command.Screen) string {
	switch level {
	case state.Warning:
		return screen.Yellow("~")
	case state.Note:
		return screen.Faint("-")
	}
	return screen.Red("!")
}

// fixText prints a repair for people. Its steps are separated by semicolons. If a step is a comment, a colon and a
// command, the command stands alone on the next line, so that it can be copied.
func fixText(fix string) (text string) {
	begin := "    fix: "
	for step := range strings.SplitSeq(fix, "; ") {
		comment, line, cut := strings.Cut(step, ": ")
		if text += begin + comment; cut {
			text += ":\n             " + line
		}
		text, begin = text+"\n", "         "
	}
	return text
}

func unseenText(unseen []string, screen command.Screen) string {
	if len(unseen) == 0 {
		return ""
	}
	text := "\n" + screen.Yellow("not seen") + "\n"
	for _, part := range unseen {
		text += screen.Wrap("  ", part)
	}
	return text
}
