// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"sync"
)

const (
	maxLine  = 64 << 10 // bytes of a line that are searched at once
	maxRates = 1 << 16  // numbers that are kept, because a program may print without end
)

// listener reads the output of a command. It keeps the rates and the last lines. Its fields may be read when the
// command has ended.
type listener struct {
	rate    *regexp.Regexp // nil: none is looked for
	readers sync.WaitGroup
	mutex   sync.Mutex
	rates   []float64 // in the order of the output
	out     string    // the last line of stdout
	errors  string    // the last line of stderr
}

// stream returns a writer for one stream of the command. The last line of the stream comes into last.
func (l *listener) stream(last *string) *io.PipeWriter {
	reader, writer := io.Pipe()
	l.readers.Go(func() {
		lines := bufio.NewScanner(reader)
		lines.Buffer(make([]byte, 0, 4096), maxLine)
		lines.Split(splitLine)
		for lines.Scan() {
			l.keep(bytes.TrimSpace(lines.Bytes()), last)
		}
	})
	return writer
}

// splitLine is a bufio.SplitFunc. A line ends with a newline or, as in a progress bar, with a carriage return. A line
// that is too long is split.
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

func (l *listener) keep(line []byte, last *string) {
	if len(line) == 0 {
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	*last = string(line[:min(len(line), 200)])
	if l.rate == nil {
		return
	}
	for _, match := range l.rate.FindAllSubmatch(line, -1) {
		value, err := strconv.ParseFloat(string(match[1]), 64)
		if err == nil && value > 0 && value < 1e300 && len(l.rates) < maxRates {
			l.rates = append(l.rates, value)
		}
	}
}

// result returns the mean of the second half of the rates. All ranks print at the same pace, so the mean over their
// numbers goes with their sum, whichever rank has printed which.
func (l *listener) result() (float64, error) {
	if len(l.rates) == 0 {
		return 0, fmt.Errorf("--rate found no number; the last line of stdout is %s: correct the pattern, or give a longer --seconds",
			strconv.QuoteToGraphic(l.out))
	}
	mean, _ := spread(l.rates[len(l.rates)/2:])
	return mean, nil
}
