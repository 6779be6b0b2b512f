// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/command"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/inspect"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// view is the text of mpsctl status, to which its methods append.
type view struct {
	strings.Builder
	inspect.Node
	found  []inspect.Finding
	screen command.Screen
}

func (p *view) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// statusText returns the state of a node as text for people.
func statusText(n inspect.Node, found []inspect.Finding, screen command.Screen) string {
	p := &view{Node: n, found: found, screen: screen}
	p.head()
	for _, j := range n.Jobs {
		p.job(j)
	}
	p.gpus()
	p.WriteString(findingsText(found, screen))
	p.WriteString(unseenText(n.Incomplete, screen))
	return p.String()
}

func (p *view) head() {
	clients := map[int]bool{}
	for _, j := range p.Jobs {
		for _, held := range j.Devices {
			for _, c := range held.Clients {
				clients[c.PID] = true
			}
		}
	}
	p.line("%s  %s  %s, %s, %s", p.screen.Bold(p.Name), p.Time.Format("2006-01-02 15:04:05"),
		site.Count(len(p.GPUs), "GPU"), site.Count(len(p.Jobs), "job"), site.Count(len(clients), "client"))
}

func (p *view) job(j inspect.Job) {
	p.line("")
	line := p.screen.Bold(fmt.Sprintf("job %d", j.ID))
	for _, part := range []string{j.User, quoted("rule ", j.Rule), p.phase(j.Phase), p.since(j.Since), acting(j.Acting)} {
		if part != "" {
			line += "  " + part
		}
	}
	p.line("%s%s", line, p.marks(func(f inspect.Finding) bool { return f.Job == j.ID && f.GPU == "" && f.PID == 0 }))
	if j.Refused != "" {
		p.WriteString(p.screen.Wrap("  ", "no MPS: "+j.Refused))
	}
	if j.Share != "" {
		p.line("  granted  share %s, ceiling %s %%, memory %s", j.Share, j.Ceiling, j.Memory)
	}
	for _, d := range j.Daemons {
		p.daemon(j, d)
	}
	if j.Guard != nil {
		p.guard(j, *j.Guard)
	}
	if j.Report.BadEnds > 0 {
		p.line("  ended    %s", p.screen.Red(fmt.Sprintf("%d of %s badly: mpsctl report %d", j.Report.BadEnds,
			site.Count(j.Report.ClientsSeen, "client"), j.ID)))
	}
	if text := pausesOf(j).PauseText(); text != "" {
		p.WriteString(p.screen.Wrap("  ", text))
	}
	for _, held := range j.Devices {
		p.device(j, held)
	}
}

// pausesOf returns the pauses of a job's ranks. The guard's state is the latest, but only root can read it.
func pausesOf(j inspect.Job) usage.Totals {
	if j.Guard != nil {
		return usage.Totals{Counts: j.Guard.Counts}
	}
	return j.Report.Totals
}

// guard appends the line of a job's guard.
func (p *view) guard(j inspect.Job, g inspect.Guard) {
	state := p.screen.Green("running")
	switch {
	case !g.Running:
		state = p.screen.Red("gone")
	case g.Stalled != nil:
		state = p.screen.Red("stalled since " + g.Stalled.In(p.Time.Location()).Format("15:04:05"))
	}
	line := fmt.Sprintf("  guard    pid %d  %s  %s", g.PID, state, site.Count(g.Clients, "client"))
	if g.Dead > 0 {
		line += fmt.Sprintf("  holds files of %d that ended", g.Dead)
	}
	if g.OutsideSeen > 0 {
		line += fmt.Sprintf("  %s outside of MPS: see mpsctl audit", site.Count(g.OutsideSeen, "process"))
	}
	if g.Silent > 0 {
		line += fmt.Sprintf("  no answer of %s in an exec", site.Count(g.Silent, "process"))
	}
	p.line("%s%s", line, p.marks(func(f inspect.Finding) bool { return f.Job == j.ID && f.PID == g.PID && f.GPU == "" }))
}

func quoted(before, name string) string {
	if name == "" {
		return ""
	}
	return before + name
}

func (p *view) phase(phase inspect.Phase) string {
	switch phase {
	case inspect.Opened:
		return p.screen.Green(string(phase))
	case inspect.Unreadable, inspect.Orphaned:
		return p.screen.Red(string(phase))
	}
	return p.screen.Yellow(string(phase))
}

