// SPDX-License-Identifier: Apache-2.0

// Package logfile writes the log of root's programs: one JSON object a line. It links only packages that the guard
// may link.
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

// Open opens the log to append lines. If the log cannot be written, its lines are dropped, because this is no reason
// to drain a node.
func Open(path string) (io.Writer, func()) {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	zerolog.ErrorHandler = func(error) {} // the default prints each lost line on stderr
	_ = os.MkdirAll(filepath.Dir(path), 0o755)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW, 0o640)
	if err != nil {
		return io.Discard, func() {}
	}
	return printable{file}, func() { file.Close() }
}

// Of returns the log of one program for one job.
func Of(out io.Writer, program string, job uint32) zerolog.Logger {
	return zerolog.New(out).With().Timestamp().Str("program", program).Uint32("job", job).Logger()
}

// printable escapes characters in lines of JSON that a terminal obeys. The encoder of JSON escapes only what JSON
// requires. It leaves C1 controls and marks that change the direction of a line, and a user may have written them.
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
