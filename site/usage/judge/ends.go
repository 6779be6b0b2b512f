// SPDX-License-Identifier: Apache-2.0

// Package judge says for people what a report shows: how clients ended, the incidents of a job, and what to change.
// Root's programs keep reports and do not link it.
package judge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/words"
	"golang.org/x/sys/unix"
)

// bad reports whether a client ended badly.
func bad(c usage.Client) bool { return usage.BadEnd(c.Exit, c.Ending) }

// EndText returns how a client ended, as in "ended by signal 9 (SIGKILL)".
func EndText(c usage.Client) string {
	switch {
	case c.Ending == usage.Faulted:
		return "ended by a fatal GPU error"
	case c.Ending == usage.AtEpilog:
		return "outlived the job, and was ended by the epilog"
	case c.End.IsZero():
		return "runs"
	case c.Exit == "":
		return "ended (status not known)"
	}
	var signal int
	if _, err := fmt.Sscanf(c.Exit, "signal %d", &signal); err == nil {
		if name := unix.SignalName(unix.Signal(signal)); name != "" {
			return fmt.Sprintf("ended by %s (%s)", c.Exit, name)
		}
		return "ended by " + c.Exit
	}
	return "ended with " + c.Exit
}

// Neighbours describes the neighbours of a client that ended badly, or "".
func Neighbours(c usage.Client, gpu string) string {
	switch {
	case !bad(c) || c.Unharmed <= 0:
		return ""
	case c.Unharmed == 1:
		return fmt.Sprintf("%s had work, and its neighbour lived on", gpu)
	}
	return fmt.Sprintf("%s had work, and its %d neighbours lived on", gpu, c.Unharmed)
}

// who names a client by its rank, step and program, as far as they are known.
func who(c usage.Client) string {
	name, details := fmt.Sprintf("pid %d", c.PID), []string{}
	if c.Rank >= 0 {
		name, details = fmt.Sprintf("rank %d", c.Rank), []string{name}
	}
	if c.Program != "" {
		details = slices.Insert(details, 0, c.Program)
	}
	name += ofStep(c.Step)
	if len(details) > 0 {
		name += " (" + strings.Join(details, ", ") + ")"
	}
	return name
}

func ofStep(step string) string {
	switch step {
	case "":
		return ""
	case "batch":
		return " of the batch script"
	}
	return " of step " + step
}

// Job is the report of a job.
type Job struct{ usage.Report }

// incident is something that went wrong in a job.
type incident struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

// incidents returns all incidents, the worst first: the daemon's end, fatal GPU errors, then bad ends in the order of
// time, then clients that outlived the job. Clients of one step and program that ended alike are one incident.
func (r Job) incidents() []incident {
	all := []incident{}
	if !r.DaemonGone.IsZero() {
		all = append(all, incident{r.DaemonGone, "The job's MPS daemon ended before the job, so its clients got CUDA error 806 and " +
			"no new one can start. Someone ended it, or the host's memory was used up: submit the job again."})
	}
	for _, f := range r.Faults {
		all = append(all, incident{f.At, fmt.Sprintf("%s had a fatal error, which ends all of its clients. The MPS server names %s.", r.GPUName(f.GPU), r.who(f))})
	}
	outlived := func(c usage.Client) bool { return c.Ending == usage.AtEpilog }
	clients := slices.DeleteFunc(r.eachOnce(), func(c usage.Client) bool {
		return !bad(c) && !outlived(c) || c.Ending == usage.Faulted && len(r.Faults) > 0
	})
	slices.SortStableFunc(clients, func(a, b usage.Client) int {
		if outlived(a) != outlived(b) {
			return map[bool]int{true: 1, false: -1}[outlived(a)]
		}
		return a.End.Compare(b.End)
	})
	kind := func(c usage.Client) string { return EndText(c) + "\n" + c.Step + "\n" + c.Program }
	alike := map[string][]usage.Client{}
	for _, c := range clients {
		alike[kind(c)] = append(alike[kind(c)], c)
	}
	for _, first := range clients {
		if same := alike[kind(first)]; same != nil {
			all = append(all, incident{first.End, r.ended(same)})
			delete(alike, kind(first))
		}
	}
	return all
}

