// SPDX-License-Identifier: Apache-2.0

// Package cast draws a recorded terminal session as an animated SVG. The SVG has neither scripts nor fonts: it is text,
// and CSS says when each line is visible. A viewer that prefers reduced motion sees the last frame.
package cast

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Session is a recorded session of a terminal. Its picture starts again after End.
type Session struct {
	Title   string        `json:"title"`
	Columns int           `json:"columns"` // the terminal's size in characters
	Rows    int           `json:"rows"`
	End     time.Duration `json:"end"`
	Events  []Event       `json:"events"` // in the order of At
}

// Event is one line of a session. Text may have the colours that mpsctl writes, and has no line feed. If Prompt is not
// empty, the line is typed behind this prompt, in the time Typing after At.
type Event struct {
	At     time.Duration `json:"at"`
	Prompt string        `json:"prompt,omitempty"`
	Text   string        `json:"text"`
}

// The time before the first character of a command, and for each character.
const (
	thinking = 500 * time.Millisecond
	stroke   = 25 * time.Millisecond
)

// Typing is the time between a prompt and the end of a command behind it.
func Typing(line string) time.Duration {
	return thinking + time.Duration(utf8.RuneCountInString(line))*stroke
}

// The size of a character, the margin and the colours. The terminal is dark on a light page, too.
const (
	cellWide, cellTall = 8, 17
	margin             = 12
	ground, ink, edge  = "#1d1f21", "#d0d3d4", "#5c6166"
)

// style has the colours of mpsctl (site/command/screen.go): s1 is its code 1, and so on. All animations are off
// on paper, and for a viewer who prefers that.
const style = `text{white-space:pre}.s1{font-weight:bold;fill:#fff}.s2{fill:#8a8f93}.s31{fill:#ff6b68}.s32{fill:#8cc265}.s33{fill:#e5c07b}
.c{opacity:0}
@media print,(prefers-reduced-motion:reduce){g{animation:none!important}}
`

// painted matches a text in a colour, or a text without colour.
var painted = regexp.MustCompile("\x1b\\[([0-9]+)m(.*?)\x1b\\[0m|[^\x1b]+")

// picture is an SVG in the making.
type picture struct {
	Session
	css, body bytes.Buffer
}

// Draw returns the session as an SVG. A line that does not fit the terminal is an error.
func Draw(s Session) ([]byte, error) {
	p := &picture{Session: s}
	for i, e := range s.Events {
		if n := cells(e.Prompt + e.Text); n > s.Columns || e.At >= s.End {
			return nil, fmt.Errorf("cannot draw line %d: it has %d columns of %d, at %s of %s: %q", i, n, s.Columns, e.At, s.End, e.Text)
		}
		p.line(i, e)
	}
	p.scroll()
	wide, tall := s.Columns*cellWide+2*margin, s.Rows*cellTall+2*margin
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" xml:space="preserve" `+
		`font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13" fill="%s">`+"\n<title>", wide, tall, wide, tall, ink)
	escape(&b, s.Title)
	fmt.Fprintf(&b, "</title>\n<style>g{animation:%.1fs step-end infinite}%s%s</style>\n", s.End.Seconds(), style, p.css.Bytes())
	fmt.Fprintf(&b, `<rect x=".5" y=".5" width="%d" height="%d" rx="6" fill="%s" stroke="%s"/>`+"\n", wide-1, tall-1, ground, edge)
	fmt.Fprintf(&b, `<svg x="%d" y="%d" width="%d" height="%d"><g class="scroll">`+"\n", margin, margin, s.Columns*cellWide, s.Rows*cellTall)
	fmt.Fprintf(&b, "%s</g></svg>\n</svg>\n", p.body.Bytes())
	return b.Bytes(), nil
}

// percent returns a time as a part of the animation, as CSS writes it.
func (p *picture) percent(at time.Duration) string {
	return fmt.Sprintf("%.2f%%", 100*at.Seconds()/p.End.Seconds())
}

