// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/lab/bench/record"
)

// classes are the rules' colours in style. People who cannot distinguish red and green can distinguish them, and each
// line has its name beside it.
var classes = map[string]string{"time-slicing": "grey", "uncapped": "ink", "integer 100/n": "orange", "even": "sky",
	"overlap 1.5": "blue", "overlap 2": "red", "overlap 3": "green"}

const style = `<style>
.page { fill: #fff } text { fill: #1b1f24 } .weak { fill: #57606a } .grid { stroke: #d8dee4; fill: none } path.line { fill: none; stroke-width: 1.5 }
.grey { stroke: #767676; fill: #767676 } .ink { stroke: #1b1f24; fill: #1b1f24 } .orange { stroke: #c98a00; fill: #c98a00 } .sky { stroke: #3ba3e0; fill: #3ba3e0 }
.blue { stroke: #0063a0; fill: #0063a0 } .red { stroke: #d55e00; fill: #d55e00 } .green { stroke: #009e73; fill: #009e73 } circle.dot, rect.dot { stroke: none }
path.lead { fill: none; stroke-width: .7; stroke-dasharray: 2 2 }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } text { fill: #e6edf3 } .weak { fill: #9aa4af } .grid { stroke: #30363d }
.grey { stroke: #a0a0a0; fill: #a0a0a0 } .ink { stroke: #e6edf3; fill: #e6edf3 } .orange { stroke: #e69f00; fill: #e69f00 } .sky { stroke: #7cc8f5; fill: #7cc8f5 }
.blue { stroke: #4f9be0; fill: #4f9be0 } .red { stroke: #ff8a3d; fill: #ff8a3d } .green { stroke: #2fc79b; fill: #2fc79b }
}
</style>
`

const (
	width, height            = 640, 340
	left, right, top, bottom = 60, 120, 54, 40
	rowHeight                = 15 // height of a name beside the plot
)

// picture is an SVG with a title and a line of text below it.
type picture struct{ strings.Builder }

func begin(title, below string) *picture { return beginOf(height, title, below) }