// ended returns a sentence about clients that ended alike, in the order of their ends.
func (r Job) ended(alike []usage.Client) string {
	first := alike[0]
	if len(alike) > 1 {
		program := ""
		if first.Program != "" {
			program = " (" + first.Program + ")"
		}
		return fmt.Sprintf("%s%s%s %s, %s first.", words.Count(len(alike), "client"), ofStep(first.Step), program,
			strings.Replace(EndText(first), "was ended", "were ended", 1),
			who(usage.Client{PID: first.PID, Rank: first.Rank}))
	}
	text := who(first) + " " + EndText(first) + "."
	if lived := Neighbours(first, r.gpusOf(first)); lived != "" {
		text += " " + lived + "."
	} else if first.Ending == "" && r.End.IsZero() {
		text += " It harms no other rank: there is nothing to do."
	}
	return text
}

// GPUName returns the name of a GPU of the report, as in "GPU 3", or "GPU 3 of gpu02" in a report of several nodes.
func (r Job) GPUName(gpu int) string {
	if gpu < 0 || gpu >= len(r.GPUs) {
		return "Its GPU"
	}
	name := fmt.Sprintf("GPU %d", r.GPUs[gpu].Index)
	if node := r.nodeOf(gpu); node != "" {
		name += " of " + node
	}
	return name
}

// nodeOf returns the node of a GPU in a report of several nodes.
func (r Job) nodeOf(gpu int) string {
	if gpu < 0 || gpu >= len(r.GPUs) {
		return ""
	}
	return r.GPUs[gpu].Node
}

// gpusOf names the GPUs of a client, which has a row for each.
func (r Job) gpusOf(c usage.Client) string {
	var names []string
	for _, row := range r.Clients {
		if row.PID == c.PID && row.Begin.Equal(c.Begin) {
			names = append(names, r.GPUName(row.GPU))
		}
	}
	return strings.Join(names, " or ")
}

// eachOnce returns one row for each client. A client of several GPUs has several rows.
func (r Job) eachOnce() []usage.Client {
	type one struct {
		pid   int
		begin int64
	}
	seen := map[one]bool{}
	return slices.DeleteFunc(slices.Clone(r.Clients), func(c usage.Client) bool {
		client := one{c.PID, c.Begin.UnixNano()}
		twice := seen[client]
		seen[client] = true
		return twice
	})
}

// who names the client that a server names for a fatal error. In jobs on a simulated GPU it was not the one with the wrong
// address; what a real server names is not known.
func (r Job) who(f usage.Fault) string {
	const neighbour = "; it can be a neighbour of the one that failed (compute-sanitizer shows which)"
	if f.PID == 0 {
		return "no client"
	}
	for _, c := range r.Clients {
		if c.PID == f.PID && r.nodeOf(c.GPU) == r.nodeOf(f.GPU) {
			return who(c) + neighbour
		}
	}
	return fmt.Sprintf("pid %d", f.PID) + neighbour
}

