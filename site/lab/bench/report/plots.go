// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/lab/bench/record"
)

// colours of the rules: told apart by people who do not see red from green, and on paper by the marks beside them.
var colours = map[string]string{"time-slicing": "#888888", "uncapped": "#222222", "integer 100/n": "#e69f00", "even": "#56b4e9",
	"overlap 1.5": "#0072b2", "overlap 2": "#d55e00", "overlap 3": "#009e73"}

const (
	width, height            = 640, 320
	left, right, top, bottom = 60, 130, 34, 40
)

// frame is a plot's scales: both begin at 0.
type frame struct {
	b            strings.Builder
	xs           []float64 // the marks of the x axis, one beside the other at even distances where steps is set
	steps        bool
	mostX, mostY float64
}

func (f *frame) x(v float64) float64 {
	inner := float64(width - left - right)
	if !f.steps {
		return left + inner*v/f.mostX
	}
	for i, mark := range f.xs {
		if mark == v {
			return left + inner*(float64(i)+0.5)/float64(len(f.xs))
		}
	}
	return left
}

func (f *frame) y(v float64) float64 { return top + float64(height-top-bottom)*(1-v/f.mostY) }

// begin draws title, axes and grid.
func (f *frame) begin(title, xName string) {
	fmt.Fprintf(&f.b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&f.b, `<rect width="%d" height="%d" fill="white"/><text x="%d" y="18" font-size="13">%s</text>`+"\n", width, height, left, title)
	step := niceStep(f.mostY)
	for v := 0.0; v <= f.mostY; v += step {
		fmt.Fprintf(&f.b, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", left, f.y(v), width-right, left-6, f.y(v)+4, strconv.FormatFloat(v, 'f', -1, 64))
	}
	for _, v := range f.xs {
		fmt.Fprintf(&f.b, `<text x="%.1f" y="%d" text-anchor="middle">%g</text>`+"\n", f.x(v), height-bottom+16, v)
	}
	fmt.Fprintf(&f.b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (left+width-right)/2, height-8, xName)
}

// niceStep parts an axis into four to eight.
func niceStep(most float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if most/(m*power) <= 8 {
			return m * power
		}
	}
	return most
}

// line draws one and its name beside the plot, in the row of its number.
func (f *frame) line(row int, name, colour string, xs, ys []float64) {
	var path strings.Builder
	for i := range xs {
		fmt.Fprintf(&path, "%c%.1f %.1f", map[bool]rune{true: 'M', false: 'L'}[i == 0], f.x(xs[i]), f.y(ys[i]))
		if f.steps {
			fmt.Fprintf(&f.b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`, f.x(xs[i]), f.y(ys[i]), colour)
		}
	}
	fmt.Fprintf(&f.b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.5"/>`+"\n", path.String(), colour)
	y := top + 10 + 18*row
	fmt.Fprintf(&f.b, `<path d="M%d %dh16" stroke="%s" stroke-width="2"/><text x="%d" y="%d">%s</text>`+"\n", width-right+8, y, colour, width-right+28, y+4, name)
}

func (f *frame) end() []byte { return []byte(f.b.String() + "</svg>\n") }

// plots are all of them, by path.
func (d data) plots() map[string][]byte {
	all := map[string][]byte{"plots/sweep.svg": d.sweepPlot()}
	for _, p := range programs {
		if len(d.ranksOf(p.name)) > 1 {
			all["plots/"+p.name+".svg"] = d.programPlot(p)
		}
	}
	return all
}

// programPlot shows the total under each rule in multiples of what one rank alone does.
func (d data) programPlot(p program) []byte {
	alone, _, _ := d.at(p.name, 1, "uncapped")
	one := record.Median(alone.total)
	f := frame{steps: true}
	for _, n := range d.ranksOf(p.name) {
		f.xs = append(f.xs, float64(n))
		_, most := d.best(p.name, n)
		f.mostY = max(f.mostY, 1.05*most/one)
	}
	f.begin(p.title+": total, in multiples of one rank alone", "ranks on the GPU")
	for row, rule := range rules {
		var xs, ys []float64
		for _, n := range d.ranksOf(p.name) {
			if c, _, ok := d.at(p.name, n, rule); ok {
				xs, ys = append(xs, float64(n)), append(ys, record.Median(c.total)/one)
			}
		}
		f.line(row, rule, colours[rule], xs, ys)
	}
	return f.end()
}

// sweepPlot shows what came of each percentage.
func (d data) sweepPlot() []byte {
	f := frame{mostX: 100, mostY: 140, xs: []float64{0, 20, 40, 60, 80, 100}}
	f.begin("SMs that CUDA reports of a percentage, and the memory of the context", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
	var xs, sms, memory []float64
	for _, p := range d.sweep {
		if percent, ok := strings.CutSuffix(p.Asked, "%"); ok {
			x, _ := strconv.ParseFloat(percent, 64) // "37", as the runner writes it
			xs, sms, memory = append(xs, x), append(sms, float64(p.SMs)), append(memory, float64(p.ContextMiB)/5)
		}
	}
	f.line(0, "SMs", colours["overlap 1.5"], xs, sms)
	f.line(1, "context, 5 MiB", colours["overlap 2"], xs, memory)
	return f.end()
}
