// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"
	"slices"
	"strings"
)

// Figure is a quantity of a sample. All outputs follow the table below: mpsctl status and report, the epilog's
// summary, JSON and docs/reference.md. A figure that is not known is -1.
type Figure struct {
	Key   string // in JSON and in the summary; the tag of the field in Sample
	Name  string // for people
	Max   bool   // over several samples, it is the maximum, not the mean over their time
	Means string
	field func(*Sample) *float64
	text  func(float64) string      // of a known value
	full  func(Report, GPU) float64 // the value of a full GPU, nil if values are shown without it
}

// All are the figures in the order in which they are shown.
var All = []Figure{
	{"sm_active", "SM active", false, "the part of the SMs that had work, on average (Hopper and newer)",
		func(s *Sample) *float64 { return &s.SMActive }, Percent, nil},
	{"sm_util", "SM util", false, "the part of the time in which a kernel was on the GPU",
		func(s *Sample) *float64 { return &s.SMUtil }, Percent, nil},
	{"dram", "DRAM", false, "the part of the memory's bandwidth in use (Hopper and newer)",
		func(s *Sample) *float64 { return &s.DRAM }, Percent, nil},
	{"used_mib", "memory used", true, "the maximum memory in use on the GPU, of all its processes",
		func(s *Sample) *float64 { return &s.UsedMiB }, gib, Report.memoryMiB},
}

func gib(mib float64) string { return fmt.Sprintf("%d GiB", (int(mib)+512)>>10) }

// Of returns the figure of a sample, or Unknown.
func (f Figure) Of(s Sample) float64 { return *f.field(&s) }

// TextOf returns the figure of a sample as text, "-" if it is not known.
func (f Figure) TextOf(s Sample) string {
	if f.Of(s) < 0 {
		return "-"
	}
	return f.text(f.Of(s))
}

// SummaryKey is the figure's key in a line about a whole job.
func (f Figure) SummaryKey() string {
	if f.Max {
		return "max_" + f.Key
	}
	return f.Key
}

// Figures are the figures of a report. Of a part of a GPU, the memory is that of the job's own clients.
func (r Report) Figures() []Figure {
	all := slices.Clone(All)
	for i := range all {
		if all[i].Key == "used_mib" && !r.Whole() {
			all[i].Means = "the maximum memory in use on the GPU, of the job's own clients"
		}
	}
	return all
}

// Text returns a figure of a GPU as text, "-" if it is not known. Memory is shown with the job's part of the GPU's.
func (r Report) Text(f Figure, g GPU, s Sample) string {
	text := f.TextOf(s)
	if f.full != nil && text != "-" {
		text = strings.Fields(text)[0] + " of " + f.text(f.full(r, g))
	}
	return text
}

// Percent returns a percentage as text, "-" if it is not known.
func Percent(percent float64) string {
	if percent < 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", percent)
}

// Energy returns an amount of joules as text, "-" if it is not known.
func Energy(joules int) string {
	switch wh := float64(joules) / 3600; {
	case joules <= 0:
		return "-"
	case wh < 10:
		return fmt.Sprintf("%.1f Wh", wh)
	case wh < 1000:
		return fmt.Sprintf("%.0f Wh", wh)
	default:
		return fmt.Sprintf("%.1f kWh", wh/1000)
	}
}
