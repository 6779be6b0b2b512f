// SPDX-License-Identifier: Apache-2.0

// This file draws the figures of the page: the use of a GPU over time, and a lane for each of its clients.

package page

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/slurm-mps/slurm-mps/site/usage"
)

// px is a length in a figure. It is printed with one decimal at most.
type px float64

func (p px) String() string { return strconv.FormatFloat(math.Round(float64(p)*10)/10, 'f', -1, 64) }

// The columns of a figure: names, the time, and values.
const (
	figureWidth px = 800
	timeLeft    px = 146
	timeRight   px = 576
	valuesLeft  px = 592
)

// timeAxis maps times to a figure.
type timeAxis struct{ begin, end time.Time }

// axisOf returns the axis from the job's begin to its end, or to the last time in the report.
func axisOf(r usage.Report) timeAxis {
	times := []time.Time{r.Begin, r.End}
	for _, g := range r.GPUs {
		for _, s := range g.Samples {
			times = append(times, s.At)
		}
	}
	for _, c := range r.Clients {
		times = append(times, c.Begin, c.End)
	}
	for _, f := range r.Faults {
		times = append(times, f.At)
	}
	times = slices.DeleteFunc(times, time.Time.IsZero)
	if len(times) == 0 {
		return timeAxis{}
	}
	a := timeAxis{slices.MinFunc(times, time.Time.Compare), slices.MaxFunc(times, time.Time.Compare)}
	if !r.Begin.IsZero() {
		a.begin = r.Begin
	}
	return a
}

// lasts returns the length of the axis. The length is never zero, because x divides by it.
func (a timeAxis) lasts() time.Duration { return max(a.end.Sub(a.begin), time.Second) }

func (a timeAxis) x(t time.Time) px {
	part := float64(t.Sub(a.begin)) / float64(a.lasts())
	return timeLeft + (timeRight-timeLeft)*px(min(max(part, 0), 1))
}

// clock returns a time as text, in the time zone of the first time in the report.
func (a timeAxis) clock(t time.Time) string {
	if t.IsZero() {
		return notKnown
	}
	return t.In(a.begin.Location()).Format("2006-01-02 15:04:05 MST")
}

// axisTick is a mark of the time axis, with the time since the begin.
type axisTick struct {
	X    px
	Text string
}

// tickSteps are the possible distances between two ticks.
var tickSteps = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second,
	30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute,
	15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour,
}

const maxTicks = 6

func (a timeAxis) ticks() (all []axisTick) {
	step := 24 * time.Hour
	if i := slices.IndexFunc(tickSteps, func(s time.Duration) bool { return a.lasts()/s <= maxTicks }); i >= 0 {
		step = tickSteps[i]
	}
	for step > 0 && a.lasts()/step > maxTicks {
		step *= 2
	}
	for passed := time.Duration(0); passed <= a.lasts(); passed += step {
		all = append(all, axisTick{a.x(a.begin.Add(passed)), lasting(passed)})
	}
	return all
}

// measure is one quantity over all samples of a GPU.
type measure struct {
	known     bool
	mean, max float64 // the mean is that of mpsctl report; of the memory, it is the maximum
}

func measureOf(begin time.Time, g usage.GPU, quantity usage.Figure) (m measure) {
	m.mean = quantity.Of(g.Mean(begin))
	m.known = m.mean >= 0 && len(g.Samples) > 0
	for _, s := range g.Samples {
		m.max = max(m.max, quantity.Of(s))
	}
	return m
}

// plotFigure is the use of a GPU over time. Each known quantity has a strip.
type plotFigure struct {
	Strips []strip
	Absent string // the quantities that are not known
	Faults []px
	timeFrame
}

// timeFrame is the common part of all figures over time.
type timeFrame struct {
	Width, Height px
	Left, Right   px
	Values        px
	Top, Bottom   px // of the grid
	Ticks         []axisTick
}

func frameOf(axis timeAxis, top, bottom px) timeFrame {
	return timeFrame{Width: figureWidth, Height: bottom + 22, Left: timeLeft, Right: timeRight, Values: valuesLeft,
		Top: top, Bottom: bottom, Ticks: axis.ticks()}
}

// strip is one quantity over time.
type strip struct {
	Name, Scale  string
	First, Other string // its values as text
	Path         string
	Top, Base    px
	Summary      string
}

const (
	stripTop    px = 18
	stripHeight px = 46
	stripGap    px = 14
)

func plotOf(begin time.Time, g usage.GPU, faults []usage.Fault, axis timeAxis) (f plotFigure) {
	memory := measureOf(begin, g, usage.MemoryUsed)
	full := max(float64(g.MemoryMiB), memory.max, 1)
	var absent []string
	for _, q := range append(slices.Clone(usage.Percentages), usage.MemoryUsed) {
		scale, whole, format := "0 to 100 %", 100.0, usage.Percent
		if q.Key == usage.MemoryUsed.Key {
			scale, whole, format = "0 to "+ofMemory(int(full), 0), full, gib
		}
		m := measureOf(begin, g, q)
		if !m.known {
			absent = append(absent, q.Name)
			continue
		}
		s := strip{Name: q.Name, Scale: scale, First: "mean " + format(m.mean), Other: "max " + format(m.max)}
		if q.Key == usage.MemoryUsed.Key {
			s.First, s.Other = s.Other, ""
		}
		s.Top = stripTop + px(len(f.Strips))*(stripHeight+stripGap)
		s.Base = s.Top + stripHeight
		s.Summary = fmt.Sprintf("%s: %s%s.", s.Name, s.First, behind(", ", s.Other))
		s.Path = stepsOf(begin, g.Samples, axis, func(at usage.Sample) (y px, ok bool) {
			part := q.Of(at) / whole
			return s.Base - stripHeight*px(min(part, 1)), part >= 0
		}, s.Base)
		f.Strips = append(f.Strips, s)
	}
	f.Absent = strings.Join(absent, ", ")
	for _, fault := range faults {
		f.Faults = append(f.Faults, axis.x(fault.At))
	}
	f.timeFrame = frameOf(axis, stripTop, stripTop+px(len(f.Strips))*(stripHeight+stripGap)-stripGap)
	return f
}

