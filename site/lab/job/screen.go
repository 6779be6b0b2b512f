// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"unicode/utf8"
)

// These constants are the size of the drawn terminal in characters, the size of a character, a margin and the
// colours.
const (
	columns, rows       = 96, 60
	cellWide, cellTall  = 8, 17
	margin              = 12
	ground, ink, weaker = "#1d1f21", "#d0d3d4", "#8a8f93"
)

// styles maps the codes that mpsctl writes (site/command/screen.go) to their SVG attributes.
var styles = map[string]string{"1": `font-weight="bold" fill="#ffffff"`, "2": `fill="` + weaker + `"`,
	"31": `fill="#ff6b68"`, "32": `fill="#8cc265"`, "33": `fill="#e5c07b"`}

// screenshot draws the current output of mpsctl status on a terminal into an SVG file.
func (d *demo) screenshot(ctx context.Context, path string) error {
	line := fmt.Sprintf("stty cols %d rows %d; TERM=xterm exec %s", columns, rows, strings.Join(d.node.Command("mpsctl", "status"), " "))
	cmd := exec.CommandContext(ctx, "script", "-qec", line, os.DevNull) // script gives the command its own terminal
	shown, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("cannot run mpsctl status on a terminal: %w: %s", err, shown)
	}
	if err := os.WriteFile(path, draw("# mpsctl status\n"+strings.ReplaceAll(string(shown), "\r\n", "\n")), 0o644); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	fmt.Printf("mpsctl status is drawn in %s.\n", path)
	return nil
}

// painted matches a text in a colour, or a text without colour.
var painted = regexp.MustCompile("\x1b\\[([0-9]+)m(.*?)\x1b\\[0m|[^\x1b]+")

// draw makes an SVG of terminal output.
func draw(shown string) []byte {
	lines := strings.Split(strings.TrimRight(shown, "\n"), "\n")
	wide, tall := columns*cellWide+2*margin, len(lines)*cellTall+2*margin
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13" fill="%s">`+"\n", wide, tall, wide, tall, ink)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="6" fill="%s"/>`+"\n", ground)
	for i, line := range lines {
		at := 0
		for _, piece := range painted.FindAllStringSubmatch(line, -1) {
			text, style := piece[0], ""
			if piece[1] != "" {
				text, style = piece[2], styles[piece[1]]
			}
			cells := utf8.RuneCountInString(text)
			if strings.TrimSpace(text) != "" {
				fmt.Fprintf(&b, `<text x="%d" y="%d" textLength="%d" lengthAdjust="spacingAndGlyphs" xml:space="preserve" %s>`,
					margin+at*cellWide, margin+(i+1)*cellTall-4, cells*cellWide, style)
				_ = xml.EscapeText(&b, []byte(text)) // a Buffer accepts every write
				b.WriteString("</text>\n")
			}
			at += cells
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
