// SPDX-License-Identifier: Apache-2.0

package command

import (
	"io"
	"os"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"golang.org/x/sys/unix"
)

// Screen is the output for people: a terminal or a pipe.
type Screen struct {
	Terminal bool
	Columns  int
	Colour   bool
}

// plain is the screen of a pipe: 80 columns, any number of rows, and no colour.
var plain = Screen{Columns: 80}

// Screen returns the screen of this call. It has colours only on a terminal that supports them, and never if NO_COLOR
// is set (no-color.org).
func (call *Invocation) Screen() Screen {
	s, term := terminal(call.Out), call.Variable("TERM")
	s.Colour = s.Terminal && call.Variable("NO_COLOR") == "" && term != "dumb" && term != ""
	return s
}

func terminal(out io.Writer) Screen {
	file, ok := out.(*os.File)
	if !ok {
		return plain
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return plain
	}
	s := Screen{Terminal: true, Columns: int(size.Col)}
	if s.Columns == 0 { // a terminal that does not report its size
		s.Columns = plain.Columns
	}
	return s
}

// The colours and weights.
const (
	green  = "32"
	yellow = "33"
	red    = "31"
	bold   = "1"
	faint  = "2"
)

// Green, Yellow, Red, Bold and Faint return a text in a colour or a weight, if the screen has colours.
func (s Screen) Green(text string) string  { return s.paint(green, text) }
func (s Screen) Yellow(text string) string { return s.paint(yellow, text) }
func (s Screen) Red(text string) string    { return s.paint(red, text) }
func (s Screen) Bold(text string) string   { return s.paint(bold, text) }
func (s Screen) Faint(text string) string  { return s.paint(faint, text) }

func (s Screen) paint(colour, text string) string {
	if !s.Colour || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// Wrap breaks text into lines that fit the screen, each with an indentation. A longer word stays whole.
func (s Screen) Wrap(indent, text string) string { return cli.Wrap(indent, text, s.Columns) }

// eighths are the characters that fill 0 to 7 eighths of a cell from the left.
var eighths = []string{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"}

// Bar draws part of whole in cells, to the nearest eighth of a cell.
func Bar(part, whole, cells int) string {
	n := min((part*cells*8*2+whole)/(whole*2), cells*8)
	filled := strings.Repeat("█", n/8) + eighths[n%8]
	used := (n + 7) / 8
	return filled + strings.Repeat("░", cells-used)
}