func (p *view) since(at *time.Time) string {
	if at == nil {
		return ""
	}
	local, form := at.In(p.Time.Location()), "15:04:05"
	if local.YearDay() != p.Time.YearDay() || local.Year() != p.Time.Year() {
		form = "2006-01-02 15:04"
	}
	return fmt.Sprintf("since %s (%s)", local.Format(form), age(p.Time.Sub(*at)))
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

func acting(pid int) string {
	if pid == 0 {
		return ""
	}
	return fmt.Sprintf("(pid %d is at work)", pid)
}

func (p *view) daemon(j inspect.Job, d inspect.Daemon) {
	line := "  daemon   "
	if d.PID != 0 {
		line += fmt.Sprintf("pid %d  ", d.PID)
	}
	line += p.serving(d.State)
	if len(j.Daemons) > 1 {
		line += "  for " + p.numbers(d.Devices)
	}
	if d.Ceiling != nil {
		line += fmt.Sprintf("  ceiling %.1f %%", *d.Ceiling)
	}
	p.line("%s%s", line, p.marks(func(f inspect.Finding) bool { return f.Job == j.ID && f.PID == d.PID && f.GPU == "" }))
	for _, s := range d.Servers {
		line := fmt.Sprintf("  server   pid %d  %s  ceiling %.1f %%%s", s.PID, p.health(s.Status), s.Percent, memories(s.MemoryLimits))
		p.line("%s%s", line, p.marks(func(f inspect.Finding) bool { return f.Job == j.ID && f.PID == s.PID && f.GPU == "" }))
	}
	if d.State == inspect.Serves && len(d.Servers) == 0 {
		p.line("  server   none: the first client starts it")
	}
}

// memories returns a server's limits of memory. This project sets no such limits.
func memories(limits []string) string {
	text := ""
	for i, limit := range limits {
		if limit != "" {
			text += fmt.Sprintf("  memory of device %d: %s", i, limit)
		}
	}
	return text
}

func (p *view) serving(state inspect.DaemonState) string {
	switch state {
	case inspect.Serves:
		return p.screen.Green(string(state))
	case inspect.Alive, inspect.NotStarted:
		return string(state)
	}
	return p.screen.Red(string(state))
}

func (p *view) health(status string) string {
	switch status {
	case "ACTIVE":
		return p.screen.Green(status)
	case "FAULT":
		return p.screen.Red(status)
	}
	return p.screen.Yellow(status)
}

func (p *view) numbers(devices []site.UUID) string {
	var names []string
	for _, uuid := range devices {
		names = append(names, p.name(uuid))
	}
	return strings.Join(names, ", ")
}

func (p *view) name(uuid site.UUID) string {
	if g, seen := p.GPU(uuid); seen {
		return g.String()
	}
	return string(uuid)
}

func (p *view) device(j inspect.Job, held inspect.Held) {
	g, seen := p.GPU(held.UUID)
	line := "  " + p.name(held.UUID)
	if seen {
		line = fmt.Sprintf("  %-8s %s, %d SMs", g, g.Name, g.SMs)
	}
	if g.Mode != "" {
		line += ", " + string(g.Mode)
	}
	if sms := assigned(held.Clients); sms > 0 {
		line += fmt.Sprintf(", %d SMs assigned", sms)
	}
	p.line("%s%s", line, p.marks(func(f inspect.Finding) bool { return f.Job == j.ID && f.GPU == held.UUID }))
	p.use(held, g)
	if len(held.Clients) > 0 {
		p.line("%s", p.screen.Faint(strings.TrimRight(fmt.Sprintf(p.clientRow(), "rank", "step", "pid", "command", "share", "memory", "limit"), " ")))
	}
	for _, c := range held.Clients {
		p.client(c, g)
	}
}

// use appends the line with the use of a GPU. Its bar shows the SMs that have work. Without GPM the bar shows the
// part of the time in which a kernel runs.
func (p *view) use(held inspect.Held, g inspect.GPU) {
	if held.Use == nil {
		return
	}
	load := max(held.Use.SMActive, 0)
	if held.Use.SMActive < 0 {
		load = max(held.Use.SMUtil, 0)
	}
	line := ""
	for _, f := range usage.Percentages {
		line += f.Name + " " + usage.Percent(f.Of(*held.Use)) + ", "
	}
	const title = "  in use   "
	line = p.screen.Wrap(strings.Repeat(" ", len(title)), fmt.Sprintf("%s%s %d GiB", line, usage.MemoryUsed.Name,
		(held.Use.UsedMiB+512)>>10))
	line = title + strings.TrimSuffix(line[len(title):], "\n")
	if cells := min(p.screen.Columns-len(line)-2, 30); cells >= 8 {
		line += "  " + command.Bar(int(load+0.5), 100, cells)
	}
	p.line("%s", line)
}

// assigned returns the sum of the SMs that the clients may use. If shares overlap, it is more than the GPU has.
func assigned(clients []inspect.Client) (sms int) {
	for _, c := range clients {
		sms += c.SMs
	}
	return sms
}

// clientRow is the format of a client's line: rank, step, pid, command, share, memory in use, memory limit. The
// command has the width that the other columns leave.
func (p *view) clientRow() string {
	command := min(max(p.screen.Columns-57, 6), 24)
	return fmt.Sprintf("  %%5s %%5s %%8s  %%-%d.%ds %%8s %%9s %%10s", command, command)
}

func (p *view) client(c inspect.Client, g inspect.GPU) {
	rank := "-"
	if c.Rank >= 0 {
		rank = strconv.Itoa(c.Rank)
	}
	step := cmp.Or(c.Step, "-")
	used := "-"
	if c.UsedMiB > 0 {
		used = strconv.Itoa(c.UsedMiB) + " MiB"
	}
	row := fmt.Sprintf(p.clientRow(), rank, step, strconv.Itoa(c.PID), c.Command, clientShare(c, g), used, limit(c))
	p.line("%s", strings.TrimRight(row, " "))
	if c.Unknown != "" {
		p.WriteString(p.screen.Wrap("          ", "limits not known: "+c.Unknown))
	}
}

// clientShare returns a client's share in SMs, or its percentage if its SMs are not known.
func clientShare(c inspect.Client, g inspect.GPU) string {
	switch {
	case c.Unknown != "":
		return "-"
	case c.SMs > 0 && g.SMs > 0:
		return strconv.Itoa(c.SMs) + " SMs"
	}
	return percent(c.Percent)
}

func limit(c inspect.Client) string {
	if c.Unknown != "" {
		return "-"
	}
	return memory(c.MemoryMiB)
}

func percent(own policy.Percent) string {
	if own == 0 {
		return "no cap"
	}
	return own.String() + " %"
}

func memory(mib *int) string {
	if mib == nil {
		return "no limit"
	}
	return strconv.Itoa(*mib) + " MiB"
}

// gpuRow returns the row of a GPU. On a narrow screen the row has no name, because the lines of the jobs have the
// name.
func (p *view) gpuRow(gpu, name, mode, holder, clients, others string) string {
	if p.screen.Columns >= 80 {
		gpu = fmt.Sprintf("%-13s %-20.20s", gpu, name)
	}
	return fmt.Sprintf("%-13s %-17s %-11s %7s %6s", gpu, mode, holder, clients, others)
}

// gpus appends every GPU with its mode and its job.
func (p *view) gpus() {
	if len(p.GPUs) == 0 {
		return
	}
	p.line("\n%s", p.screen.Faint(p.gpuRow("GPU", "name", "mode", "held by", "clients", "others")))
	for _, g := range p.GPUs {
		clients, others := 0, 0
		for _, process := range g.Processes {
			switch process.Kind {
			case inspect.KindClient:
				clients++
			case inspect.KindCompute:
				others++
			}
		}
		mode := string(g.Mode)
		if mode == "" {
			mode = "-"
		}
		p.line("%s%s", p.gpuRow(g.String(), g.Name, mode, holder(g), strconv.Itoa(clients), strconv.Itoa(others)),
			p.marks(func(f inspect.Finding) bool { return f.GPU == g.UUID && (g.Holder == nil || f.Job != *g.Holder) }))
	}
}

func holder(g inspect.GPU) string {
	switch {
	case g.Holder != nil:
		return fmt.Sprintf("job %d", *g.Holder)
	case g.Held:
		return "another job"
	}
	return "no job"
}

// marks returns the kinds of the findings of a place.
func (p *view) marks(here func(inspect.Finding) bool) string {
	var kinds []string
	for _, f := range p.found {
		if here(f) {
			kinds = append(kinds, string(f.Kind))
		}
	}
	if len(kinds) == 0 {
		return ""
	}
	return p.screen.Red("  ! " + strings.Join(kinds, ", "))
}
