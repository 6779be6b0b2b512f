// SPDX-License-Identifier: Apache-2.0

package cast

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

func recorded(t *testing.T) (s Session) {
	t.Helper()
	text, err := os.ReadFile("testdata/session.json")
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// movie is an SVG as a viewer reads it: the texts by group, and the keyframes by name.
type movie struct {
	t         *testing.T
	end       time.Duration
	texts     map[string]string
	keyframes map[string][][]string // percent and declarations, in order
}

func parse(t *testing.T, svg []byte, end time.Duration) movie {
	t.Helper()
	m := movie{t, end, map[string]string{}, map[string][][]string{}}
	group := ""
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("the SVG is no XML: %v", err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			if e.Name.Local == "script" || e.Name.Local == "image" || e.Name.Local == "foreignObject" {
				t.Errorf("the SVG has a <%s>", e.Name.Local)
			}
			if e.Name.Local == "g" {
				group = e.Attr[0].Value
			}
		case xml.CharData:
			m.texts[group] += string(e)
		}
	}
	for _, k := range regexp.MustCompile(`@keyframes (\w+)\{((?:[^{}]+\{[^{}]*\})+)\}`).FindAllSubmatch(svg, -1) {
		for _, f := range regexp.MustCompile(`([0-9.]+)%\{([^{}]*)\}`).FindAllStringSubmatch(string(k[2]), -1) {
			m.keyframes[string(k[1])] = append(m.keyframes[string(k[1])], f[1:])
		}
	}
	return m
}

// at returns what the keyframes of a name declare at a time: those of the last one that has begun.
func (m movie) at(name string, at time.Duration) (declared string) {
	for _, f := range m.keyframes[name] {
		percent, err := strconv.ParseFloat(f[0], 64)
		if err != nil {
			m.t.Fatal(err)
		}
		if time.Duration(percent/100*float64(m.end)) <= at {
			declared = f[1]
		}
	}
	return declared
}

// screen returns the lines that the viewer sees at a time, from the top.
func (m movie) screen(s Session, at time.Duration) (lines []string) {
	up := 0
	if found := regexp.MustCompile(`translateY\(-(\d+)px`).FindStringSubmatch(m.at("scroll", at)); found != nil {
		up, _ = strconv.Atoi(found[1])
	}
	for i := up / cellTall; i < up/cellTall+s.Rows; i++ {
		if m.at(fmt.Sprintf("l%d", i), at) == "opacity:1" {
			lines = append(lines, strings.TrimSpace(m.texts[fmt.Sprintf("l%d", i)]))
		}
	}
	return lines
}

// TestTheFramesAreTheRecording compares the frames of the SVG with a terminal of four rows.
func TestTheFramesAreTheRecording(t *testing.T) {
	s := recorded(t)
	svg, err := Draw(s)
	if err != nil {
		t.Fatal(err)
	}
	m := parse(t, svg, s.End)
	for _, c := range []struct {
		at   time.Duration
		want string
	}{
		{100 * time.Millisecond, "# Two ranks."},
		{time.Second, "# Two ranks.|hpc1$ srun -n2 ./app"},
		{3100 * time.Millisecond, "# Two ranks.|hpc1$ srun -n2 ./app|rank 0: 66 SMs|rank 1: 66 SMs"},
		{4 * time.Second, "hpc1$ srun -n2 ./app|rank 0: 66 SMs|rank 1: 66 SMs|"},
		{7 * time.Second, "rank 0: 66 SMs|rank 1: 66 SMs||hpc1$ mpsctl status"},
		{19 * time.Second, "rank 1: 66 SMs||hpc1$ mpsctl status|a > b  ████░░ 50 %"},
	} {
		if got := strings.Join(m.screen(s, c.at), "|"); got != c.want {
			t.Errorf("after %s: %q, want %q", c.at, got, c.want)
		}
	}
}

// The rectangle over a command hides it until the typing begins, moves to its end, and is gone.
func TestACommandIsTyped(t *testing.T) {
	s := recorded(t)
	svg, err := Draw(s)
	if err != nil {
		t.Fatal(err)
	}
	m := parse(t, svg, s.End)
	prompt := s.Events[1].At
	end := prompt + Typing("srun -n2 ./app")
	for at, want := range map[time.Duration]string{
		prompt:                         "opacity:1",
		prompt + thinking + stroke:     "translateX(0);animation-timing-function:steps(14)",
		end + 10*time.Millisecond:      "translateX(112px)",
		end + thinking/2 + time.Second: "opacity:0",
	} {
		if got := m.at("c1", at); !strings.Contains(got, want) {
			t.Errorf("after %s: %q, want %q", at, got, want)
		}
	}
}

// Without animations the SVG is the last frame: all lines are visible, no rectangle is, and the top is scrolled away.
func TestReducedMotion(t *testing.T) {
	svg, err := Draw(recorded(t))
	if err != nil {
		t.Fatal(err)
	}
	still := regexp.MustCompile(`@keyframes \w+\{([^{}]+\{[^{}]*\})+\}`).ReplaceAllString(string(svg), "")
	for _, want := range []string{"@media print,(prefers-reduced-motion:reduce){g{animation:none!important}}", ".c{opacity:0}", ".scroll{transform:translateY(-51px)"} {
		if !strings.Contains(still, want) {
			t.Errorf("without animations the SVG lacks %q:\n%s", want, still)
		}
	}
	if n := strings.Count(still, "opacity"); n != 1 {
		t.Errorf("%d opacities outside of keyframes, want one", n)
	}
}

func TestALineThatDoesNotFit(t *testing.T) {
	s := recorded(t)
	s.Events[2].Text = strings.Repeat("x", 41)
	if _, err := Draw(s); err == nil || !strings.Contains(err.Error(), "cannot draw line 2: it has 41 columns of 40") {
		t.Errorf("41 columns of 40: %v", err)
	}
	s = recorded(t)
	s.End = s.Events[6].At
	if _, err := Draw(s); err == nil || !strings.Contains(err.Error(), "cannot draw line 6") {
		t.Errorf("a line after the end: %v", err)
	}
}

func TestAColourOfSeveralLines(t *testing.T) {
	for _, c := range []struct{ line, closed, next string }{
		{"plain", "plain", ""},
		{"a \x1b[1mb\x1b[0m c", "a \x1b[1mb\x1b[0m c", ""},
		{"a\x1b[0m \x1b[2mb", "a\x1b[0m \x1b[2mb\x1b[0m", "\x1b[2m"},
		{"\x1b[2mb", "\x1b[2mb\x1b[0m", "\x1b[2m"},
	} {
		if closed, next := Painted(c.line); closed != c.closed || next != c.next {
			t.Errorf("%q: %q and %q, want %q and %q", c.line, closed, next, c.closed, c.next)
		}
	}
}
