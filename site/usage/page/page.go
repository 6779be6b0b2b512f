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
	Job     uint32
	Outcome string
	Remarks []string
	Facts   []fact
	GPUs    []gpuPart
	Clients []clientRow
	Faults  []faultRow
}

// fact is a name with a value.
type fact struct{ Name, Value string }

// gpuPart is a GPU with its figures.
type gpuPart struct {
	Index              int
	Facts              []fact
	Plot               plotFigure
	Lanes              []laneFigure
	Active, Util, DRAM string
	Peak               string
	Clients            int
}

// clientRow is a client in the table.
type clientRow struct {
	Rank, Step, PID, GPU, SMs, Limit, Peak, Begin, Lasted, Ending string
}

// faultRow is a fatal GPU error in the table.
type faultRow struct{ At, GPU, PID string }

func contentsOf(r usage.Report) contents {
	axis := axisOf(r)
	page := contents{Job: r.Job, Outcome: outcome(r, axis), Remarks: remarks(r, axis), Facts: facts(r, axis)}
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

// notKnown is what the page shows for an unknown value.
const notKnown = "not known"

// inLanes returns the clients in the order of the page: by the begin of their step, then by rank.
func inLanes(clients []usage.Client) []usage.Client {
	first := map[string]time.Time{}
	for _, c := range clients {
		if at, seen := first[c.Step]; !seen || c.Begin.Before(at) {
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
		rule += " (share " + shown(r.Share, 64) + ")"
	}
	end := axis.clock(r.End)
	if r.End.IsZero() {
		end = "still runs"
	}
	all := []fact{
		{"user", shown(r.User, 64)}, {"node", shown(r.Node, 64)}, {"partition", shown(r.Partition, 64)},
		{"account", shown(r.Account, 64)}, {"rule", rule}, {"begin", axis.clock(r.Begin)}, {"end", end},
		{"clients", fmt.Sprintf("%d, at most %d at the same time", r.ClientsSeen, r.ClientsPeak)},
	}
	return slices.DeleteFunc(all, func(f fact) bool { return f.Value == "" })
}

// outcome returns the result of the job in one sentence.
func outcome(r usage.Report, axis timeAxis) string {
	var s strings.Builder
	if time := timeSpent(r, axis); time != "" {
		s.WriteString(time + ", ")
	}
	if r.ClientsSeen == 0 {
		s.WriteString("no client of MPS was seen.")
		return capital(s.String())
	}
	fmt.Fprintf(&s, "%s %s", site.Count(r.ClientsSeen, "client"), howBusy(r))
	if peak, of := peakMemory(r); peak > 0 {
		fmt.Fprintf(&s, ", and at most %s of a GPU's memory", ofMemory(peak, of))
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

// howBusy returns the use of all GPUs, by the best measure that each GPU has.
func howBusy(r usage.Report) string {
	gpus := site.Count(len(r.GPUs), "GPU")
	if active, ok := meanOf(r, smActive); ok {
		return "used " + asPercent(active) + " of the SMs of " + gpus + " on average"
	}
	if util, ok := meanOf(r, smUtil); ok {
		return "kept " + gpus + " busy for " + asPercent(util) + " of the time"
	}
	return "used " + gpus + " (how busy is not known)"
}

// meanOf returns the mean of a measure over all GPUs. ok is false if a GPU has no value.
func meanOf(r usage.Report, measure func(usage.Sample) float64) (mean float64, ok bool) {
	for _, g := range r.GPUs {
		m := measureOf(r.Begin, g.Samples, measure)
		if !m.known {
			return 0, false
		}
		mean += m.mean / float64(len(r.GPUs))
	}
	return mean, len(r.GPUs) > 0
}

func peakMemory(r usage.Report) (peak, of int) {
	for _, g := range r.GPUs {
		if m := measureOf(r.Begin, g.Samples, usedMiB); m.known && int(m.max) > peak {
			peak, of = int(m.max), g.MemoryMiB
		}
	}
	return peak, of
}

// remarks returns sentences about unusual events.
func remarks(r usage.Report, axis timeAxis) (all []string) {
	if r.End.IsZero() {
		all = append(all, "The job still runs: the page shows it until "+axis.clock(axis.end)+".")
	}
	ended := map[usage.Ending][]usage.Client{}
	for _, c := range r.Clients {
		ended[c.Ending] = append(ended[c.Ending], c)
	}
	if inFlight := ended[usage.InFlight]; len(inFlight) == 1 {
		all = append(all, capital("1 client ended while its GPU had work"+behind(": ", livedOn(inFlight[0].Unharmed))+"."))
	} else if len(inFlight) > 1 {
		all = append(all, fmt.Sprintf("%d clients ended while their GPUs had work. The table has how many neighbours lived on.", len(inFlight)))
	}
	if text := r.PauseText(); text != "" {
		all = append(all, text)
	}
	if n := len(r.Faults); n > 0 {
		all = append(all, "The job had "+site.Count(n, "fatal GPU error")+". Such an error ends all clients of its GPU.")
	}
	if n := len(ended[usage.AtEpilog]); n > 0 {
		all = append(all, "The epilog ended "+site.Count(n, "client")+" that outlived the job.")
	}
	if r.ClientsSeen > len(r.Clients) {
		all = append(all, fmt.Sprintf("The page has %d of %d clients.", len(r.Clients), r.ClientsSeen))
	}
	return all
}

// livedOn returns a text with the number of neighbours that lived on, "" for none.
func livedOn(n int) string {
	switch {
	case n <= 0:
		return ""
	case n == 1:
		return "its neighbour lived on"
	}
	return fmt.Sprintf("its %d neighbours lived on", n)
}

func partOf(r usage.Report, i int, g usage.GPU, clients []usage.Client, axis timeAxis) gpuPart {
	own := slices.DeleteFunc(slices.Clone(clients), func(c usage.Client) bool { return c.GPU != i })
	faults := slices.DeleteFunc(slices.Clone(r.Faults), func(f usage.Fault) bool { return f.GPU != i })
	part := gpuPart{
		Index: g.Index, Clients: len(own), Plot: plotOf(r.Begin, g, faults, axis), Lanes: laneFigures(r, g, own, faults, axis),
		Active: meanText(measureOf(r.Begin, g.Samples, smActive)), Util: meanText(measureOf(r.Begin, g.Samples, smUtil)),
		DRAM: meanText(measureOf(r.Begin, g.Samples, dram)), Peak: notKnown,
		Facts: []fact{{"model", shown(g.Name, 64)}, {"SMs", known0(g.SMs)}, {"memory", ofMemory(g.MemoryMiB, 0)},
			{"UUID", shown(string(g.UUID), 64)}, {"percentages from", cmp.Or(shown(g.Source, 64), "nothing: there are none")}},
	}
	if m := measureOf(r.Begin, g.Samples, usedMiB); m.known {
		part.Peak = ofMemory(int(m.max), g.MemoryMiB)
	}
	return part
}

func rowOf(r usage.Report, c usage.Client, axis timeAxis) clientRow {
	row := clientRow{
		Rank: notKnown, Step: cmp.Or(shown(c.Step, 64), notKnown), PID: known0(c.PID), GPU: numberOf(r, c.GPU), SMs: "all",
		Limit: "none", Peak: ofMemory(c.PeakMiB, 0), Begin: axis.clock(c.Begin), Lasted: notKnown,
		Ending: laneEndOf(c, r.End.IsZero()).long + behind(": ", livedOn(c.Unharmed)),
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

// laneEnd is a client's end: as a short text for the lane, as a long text for the table, and as a mark.
type laneEnd struct {
	word, long string
	mark       mark
}

func laneEndOf(c usage.Client, running bool) laneEnd {
	switch c.Ending {
	case usage.Ended:
		return laneEnd{"ended", "ended", markEnded}
	case usage.InFlight:
		return laneEnd{"at work", "ended while the GPU had work", markInFlight}
	case usage.Faulted:
		return laneEnd{"GPU error", "fatal GPU error", markFault}
	case usage.AtEpilog:
		return laneEnd{"at epilog", "outlived the job: ended by the epilog", markEpilog}
	}
	if running && c.End.IsZero() {
		return laneEnd{"runs", "still runs", markRuns}
	}
	return laneEnd{notKnown, notKnown, markUnknown}
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
func ofMemory(mib, of int) string {
	switch {
	case mib <= 0:
		return notKnown
	case of > 0:
		return fmt.Sprintf("%.1f of %.1f GiB", float64(mib)/1024, float64(of)/1024)
	}
	return fmt.Sprintf("%.1f GiB", float64(mib)/1024)
}

func meanText(m measure) string {
	if !m.known {
		return notKnown
	}
	return asPercent(m.mean)
}

func asPercent(v float64) string { return fmt.Sprintf("%.0f %%", v) }

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
func behind(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}

func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

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
