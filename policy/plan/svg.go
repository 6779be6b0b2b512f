// SPDX-License-Identifier: Apache-2.0

// This file draws the GPUs of a plan as a picture. A column is an SM. A rank is a bar over as many SMs as it gets, and
// ranks that share SMs are bars below each other.

package plan

import (
	_ "embed" // the template
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/slurm-mps/slurm-mps/policy"
)

// px is a length in a picture. It is printed with one decimal at most.
type px float64

func (p px) String() string { return strconv.FormatFloat(math.Round(float64(p)*10)/10, 'f', -1, 64) }

//go:embed svg.tmpl
var source string

// WriteSVG writes the picture of the plan.
func (p Plan) WriteSVG(w io.Writer) error {
	picture, err := template.New("plan").Parse(source)
	if err != nil {
		return err
	}
	return picture.Execute(w, p.picture())
}

// svg is the input of the template. Lengths are in units of the picture.
type svg struct {
	Title, Asked  string
	Width, Height px
	Left, Right   px
	CaptionY      px
	Cell, TPC     px   // the widths of an SM and of a TPC
	Drawn         bool // whether the width is enough for a line at each SM
	GPUs          []gpuPicture
}

// gpuPicture is a GPU: its SMs in a row, then its ranks.
type gpuPicture struct {
	Top, Cells, Text px
	Total            string
	Owned            []ownedRun
	Ceiling          *ceilingPicture
	Bars             []rankBar
}

// ownedRun is a run of adjacent SMs with the same number of ranks.
type ownedRun struct {
	X, Width, Middle px
	Label, Class     string
}

type ceilingPicture struct {
	X, Y  px
	Label string
}

// rankBar is the bar of a rank, or of a part of a rank whose other part begins at the first SM.
type rankBar struct {
	X, Y, Width, Middle px
	Class, Label        string
}

const (
	svgWidth   px = 840
	svgLeft    px = 20
	svgRight   px = 820
	svgTop     px = 76 // of the first GPU
	cellHeight px = 24
	barHeight  px = 18
	letter     px = 7 // about the width of a letter
	colours       = 5
)

func (p Plan) picture() svg {
	sms, unit := p.Asked.Model.GPU.SMs, p.Asked.Model.GPU.SMsPerTPC
	cell := (svgRight - svgLeft) / px(sms)
	pic := svg{Title: fmt.Sprintf("%d %s on %d × %s", len(p.Ranks), noun(len(p.Ranks), "rank"), p.Asked.GPUs, p.Asked.Model.Name),
		Asked: p.Asked.Rules(),
		Width: svgWidth, Left: svgLeft, Right: svgRight, Cell: cell, TPC: cell * px(unit), Drawn: cell >= 2}
	y := svgTop
	for gpu := range p.Asked.GPUs {
		one, bottom := p.drawGPU(gpu, y, cell)
		pic.GPUs = append(pic.GPUs, one)
		y = bottom + 28
	}
	pic.CaptionY, pic.Height = y, y+30
	return pic
}

func (p Plan) drawGPU(gpu int, top, cell px) (pic gpuPicture, bottom px) {
	pic = gpuPicture{Top: top, Cells: top + 10, Text: top + 10 + cellHeight/2 + 4, Total: p.Total(gpu)}
	pieces := piecesOf(p.ranksOn(gpu), p.Asked.Model.GPU.SMs)
	pic.Owned = ownedRuns(pieces, p.Asked.Model.GPU.SMs, cell)
	y := pic.Cells + cellHeight + 6
	if p.Asked.Ceiling < policy.PercentFrom(100) {
		sms := p.Asked.Model.GPU.SMsAt(p.Asked.Ceiling)
		pic.Ceiling = &ceilingPicture{svgLeft + px(sms)*cell, y + 10, fmt.Sprintf("ceiling %s %%: %d SMs for a rank", p.Asked.Ceiling, sms)}
		y += 24
	}
	for _, piece := range pieces {
		bar := rankBar{X: svgLeft + px(piece.from)*cell, Y: y + px(piece.layer)*(barHeight+3), Width: px(piece.sms) * cell}
		bar.Middle, bar.Class = bar.X+bar.Width/2, fmt.Sprintf("c%d", piece.nth%colours)
		bar.Label = piece.label(bar.Width)
		pic.Bars = append(pic.Bars, bar)
		bottom = max(bottom, bar.Y+barHeight)
	}
	return pic, max(bottom, y)
}

func (p Plan) ranksOn(gpu int) []Rank {
	return slices.DeleteFunc(slices.Clone(p.Ranks), func(r Rank) bool { return r.GPU != gpu })
}

// rankPiece is a run of adjacent SMs in a layer that a rank gets.
type rankPiece struct {
	from, sms, layer, nth int
	names                 []string // from the longest to the shortest
	owners                int      // the number of ranks that get this piece
}

// label returns the longest name that fits into a bar, or "".
func (p rankPiece) label(width px) string {
	for _, name := range p.names {
		if px(len(name))*letter <= width {
			return name
		}
	}
	return ""
}

// piecesOf places the ranks one after the other. A rank that reaches the last SM continues at the first SM of the
// next layer. Ranks that get the whole GPU are one piece.
func piecesOf(ranks []Rank, sms int) (pieces []rankPiece) {
	whole := slices.DeleteFunc(slices.Clone(ranks), func(r Rank) bool { return r.SMs < sms })
	layer := 0
	if n := len(whole); n > 0 {
		name := fmt.Sprintf("%d ranks: the whole GPU, %d SMs each", n, sms)
		if n == 1 {
			name = fmt.Sprintf("rank %d: the whole GPU, %d SMs", whole[0].Rank, sms)
		}
		pieces = append(pieces, rankPiece{sms: sms, nth: 0, names: []string{name}, owners: n})
		layer++
	}
	place := layer * sms
	for nth, r := range slices.DeleteFunc(slices.Clone(ranks), func(r Rank) bool { return r.SMs >= sms }) {
		names := []string{fmt.Sprintf("rank %d: %d SMs", r.Rank, r.SMs), fmt.Sprintf("rank %d", r.Rank), fmt.Sprint(r.Rank)}
		for left := r.SMs; left > 0; {
			n := min(left, sms-place%sms)
			pieces = append(pieces, rankPiece{from: place % sms, sms: n, layer: place / sms, nth: nth, names: names, owners: 1})
			place, left = place+n, left-n
		}
	}
	return pieces
}

// ownedRuns returns the runs of adjacent SMs that have the same number of ranks.
func ownedRuns(pieces []rankPiece, sms int, cell px) (runs []ownedRun) {
	owners := make([]int, sms)
	for _, p := range pieces {
		for i := p.from; i < p.from+p.sms; i++ {
			owners[i] += p.owners
		}
	}
	for first := 0; first < sms; {
		end := first
		for end < sms && owners[end] == owners[first] {
			end++
		}
		runs = append(runs, runOf(first, end, owners[first], cell))
		first = end
	}
	return runs
}

func runOf(from, to, owners int, cell px) ownedRun {
	run := ownedRun{X: svgLeft + px(from)*cell, Width: px(to-from) * cell, Class: "owned"}
	run.Middle = run.X + run.Width/2
	name := fmt.Sprintf("%d SMs: %d %s on each", to-from, owners, noun(owners, "rank"))
	switch {
	case owners == 0:
		run.Class, name = "free", fmt.Sprintf("%d SMs: no rank", to-from)
	case owners > 1:
		run.Class = "shared"
	}
	if px(len(name)+1)*letter <= run.Width {
		run.Label = name
	}
	return run
}