// line draws event number i. It is invisible until its time has come.
func (p *picture) line(i int, e Event) {
	fmt.Fprintf(&p.css, ".l%d{animation-name:l%d}@keyframes l%d{0%%{opacity:0}%s{opacity:1}}\n", i, i, i, p.percent(e.At))
	fmt.Fprintf(&p.body, `<g class="l%d">`, i)
	at := 0
	for _, piece := range painted.FindAllStringSubmatch(e.Prompt+e.Text, -1) {
		text, class := piece[0], ""
		if piece[1] != "" {
			text, class = piece[2], fmt.Sprintf(` class="s%s"`, piece[1])
		}
		n := utf8.RuneCountInString(text)
		if strings.TrimSpace(text) != "" {
			fmt.Fprintf(&p.body, `<text x="%d" y="%d" textLength="%d" lengthAdjust="spacingAndGlyphs"%s>`,
				at*cellWide, (i+1)*cellTall-4, n*cellWide, class)
			escape(&p.body, text)
			p.body.WriteString("</text>")
		}
		at += n
	}
	if e.Prompt != "" {
		p.cover(i, e)
	}
	p.body.WriteString("</g>\n")
}

// cover draws a cursor, and behind it a rectangle that hides what is not typed yet. Both move over the command.
func (p *picture) cover(i int, e Event) {
	left, n := cells(e.Prompt)*cellWide, cells(e.Text)
	begin, end := e.At+thinking, e.At+Typing(e.Text)
	fmt.Fprintf(&p.css, ".c%d{animation-name:c%d}@keyframes c%d{0%%{opacity:1}%s{opacity:1;transform:translateX(0);animation-timing-function:steps(%d)}"+
		"%s{opacity:1;transform:translateX(%dpx)}%s{opacity:0}}\n",
		i, i, i, p.percent(begin), n, p.percent(end), n*cellWide, p.percent(end+thinking/2))
	fmt.Fprintf(&p.body, `<g class="c c%d"><rect x="%d" y="%d" width="%d" height="%d" fill="%s"/><rect x="%d" y="%d" width="%d" height="%d"/></g>`,
		i, left, i*cellTall, (n+1)*cellWide, cellTall, ground, left, i*cellTall, cellWide, cellTall)
}

// scroll moves all lines up when the terminal is full.
func (p *picture) scroll() {
	up, last := 0, "0%"
	fmt.Fprintf(&p.css, "@keyframes scroll{0%%{transform:translateY(0)}")
	for i, e := range p.Events {
		if i < p.Rows {
			continue
		}
		up, last = (i+1-p.Rows)*cellTall, p.percent(e.At)
		if i+1 == len(p.Events) || p.percent(p.Events[i+1].At) != last { // only the last of the lines at one time
			fmt.Fprintf(&p.css, "%s{transform:translateY(-%dpx)}", last, up)
		}
	}
	fmt.Fprintf(&p.css, "}\n.scroll{transform:translateY(-%dpx);animation-name:scroll}\n", up)
}

// Painted ends a colour that a line leaves on, and returns the code that begins it again in the next line.
func Painted(line string) (closed, next string) {
	begin := strings.LastIndex(line, "\x1b[")
	if begin < 0 || strings.HasPrefix(line[begin:], off) {
		return line, ""
	}
	if code, _, whole := strings.Cut(line[begin:], "m"); whole {
		return line + off, code + "m"
	}
	return line, ""
}

const off = "\x1b[0m"

// cells is the width of a text on the terminal.
func cells(text string) (n int) {
	for _, piece := range painted.FindAllStringSubmatch(text, -1) {
		if piece[1] != "" {
			n += utf8.RuneCountInString(piece[2])
		} else {
			n += utf8.RuneCountInString(piece[0])
		}
	}
	return n
}

func escape(b *bytes.Buffer, text string) { _ = xml.EscapeText(b, []byte(text)) } // a Buffer accepts every write
