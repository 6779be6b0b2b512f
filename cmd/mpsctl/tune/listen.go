// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"bufio"
	"bytes"
	"io"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// labels makes a launcher write the number of a rank before each line of that rank.
type labels struct {
	variable string         // of the environment
	form     *regexp.Regexp // its group is the rank
	atLine   bool           // a label stands only at the begin of a line
}

// labelled are the launchers that can do this without another flag. A label of Open MPI may also stand within a line,
// behind a text without an end of line. Both forms were recorded: Slurm 22.05, Open MPI 4.1.4.
var labelled = map[string]labels{
	"srun":    {"SLURM_LABELIO=1", regexp.MustCompile(`^\s*([0-9]+): `), true},
	"mpirun":  {"OMPI_MCA_orte_tag_output=1", regexp.MustCompile(`\[[0-9]+,([0-9]+)\]<std[a-z]+>: ?`), false},
	"mpiexec": {"OMPI_MCA_orte_tag_output=1", regexp.MustCompile(`\[[0-9]+,([0-9]+)\]<std[a-z]+>: ?`), false},
}

// labelsOf returns the labels of the first launcher that a command line names. The zero value has no labels.
func labelsOf(launcher []string) labels {
	for _, word := range launcher {
		if l, known := labelled[filepath.Base(word)]; known {
			return l
		}
	}
	return labels{}
}

// noRank is the rank of a text without a label.
const noRank = -1

// maxLine is the largest part of a line that is searched at once, in bytes.
const maxLine = 64 << 10

// maxRanks bounds the ranks of a listener, because a program could print labels.
const maxRanks = 1 << 16

// maxLines is how many lines of a launcher's stderr are kept. A launcher prints the reason of a failure first, and
// then that it failed.
const maxLines = 16

// listener reads the output of a copy, and keeps the last rate of each rank and the last lines. Its fields may be read
// when the copy has ended.
type listener struct {
	rate   *rate // nil: none is looked for
	labels labels
	keep   int // the number of lines of stderr to keep
	mutex  sync.Mutex
	errors []string        // the last lines of stderr
	last   string          // the last line of stdout
	found  map[int]float64 // the last rate of each rank
	latest float64         // the last rate of all
	count  int             // of rates
}

// listen reads lines until the end. A line ends with a newline or, as in a progress bar, with a carriage return.
func (l *listener) listen(stream io.Reader, stderr bool) {
	lines := bufio.NewScanner(stream)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	lines.Split(splitLine)
	rank, begins := noRank, true
	for lines.Scan() {
		rank = l.hear(lines.Bytes(), rank, begins, stderr)
		begins = bytes.HasSuffix(lines.Bytes(), []byte("\n"))
	}
}

// splitLine is a bufio.SplitFunc. A line keeps its end. A line that is too long is split.
func splitLine(data []byte, atEOF bool) (advance int, token []byte, err error) {
	end := bytes.IndexAny(data, "\r\n") + 1
	if end == 0 && (atEOF || len(data) >= maxLine) {
		end = len(data)
	}
	if end == 0 { // an empty token that is not nil would come again and again
		return 0, nil, nil
	}
	return end, data[:end], nil
}

// hear hears a line that may have labels. Text before the first label is that of the given rank. It returns the rank
// of the line's end.
func (l *listener) hear(line []byte, rank int, begins, stderr bool) int {
	for l.labels.form != nil && (begins || !l.labels.atLine) {
		label := l.labels.form.FindSubmatchIndex(line)
		if label == nil {
			break
		}
		l.keepText(line[:label[0]], rank, stderr)
		if number, err := strconv.Atoi(string(line[label[2]:label[3]])); err == nil && number < maxRanks {
			rank = number
		}
		line, begins = line[label[1]:], false
	}
	l.keepText(line, rank, stderr)
	return rank
}

func (l *listener) keepText(line []byte, rank int, stderr bool) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	text := string(line[:min(len(line), 200)])
	if stderr {
		l.errors = append(l.errors, text)
		l.errors = l.errors[max(0, len(l.errors)-l.keep):]
	} else {
		l.last = text
	}
	if l.rate == nil {
		return
	}
	value, err := l.rate.in(line)
	if err != nil {
		return
	}
	if l.found == nil {
		l.found = map[int]float64{}
	}
	l.found[rank], l.latest = value, value
	l.count++
}

// total returns the rate of the copy: the sum over its ranks, or the last of all if the ranks print one rate.
func (l *listener) total(one bool) (sum float64) {
	if one {
		return l.latest
	}
	for rank, value := range l.found {
		if rank != noRank || len(l.found) == 1 {
			sum += value
		}
	}
	return sum
}

// ranks returns how many ranks have printed a rate. It is 0 if the launcher does not label them.
func (l *listener) ranks() (n int) {
	for rank := range l.found {
		if rank != noRank {
			n++
		}
	}
	return n
}

// why returns the last lines of stderr, or the last line of stdout if stderr is empty.
func (l *listener) why() string {
	if len(l.errors) > 0 {
		return strings.Join(l.errors, "\n")
	}
	return l.last
}
