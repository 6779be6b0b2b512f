// SPDX-License-Identifier: Apache-2.0

// Package logfile is the log of root's programs: a JSON object a line. It links nothing that the guard may not link.
package logfile

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/rs/zerolog"
)

// Open appends to the log. A log that cannot be written is no reason to drain a node: its lines are dropped.
func Open(path string) (io.Writer, func()) {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	zerolog.ErrorHandler = func(error) {} // it would print each lost line on stderr
	_ = os.MkdirAll(filepath.Dir(path), 0o755)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW, 0o640)
	if err != nil {
		return io.Discard, func() {}
	}
	return printable{file}, func() { file.Close() }
}

// Of is the log of one program for one job.
func Of(out io.Writer, program string, job uint32) zerolog.Logger {
	return zerolog.New(out).With().Timestamp().Str("program", program).Uint32("job", job).Logger()
}

// printable escapes what a terminal would obey in lines of JSON. Their writer escapes what JSON must: C1 controls and
// marks that turn the direction of a line are not among that, and a user may have written them.
type printable struct{ to io.Writer }

func (p printable) Write(line []byte) (int, error) {
	var plain []byte
	for _, r := range string(line) {
		if r == '\n' || strconv.IsPrint(r) {
			plain = utf8.AppendRune(plain, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			plain = fmt.Appendf(plain, `\u%04x`, unit)
		}
	}
	_, err := p.to.Write(plain)
	return len(line), err
}