// beginOf begins a picture of another height.
func beginOf(height int, title, below string) *picture {
	p := &picture{}
	p.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="t" font-family="sans-serif" font-size="11">`,
		width, height)
	p.WriteString(style)
	p.add(`<rect class="page" width="%d" height="%d"/><text id="t" x="12" y="20" font-size="14" font-weight="600">%s</text>`, width, height, title)
	p.add(`<text class="weak" x="12" y="37">%s</text>`, below)
	return p
}

func (p *picture) add(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *picture) end() []byte { return []byte(p.String() + "</svg>\n") }

// frame is the scales of a plot. Both begin at 0.
type frame struct {
	*picture
	top, bottom float64
	xs          []float64 // the marks of the x axis, at equal distances if steps is set
	steps       bool
	maxX, maxY  float64
}

func (f *frame) x(v float64) float64 {
	const inner = float64(width - left - right)
	if !f.steps {
		return left + inner*v/f.maxX
	}
	return left + inner*(float64(slices.Index(f.xs, v))+0.5)/float64(len(f.xs))
}

func (f *frame) y(v float64) float64 { return f.bottom - (f.bottom-f.top)*v/f.maxY }

// axes draws the grid. The labels have as many decimals as the steps need.
func (f *frame) axes() {
	step := niceStep(f.maxY)
	decimals := max(0, int(math.Ceil(-math.Log10(step))))
	for i := 0; float64(i)*step <= f.maxY; i++ {
		v := float64(i) * step
		f.add(`<path class="grid" d="M%d %.1fH%d"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`, left, f.y(v), width-right, left-6, f.y(v)+4,
			strconv.FormatFloat(v, 'f', decimals, 64))
	}
}

func (f *frame) xAxis(name string) {
	for _, v := range f.xs {
		f.add(`<text x="%.1f" y="%.1f" text-anchor="middle">%g</text>`, f.x(v), f.bottom+16, v)
	}
	f.add(`<text x="%d" y="%.1f" text-anchor="middle">%s</text>`, (left+width-right)/2, f.bottom+32, name)
}

// niceStep returns a step that divides an axis into four to eight parts.
func niceStep(length float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(length/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if length/(m*power) <= 8 {
			return m * power
		}
	}
	return length
}

// series is a rule's line in a plot. At each number of ranks it has the median, the minimum and the maximum of the
// windows.
type series struct {
	name, class       string
	xs, ys, low, high []float64
}

// draw draws a series. Each series is shifted a little, so that equal series do not hide each other.
func (f *frame) draw(row, rows int, s series) {
	var path strings.Builder
	beside := 3.4 * (float64(row) - float64(rows-1)/2)
	for i := range s.xs {
		x := f.x(s.xs[i]) + beside
		fmt.Fprintf(&path, "%c%.1f %.1f", map[bool]rune{true: 'M', false: 'L'}[i == 0], x, f.y(s.ys[i]))
		f.add(`<path class="line %s" d="M%.1f %.1fV%.1f"/><circle class="dot %s" cx="%.1f" cy="%.1f" r="2"/>`, s.class, x, f.y(s.low[i]), f.y(s.high[i]),
			s.class, x, f.y(s.ys[i]))
	}
	f.add(`<path class="line %s" stroke-opacity=".6" d="%s"/>`, s.class, path.String())
}

// names writes the name of each series beside its last point, if there is enough space.
func (f *frame) names(all []series) {
	byEnd := slices.Clone(all)
	last := func(s series) float64 { return f.y(s.ys[len(s.ys)-1]) }
	slices.SortStableFunc(byEnd, func(a, b series) int { return int(math.Copysign(1, last(a)-last(b))) })
	y := f.top
	for i, s := range byEnd {
		y = max(y, min(last(s), f.bottom-float64(rowHeight*(len(byEnd)-1-i))))
		x := f.x(s.xs[len(s.xs)-1]) + 14
		f.add(`<path class="lead %s" d="M%.1f %.1fL%d %.1f"/><path class="line %s" d="M%d %.1fh10"/><text x="%d" y="%.1f">%s</text>`, s.class, x, last(s),
			width-right+4, y, s.class, width-right+4, y, width-right+18, y+4, s.name)
		y += rowHeight
	}
}

// plots returns all plots, by path.
func (d data) plots() map[string][]byte {
	all := map[string][]byte{
		"plots/sweep.svg": d.sweepPlot(), "plots/ends.svg": d.endsPlot(), "plots/front.svg": d.frontPlot(),
	}
	for _, p := range programs {
		if len(d.ranksOf(p.name)) > 1 {
			all["plots/"+p.name+".svg"] = d.programPlot(p, p.title, allRules())
		}
	}
	return all
}

// line is a rule with its name and colour in a picture.
type line struct{ rule, name, class string }

// front is what the README's picture compares: the modes of site/lab/codes, in words of somebody who knows none.
var front = []line{{"ours", "slurm-mps", "blue"}, {"bare", "MPS, 100/n %", "orange"}, {"slices", "without MPS", "grey"}}

const frontInput = "rhodo-32k"

// frontPlot shows a code that people know.
func (d data) frontPlot() []byte {
	f := frame{steps: true, top: top, bottom: height - bottom}
	for _, n := range slices.Sorted(maps.Keys(d.lammps[front[0].rule])) {
		f.xs = append(f.xs, float64(n))
	}
	var all []series
	turns := 0
	for _, l := range front {
		s := series{name: l.name, class: l.class, xs: f.xs}
		for _, n := range f.xs {
			rates := d.lammps[l.rule][int(n)]
			s.ys = append(s.ys, record.Median(rates))
			s.low, s.high = append(s.low, slices.Min(rates)), append(s.high, slices.Max(rates))
			f.maxY, turns = max(f.maxY, 1.03*slices.Max(rates)), len(rates)
		}
		all = append(all, s)
	}
	f.picture = begin("LAMMPS, rhodopsin, 32,000 atoms, on one H100",
		fmt.Sprintf("Steps a second: median of %d turns, and a line from the least to the most", turns))
	f.axes()
	f.xAxis("ranks on the GPU (not to scale)")
	for row, s := range all {
		f.draw(row, len(all), s)
	}
	f.names(all)
	return f.end()
}

func allRules() (all []line) {
	for _, rule := range rules {
		all = append(all, line{rule, rule, classes[rule]})
	}
	return all
}

// programPlot shows the total under some rules, in multiples of the total of one rank alone.
func (d data) programPlot(p program, title string, lines []line) []byte {
	alone, _, _ := d.at(p.name, 1, "uncapped")
	one := record.Median(alone.total)
	f := frame{steps: true, top: top, bottom: height - bottom}
	for _, n := range d.ranksOf(p.name) {
		f.xs = append(f.xs, float64(n))
	}
	var all []series
	fewest, most := math.MaxInt, 0
	for _, l := range lines {
		s := series{name: l.name, class: l.class}
		for _, n := range d.ranksOf(p.name) {
			c, _, ok := d.at(p.name, n, l.rule)
			if !ok {
				continue
			}
			fewest, most = min(fewest, len(c.total)), max(most, len(c.total))
			s.xs, s.ys = append(s.xs, float64(n)), append(s.ys, record.Median(c.total)/one)
			s.low, s.high = append(s.low, slices.Min(c.total)/one), append(s.high, slices.Max(c.total)/one)
			f.maxY = max(f.maxY, 1.03*slices.Max(c.total)/one)
		}
		all = append(all, s)
	}
	windows := strconv.Itoa(fewest)
	if most > fewest {
		windows += " to " + strconv.Itoa(most)
	}
	f.picture = begin(title, fmt.Sprintf("Total, in multiples of one rank alone: median of %s windows, and a line from the least to the most", windows))
	f.axes()
	f.xAxis("ranks on the GPU (not to scale)")
	for row, s := range all {
		f.draw(row, len(all), s)
	}
	f.names(all)
	return f.end()
}

// sweepPlot shows the result of each percentage: SMs above, memory below, because their units differ.
func (d data) sweepPlot() []byte {
	var xs, sms, memory []float64
	for _, p := range d.sweep {
		if percent, ok := strings.CutSuffix(p.Asked, "%"); ok {
			x, _ := strconv.ParseFloat(percent, 64) // "37", in the format of the measuring program
			xs, sms, memory = append(xs, x), append(sms, float64(p.SMs)), append(memory, float64(p.ContextMiB))
		}
	}
	pic := begin("What a percentage of an H200 gives", "One client at a time, one measurement for each percentage")
	marks := []float64{0, 20, 40, 60, 80, 100}
	upper := frame{picture: pic, maxX: 100, maxY: 140, xs: marks, top: top, bottom: 166}
	upper.axes()
	upper.stairs("blue", "SMs that", "CUDA reports", xs, sms)
	lower := frame{picture: pic, maxX: 100, maxY: 620, xs: marks, top: 190, bottom: height - bottom}
	lower.axes()
	lower.stairs("red", "memory of the", "context, MiB", xs, memory)
	lower.xAxis("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
	return pic.end()
}

// stairs draws values that stay constant until the next value.
func (f *frame) stairs(class, name, more string, xs, ys []float64) {
	var path strings.Builder
	for i := range xs {
		if i == 0 {
			fmt.Fprintf(&path, "M%.1f %.1f", f.x(xs[0]), f.y(ys[0]))
			continue
		}
		fmt.Fprintf(&path, "H%.1fV%.1f", f.x(xs[i]), f.y(ys[i]))
	}
	f.add(`<path class="line %s" d="%s"/><text x="%d" y="%.1f">%s</text><text x="%d" y="%.1f">%s</text>`, class, path.String(),
		width-right+8, f.y(ys[len(ys)-1])+4, name, width-right+8, f.y(ys[len(ys)-1])+18, more)
}
