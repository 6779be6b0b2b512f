// SPDX-License-Identifier: Apache-2.0

// Package page draws the report of a job as a page of HTML. The page is one file, without scripts and without anything
// from a network, so that users can send it to each other.
package page

import (
	"cmp"
	_ "embed" // the template
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

//go:embed page.tmpl
var source string

// Write writes the page of a report. Its times are in the time zone of the report's first time. Names and steps come
// from users, so the template escapes them, and shown limits their length.
func Write(w io.Writer, r usage.Report) error {
	page, err := template.New("page").Parse(source)
	if err != nil {
		return fmt.Errorf("cannot read the page's template: %w", err)
	}
	if err := page.Execute(w, contentsOf(r)); err != nil {
		return fmt.Errorf("cannot write the page of job %d: %w", r.Job, err)
	}
	return nil
}

// contents is the input of the template.
type contents struct {
	Job       uint32
	Verdict   string
	Outcome   string
	Advice    string
	Remarks   []string
	Incidents []incidentRow
	Marks     []markRow
	Words     []fact
	Facts     []fact
	GPUs      []gpuPart
	Clients   []clientRow
	Faults    []faultRow
}

// fact is a name with a value.
type fact struct{ Name, Value string }

// gpuPart is a GPU with its figures.
type gpuPart struct {
	Index   int
	Facts   []fact
	Plot    plotFigure
	Lanes   []laneFigure
	Values  []fact // the means, the maximum memory, the energy
	Clients int
}

// clientRow is a client in the table.
type clientRow struct {
	Rank, Step, Program, PID, GPU, SMs, Limit, Peak, Begin, Lasted, Ending string
}

// incidentRow is something that went wrong.
type incidentRow struct{ At, Text string }

// markRow is a mark of the lanes in the legend.
type markRow struct{ Path, Class, Means string }

// faultRow is a fatal GPU error in the table.
type faultRow struct{ At, GPU, PID string }

func contentsOf(r usage.Report) contents {
	axis := axisOf(r)
	page := contents{Job: r.Job, Verdict: r.Verdict(), Outcome: outcome(r, axis), Advice: r.Advice(),
		Remarks: remarks(r, axis), Facts: facts(r, axis), Marks: legend(), Words: words(r)}
	for n, i := range r.Incidents() {
		if n == maxIncidents {
			page.Remarks = append(page.Remarks, fmt.Sprintf("%s more: see the table of the clients.",
				site.Count(len(r.Incidents())-n, "incident")))
			break
		}
		page.Incidents = append(page.Incidents, incidentRow{axis.clock(i.At), shown(i.Text, 400)})
	}
	clients := inLanes(r.Clients)
	for i, g := range r.GPUs {
		page.GPUs = append(page.GPUs, partOf(r, i, g, clients, axis))
	}
	for _, c := range clients {
		page.Clients = append(page.Clients, rowOf(r, c, axis))
	}
	for _, f := range r.Faults {
		page.Faults = append(page.Faults, faultRow{axis.clock(f.At), numberOf(r, f.GPU), known0(f.PID)})
	}
	return page
}

// maxIncidents limits the incidents on the page. The table has the ends of all clients.
const maxIncidents = 20

// words returns the meanings of the figures and of other words on the page.
func words(r usage.Report) (all []fact) {
	for _, f := range append(slices.Clone(usage.Percentages), r.Memory()) {
		all = append(all, fact{f.Name, f.Means})
	}
	return append(all, fact{"share", "the maximum number of SMs that a client's kernels use at the same time"},
		fact{"neighbour", "another client on the same GPU"})
}

// notKnown is the text for an unknown value.
const notKnown = "not known"

// inLanes returns the clients in the order of the page: by the begin of their step, then by rank.
func inLanes(clients []usage.Client) []usage.Client {
	first := map[string]time.Time{}
	for _, c := range clients {
		if begin, seen := first[c.Step]; !seen || c.Begin.Before(begin) {
			first[c.Step] = c.Begin
		}
	}
	ordered := slices.Clone(clients)
	slices.SortStableFunc(ordered, func(a, b usage.Client) int {
		return cmp.Or(first[a.Step].Compare(first[b.Step]), cmp.Compare(a.Step, b.Step), cmp.Compare(a.Rank, b.Rank),
			a.Begin.Compare(b.Begin))
	})
	return ordered
}

func facts(r usage.Report, axis timeAxis) []fact {
	rule := shown(r.Rule, 64)
	if r.Share != "" {
		rule += ", which grants share " + shown(r.Share, 64)
	}
	energy := ""
	if r.EnergyJ > 0 {
		energy = usage.Energy(r.EnergyJ)
	}
	end := axis.clock(r.End)
	if r.End.IsZero() {
		end = "still runs"
	}
	all := []fact{
		{"job name", shown(r.Name, 64)}, {"user", shown(r.User, 64)}, {"node", shown(r.Node, 64)},
		{"partition", shown(r.Partition, 64)},
		{"account", shown(r.Account, 64)}, {"rule", rule}, {"begin", axis.clock(r.Begin)}, {"end", end},
		{"clients", fmt.Sprintf("%d, at most %d at the same time", r.ClientsSeen, r.ClientsPeak)},
		{"share of a client", r.Shares()}, {"GPU hours", fmt.Sprintf("%.2f", r.GPUHours(axis.end))}, {"energy", energy},
	}
	return slices.DeleteFunc(all, func(f fact) bool { return f.Value == "" })
}

// outcome returns the job's use of its GPUs in one sentence.
func outcome(r usage.Report, axis timeAxis) string {
	var s strings.Builder
	if time := timeSpent(r, axis); time != "" {
		s.WriteString(time + ", ")
	}
	if r.ClientsSeen == 0 {
		s.WriteString("no client of MPS was seen.")
		return capital(s.String())
	}
	fmt.Fprintf(&s, "%s used %s", site.Count(r.ClientsSeen, "client"), site.Count(len(r.GPUs), "GPU"))
	if peak, total := peakMemory(r); peak > 0 {
		fmt.Fprintf(&s, " and at most %s of a GPU's memory", ofMemory(peak, total))
	}
	return capital(s.String() + ".")
}

// timeSpent returns the time that the report covers, "" if it is not known.
func timeSpent(r usage.Report, axis timeAxis) string {
	switch {
	case r.Begin.IsZero():
		return ""
	case r.End.IsZero():
		return "in the first " + lasting(axis.end.Sub(r.Begin))
	}
	return "in " + lasting(r.End.Sub(r.Begin))
}

func peakMemory(r usage.Report) (peak, total int) {
	for _, g := range r.GPUs {
		if m := measureOf(r.Begin, g, usage.MemoryUsed); m.known && int(m.max) > peak {
			peak, total = int(m.max), r.MemoryMiB(g)
		}
	}
	return peak, total
}

// remarks returns sentences about unusual events.
func remarks(r usage.Report, axis timeAxis) (all []string) {
	if r.End.IsZero() {
		all = append(all, "The job still runs: the page shows it until "+axis.clock(axis.end)+".")
	}
	for _, text := range []string{r.PartText(), r.PauseText()} {
		if text != "" {
			all = append(all, text)
		}
	}
	if r.ClientsSeen > len(r.Clients) {
		all = append(all, fmt.Sprintf("The page has %d of %d clients.", len(r.Clients), r.ClientsSeen))
	}
	return all
}

func partOf(r usage.Report, i int, g usage.GPU, clients []usage.Client, axis timeAxis) gpuPart {
	lanes := slices.DeleteFunc(slices.Clone(clients), func(c usage.Client) bool { return c.GPU != i })
	faults := slices.DeleteFunc(slices.Clone(r.Faults), func(f usage.Fault) bool { return f.GPU != i })
	part := gpuPart{
		Index: g.Index, Clients: len(lanes), Plot: plotOf(r.Begin, g, faults, axis), Lanes: laneFigures(r, g, lanes, faults, axis),
		Facts: []fact{{"model", shown(g.Name, 64)}, {"SMs", known0(g.SMs)}, {"memory", ofMemory(g.MemoryMiB, 0)},
			{"UUID", shown(string(g.UUID), 64)}, {"percentages from", cmp.Or(shown(g.Source, 64), "nothing: there are none")}},
	}
	for _, f := range usage.Percentages {
		mean := notKnown
		if m := measureOf(r.Begin, g, f); m.known {
			mean = usage.Percent(m.mean)
		}
		part.Values = append(part.Values, fact{f.Name, mean})
	}
	peak, energy := notKnown, notKnown
	if m := measureOf(r.Begin, g, usage.MemoryUsed); m.known {
		peak = ofMemory(int(m.max), r.MemoryMiB(g))
	}
	if g.EnergyJ > 0 {
		energy = usage.Energy(g.EnergyJ)
	}
	part.Values = append(part.Values, fact{usage.MemoryUsed.Name, peak}, fact{"energy", energy})
	return part
}

func rowOf(r usage.Report, c usage.Client, axis timeAxis) clientRow {
	row := clientRow{
		Rank: notKnown, Step: cmp.Or(shown(c.Step, 64), notKnown), PID: known0(c.PID), GPU: numberOf(r, c.GPU), SMs: "all",
		Limit: "none", Peak: ofMemory(c.PeakMiB, 0), Begin: axis.clock(c.Begin), Lasted: notKnown,
		Program: cmp.Or(shown(c.Program, 64), notKnown),
		Ending:  capital(c.EndText() + behind(". ", c.Neighbours(r.GPUName(c.GPU)))),
	}
	if c.Rank >= 0 {
		row.Rank = strconv.Itoa(c.Rank)
	}
	if c.SMs > 0 {
		row.SMs = strconv.Itoa(c.SMs)
	}
	if c.LimitMiB > 0 {
		row.Limit = ofMemory(c.LimitMiB, 0)
	}
	if !c.Begin.IsZero() && !c.End.IsZero() {
		row.Lasted = lasting(c.End.Sub(c.Begin))
	}
	return row
}

// laneEndOf returns a client's end as a short text for the lane, and as a mark.
func laneEndOf(c usage.Client, running bool) (word string, shape mark) {
	switch {
	case c.Ending == usage.Faulted:
		return "GPU error", markFault
	case c.Ending == usage.AtEpilog:
		return "at epilog", markEpilog
	case c.Bad():
		return shown(c.Exit, 12), markBad
	case c.End.IsZero() && running:
		return "runs", markRuns
	case c.Exit == usage.InOrder:
		return c.Exit, markEnded
	}
	return notKnown, markUnknown
}

// legend returns the marks of the lanes with their meanings.
func legend() (all []markRow) {
	for _, m := range []struct {
		mark  mark
		means string
	}{
		{markEnded, "ended with status 0"},
		{markBad, "ended by a signal, or with another status"},
		{markFault, "ended by a fatal GPU error"},
		{markEpilog, "outlived the job, and was ended by the epilog"},
		{markUnknown, "how it ended is not known"},
		{markRuns, "runs"},
	} {
		all = append(all, markRow{m.mark.at(10, 10), m.mark.class, m.means})
	}
	return all
}

// numberOf returns the node's number of a GPU in the report.
func numberOf(r usage.Report, gpu int) string {
	if gpu < 0 || gpu >= len(r.GPUs) {
		return notKnown
	}
	return strconv.Itoa(r.GPUs[gpu].Index)
}

// known0 returns a number as text. The number 0 means not known.
func known0(n int) string {
	if n <= 0 {
		return notKnown
	}
	return strconv.Itoa(n)
}

// ofMemory returns an amount of memory in GiB, with the total if that is known.
func ofMemory(mib, total int) string {
	switch {
	case mib <= 0:
		return notKnown
	case total > 0:
		return fmt.Sprintf("%.1f of %.1f GiB", float64(mib)/1024, float64(total)/1024)
	}
	return fmt.Sprintf("%.1f GiB", float64(mib)/1024)
}

// lasting returns a duration in its two largest units.
func lasting(d time.Duration) string {
	if d = max(d, 0).Round(time.Second); d >= time.Hour {
		d = d.Round(time.Minute)
	}
	parts := []string{}
	for _, unit := range []struct {
		name  string
		lasts time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"min", time.Minute}, {"s", time.Second}} {
		if n := d / unit.lasts; n > 0 && len(parts) < 2 {
			parts = append(parts, fmt.Sprintf("%d %s", n, unit.name))
			d -= n * unit.lasts
		}
	}
	if len(parts) == 0 {
		return "0 s"
	}
	return strings.Join(parts, " ")
}

// behind returns both texts, or "" if the second text is empty.
func behind(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// capital returns a text with a capital first letter.
func capital(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// shown returns a text with at most this many characters. A character that is not printable, or that changes the
// direction of the text, is shown as "·".
func shown(text string, limit int) string {
	clean := []rune(strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return '·'
		}
		return c
	}, text))
	if len(clean) > limit {
		clean = append(clean[:limit-1], '…')
	}
	return string(clean)
}
