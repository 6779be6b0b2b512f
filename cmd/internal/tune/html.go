// SPDX-License-Identifier: Apache-2.0

package tune

import (
	_ "embed"
	"fmt"
	"html/template"
	"strings"
)

//go:embed report.html.tmpl
var pageText string

var page = template.Must(template.New("report").Parse(pageText))

// These are sizes in the picture, in the units of its viewBox. The bars begin to the right of the names.
const (
	barsLeft  = 190.0
	barsWidth = 440.0
	barStep   = 26
)

// figure is one row of the page.
type figure struct {
	Name, Ranks, Rule, Median, Min, Max, Part, Problem string
	N                                                  int
	Best                                               bool
	Y                                                  int
	Width, From, To                                    float64 // of the bar, and of the line from min to max
}

// html returns the report as a page that needs no other file.
func (r report) html() (string, error) {
	highest, best := 0.0, 0.0
	for _, w := range r.Rules {
		highest, best = max(highest, w.Max), max(best, w.Median)
	}
	view := struct {
		report
		Words   string
		Height  int
		Figures []figure
	}{report: r, Words: r.unit(), Height: len(r.Rules) * barStep}
	for i, w := range r.Rules {
		view.Figures = append(view.Figures, w.figure(i*barStep, highest, best, w.Rule == r.Use && w.Ranks == r.Ranks))
	}
	var b strings.Builder
	if err := page.Execute(&b, view); err != nil {
		return "", fmt.Errorf("cannot write page: %w", err)
	}
	return b.String(), nil
}

func (w row) figure(y int, highest, best float64, use bool) figure {
	f := figure{Name: w.name(), Ranks: w.ranks(), Rule: w.Rule, N: len(w.Rates), Best: use, Y: y}
	switch {
	case w.Failed != "":
		f.Problem = "failed: " + w.Failed
	case w.Median == 0:
		f.Problem = "not run: the time was up"
	default:
		number := func(x float64) string { return fmt.Sprintf("%.5g", x) }
		at := func(x float64) float64 { return x / highest * barsWidth }
		f.Median, f.Min, f.Max, f.Part = number(w.Median), number(w.Min), number(w.Max), fmt.Sprintf("%.1f %%", 100*w.Median/best)
		f.Width, f.From, f.To = at(w.Median), barsLeft+at(w.Min), barsLeft+at(w.Max)
	}
	return f
}