func gib(mib float64) string { return fmt.Sprintf("%.1f GiB", mib/1024) }

// stepsOf returns the path of the area below the samples. A sample is for the whole time since the previous sample,
// so it is a step and not a point. A sample without a value is a gap.
func stepsOf(begin time.Time, samples []usage.Sample, axis timeAxis, y func(usage.Sample) (px, bool), base px) string {
	var path strings.Builder
	last, open, previous := "", false, begin
	for _, s := range samples {
		top, ok := y(s)
		if !ok {
			if open {
				fmt.Fprintf(&path, "V%vZ", base)
			}
			last, open, previous = "", false, s.At
			continue
		}
		if previous.IsZero() {
			previous = s.At
		}
		if !open {
			fmt.Fprintf(&path, "M%v %v", axis.x(previous), base)
		}
		if text := top.String(); text != last {
			path.WriteString("V" + text)
			last = text
		}
		fmt.Fprintf(&path, "H%v", axis.x(s.At))
		open, previous = true, s.At
	}
	if open {
		fmt.Fprintf(&path, "V%vZ", base)
	}
	return path.String()
}

// laneFigure is a figure of some clients of a GPU. Each client has a lane.
type laneFigure struct {
	Lanes  []lane
	Faults []px
	timeFrame
}

// lane is a client's time on its GPU.
type lane struct {
	Name, SMs, Peak, Word string
	Program               string // inside of the bar, "" if the bar is too short
	Text                  string // all of it, for a reader that points at it
	Lived                 string // how many neighbours survived its end, as text
	Y, ProgramX           px     // of its middle, and of the program's begin
	Bar                   string // the path of its bar
	Mark                  string // the path of its end
	Class                 string // of its end
}

// lanesAFigure limits a figure to a page of paper, because a browser cuts a longer figure at any place.
const lanesAFigure = 32

const (
	laneTop    px = 22
	laneHeight px = 22
	barHalf    px = 6
)

func laneFigures(r usage.Report, g usage.GPU, clients []usage.Client, faults []usage.Fault, axis timeAxis) (all []laneFigure) {
	for some := range slices.Chunk(clients, lanesAFigure) {
		var f laneFigure
		y := laneTop
		for _, c := range some {
			l := laneOf(c, g, r.End.IsZero(), y+laneHeight/2, axis)
			f.Lanes = append(f.Lanes, l)
			y += laneHeight
			if l.Lived != "" {
				y += laneHeight - 6
			}
		}
		for _, fault := range faults {
			f.Faults = append(f.Faults, axis.x(fault.At))
		}
		f.timeFrame = frameOf(axis, laneTop, y)
		all = append(all, f)
	}
	return all
}

func laneOf(c usage.Client, g usage.GPU, running bool, y px, axis timeAxis) lane {
	begin, end := timeLeft, timeRight
	if !c.Begin.IsZero() {
		begin = axis.x(c.Begin)
	}
	if !c.End.IsZero() {
		end = axis.x(c.End)
	}
	end = max(end, begin)
	word, shape := laneEndOf(c, running)
	l := lane{Name: laneName(c), SMs: "all SMs", Peak: "–", Word: word, Lived: capital(c.Neighbours("the GPU")), Y: y}
	l.Text = fmt.Sprintf("%s, pid %d, %s", cmp.Or(shown(c.Program, 24), "program not known"), c.PID,
		shown(c.EndText(), 60))
	if program := shown(c.Program, 24); end-begin > 8*px(utf8.RuneCountInString(program))+12 {
		l.Program, l.ProgramX = program, begin+5
	}
	l.Bar = fmt.Sprintf("M%v %vh%vv%vh-%vz", begin, y-barHalf, max(end-begin, 1), 2*barHalf, max(end-begin, 1))
	l.Mark, l.Class = shape.at(end, y), shape.class
	if c.SMs > 0 {
		l.SMs = fmt.Sprintf("%d SMs", c.SMs)
	}
	if c.PeakMiB > 0 {
		l.Peak = gib(float64(c.PeakMiB))
	}
	return l
}

// laneName returns a client's rank and step, cut to the width of the column.
func laneName(c usage.Client) string {
	if c.Rank < 0 {
		return fmt.Sprintf("PID %d", c.PID)
	}
	name := fmt.Sprintf("rank %d", c.Rank)
	if c.Step != "" {
		name = shown("step "+c.Step, 10) + " " + name
	}
	return name
}

// mark is the shape of a client's end. The shapes differ, because some readers cannot distinguish the colours.
type mark struct {
	class, shape string // the shape is a path around its middle
}

var (
	markEnded   = mark{"end", "m-1-8h2v16h-2z"}
	markBad     = mark{"bad", "m0-8l8 8-8 8-8-8z"}
	markFault   = mark{"fault", "m-7-5l2-2 5 5 5-5 2 2-5 5 5 5-2 2-5-5-5 5-2-2 5-5z"}
	markEpilog  = mark{"epilog", "m-6-6h12v12h-12z"}
	markRuns    = mark{"end", "m0-8l9 8-9 8z"}
	markUnknown = mark{"unknown", "m-5 0a5 5 0 0 1 10 0a5 5 0 0 1-10 0z"}
)

func (m mark) at(x, y px) string { return fmt.Sprintf("M%v %v%s", x, y, m.shape) }