// Verdict returns the result of a job in one sentence: how its clients ended, and how busy its GPUs were.
func (r Job) Verdict() string {
	switch {
	case r.ClientsSeen == 0 && r.NoMPS:
		return "The job ran without MPS, and no process was seen on its GPUs."
	case r.ClientsSeen == 0:
		return "No client of MPS was seen."
	}
	use, _ := r.advise()
	if use == "" {
		use = r.average()
	}
	text := r.endings()
	if use != "" {
		text += ", and " + use
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// endings returns how the clients ended, all together.
func (r Job) endings() string {
	unknown := r.ClientsSeen > len(r.Clients)
	for _, c := range r.Clients {
		unknown = unknown || c.Exit != usage.InOrder
	}
	switch {
	case r.NoMPS:
		return "the job ran without MPS"
	case r.BadEnds > 0 && len(r.Faults) > 0:
		return fmt.Sprintf("%d of %s ended badly, with %s", r.BadEnds, words.Count(r.ClientsSeen, "client"),
			words.Count(len(r.Faults), "fatal GPU error"))
	case r.BadEnds > 0:
		return fmt.Sprintf("%d of %s ended badly", r.BadEnds, words.Count(r.ClientsSeen, "client"))
	case len(r.Faults) > 0:
		return "the job had " + words.Count(len(r.Faults), "fatal GPU error")
	case r.End.IsZero():
		return "no client has ended badly"
	case unknown:
		return "no client is known to have ended badly"
	case r.ClientsSeen == 1:
		return "the client ended in order"
	}
	return fmt.Sprintf("all %d clients ended in order", r.ClientsSeen)
}

// average returns the mean of the best percentage that is known, or "".
func (r Job) average() string {
	mean := r.Mean()
	for _, f := range usage.All {
		if !f.Max && f.Of(mean) >= 0 {
			return fmt.Sprintf("%s was %s on average", f.Name, f.TextOf(mean))
		}
	}
	return ""
}

// GPUHours returns the time of the job on all of its GPUs, in hours. A part of a GPU counts as a part of the time, and
// 0 means not known. now counts for a job that runs.
func (r Job) GPUHours(now time.Time) float64 {
	if !r.End.IsZero() {
		now = r.End
	}
	return r.Part.Fraction() * float64(len(r.GPUs)) * max(now.Sub(r.Begin).Hours(), 0)
}

// Shares returns the shares that the clients had, as in "66 SMs" or "16 to 66 SMs", or "" if none is known.
func (r Job) Shares() string {
	var all []int
	for _, c := range r.Clients {
		if c.GPU < 0 || c.GPU >= len(r.GPUs) {
			continue
		}
		if sms := cmp.Or(c.SMs, r.GPUs[c.GPU].SMs); sms > 0 {
			all = append(all, sms)
		}
	}
	if len(all) == 0 {
		return ""
	}
	if least, most := slices.Min(all), slices.Max(all); least != most {
		return fmt.Sprintf("%d to %d SMs", least, most)
	}
	return fmt.Sprintf("%d SMs", all[0])
}

// Judged is a report with its judgements: the JSON of mpsctl report.
type Judged struct {
	usage.Report
	Verdict   string       `json:"verdict"`
	Advice    string       `json:"advice"` // "" if the figures justify none
	Packing   Packing      `json:"packing"`
	Incidents []incident   `json:"incidents"`
	GPUHours  float64      `json:"gpu_hours"`
	Mean      usage.Sample `json:"mean"` // of all GPUs; memory and clients are the maximum
}

// Judge returns the report with its judgements. now counts for a job that runs.
func (r Job) Judge(now time.Time) Judged {
	return Judged{r.Report, r.Verdict(), r.advice(), r.Packing(), r.incidents(), r.GPUHours(now), r.Mean()}
}

// PauseText returns a sentence about the pauses, or "" if there was none.
func PauseText(t usage.Totals) string {
	if t.Pauses == 0 {
		return ""
	}
	return fmt.Sprintf("The guard paused the ranks %s, %.1f s in all.", words.Count(t.Pauses, "time"),
		float64(t.PausedMillis)/1000)
}

// PartText returns sentences about the job's part and what the report has of it, or "" if the figures are those of
// whole GPUs.
func (r Job) PartText() string {
	if r.Whole() {
		return ""
	}
	text := fmt.Sprintf("The job had %s of each GPU", r.Part)
	if !r.Part.Shared() {
		text = "The job had whole GPUs"
	}
	if n := r.Others(); n > 0 {
		text += fmt.Sprintf(", beside at most %s", words.Count(n, "other job"))
	}
	if r.Part.Fraction() == 0 {
		return text + ". GPU hours and energy are not known, because no client is known to have shards."
	}
	return text + ". GPU hours and energy are by part. SM active, SM util and DRAM are left out, " +
		"because they are those of the whole GPU."
}
