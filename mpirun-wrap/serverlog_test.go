// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// recordedLog is what a real server wrote during provoked faults, and the daemon's answers at the same time. The trials
// are those of docs/measurements/3-h200.
const recordedLog = "testdata/fault-window.txt"

var (
	killedAt = regexp.MustCompile(`^kill -9 of the victim at (\d\d:\d\d:\d\d\.\d+)`)
	answered = regexp.MustCompile(`^ *(\d+) ms  get_server_status '(\w+)' \(asked (\d+), took`)
	logLine  = regexp.MustCompile(`^ *server  (\[\S+ (\d\d:\d\d:\d\d\.\d+) .*)$`)
)

// While the daemon of an H200 answered FAULT, the server's log contained the fault, too. So a daemon need not be
// asked if its server's log contains no fault. When the daemon answered ACTIVE again, the log showed that as well.
func TestTheLogTellsOfEveryFaultThatTheDaemonTellsOf(t *testing.T) {
	content := must.Get(os.ReadFile(recordedLog))(t)
	faults := 0
	for section := range strings.SplitSeq(string(content), "\n=== ") {
		lines, kill := logOf(t, section)
		until := func(ms int) fault {
			var tail []byte
			for _, l := range lines {
				if l.at.Sub(kill) <= time.Duration(ms)*time.Millisecond {
					tail = append(tail, l.text...)
				}
			}
			return readFault(tail)
		}
		began := 0 // the begin of FAULT; each change of the answer has a line
		for line := range strings.Lines(section) {
			words := answered.FindStringSubmatch(line)
			if words == nil {
				continue
			}
			at, _ := strconv.Atoi(words[1])
			asked, _ := strconv.Atoi(words[3])
			if words[2] == "FAULT" {
				began = at
				faults++
				continue
			}
			for ms := began; began > 0 && ms < asked; ms += 5 {
				if f := until(ms); f.server == 0 {
					t.Errorf("%.30q: FAULT at %d ms, and the log has no fault", section, ms)
					break
				}
			}
			if f := until(at); began > 0 && f.server != 0 {
				t.Errorf("%.30q: ACTIVE at %d ms, and the log still has a fault: %+v", section, at, f)
			}
		}
	}
	must.Hold(t, faults == 5, "%d faults are recorded, want 5", faults)
}

type stamped struct {
	at   time.Time
	text string
}

// logOf returns a section's lines of the server's log, and the time when the victim was killed.
func logOf(t *testing.T, section string) (lines []stamped, kill time.Time) {
	t.Helper()
	clock := func(text string) time.Time { return must.Get(time.Parse("15:04:05.999999", text))(t) }
	for line := range strings.Lines(section) {
		line = strings.TrimSuffix(line, "\n")
		if words := killedAt.FindStringSubmatch(line); words != nil {
			kill = clock(words[1])
		}
		line = strings.Replace(line, "     * server", "       server", 1)
		if words := logLine.FindStringSubmatch(line); words != nil {
			lines = append(lines, stamped{clock(words[2]), words[1] + "\n"})
		}
	}
	return lines, kill
}

const (
	stamp   = "[2026-11-21 05:26:29.822 Server   829] "
	faulted = stamp + "Client {PID: 957, Context: 1} encountered a fatal GPU error.\n" +
		stamp + "Server is handling a fatal GPU error.\n" +
		stamp + "The following devices will be reset:\n" + stamp + "0\n" +
		stamp + "The following client process have a sticky error set:\n" + stamp + "957\n" + stamp + "962\n"
)

func TestAFaultInTheLog(t *testing.T) {
	for _, c := range []struct {
		name, log string
		want      fault
	}{
		{"none", stamp + "Server has started\n", fault{}},
		{"both are there", faulted, fault{829, []int{957, 962}, true}},
		{"one has gone", faulted + stamp + "Client process 957 disconnected\n", fault{829, []int{962}, true}},
		{"both have gone", faulted + stamp + "Client process 962 disconnected\n" + stamp + "Client process 957 disconnected\n", fault{}},
		{"the server has not said who", faulted[:strings.Index(faulted, stamp+"The following client")], fault{829, nil, false}},
		{"its contexts are there again", faulted + stamp + "Creating server context on device 0 (NVIDIA H200)\n", fault{}},
		{"only a refusal is left of it", stamp + "Server teardown in progress. Refusing to accept new client {PID: 975, Context ID: 0}\n", fault{829, nil, false}},
		{"a line that is cut", "al GPU error.\n" + faulted[10:], fault{829, []int{957, 962}, true}},
		{"rubbish", "fatal GPU error\x00\xff] ] [ Client process \n12\n\n] fatal GPU error", fault{}},
	} {
		if got := readFault([]byte(c.log)); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func FuzzReadFault(f *testing.F) {
	f.Add([]byte(faulted))
	f.Fuzz(func(t *testing.T, tail []byte) {
		if found := readFault(tail); found.listed && len(found.clients) == 0 {
			t.Errorf("a fault without a client: %+v", found)
		}
	})
}

// The log is in a folder that the user owns. Only a regular file is read, and only its end.
func TestTheEndOfALog(t *testing.T) {
	log := newLog(t)
	if tail := logTail(log.dir); tail != nil {
		t.Errorf("of no log: %q", tail)
	}
	log.write(strings.Repeat("x", tailBytes) + "\nthe end\n")
	if tail := logTail(log.dir); len(tail) != tailBytes || !bytes.HasSuffix(tail, []byte("x\nthe end\n")) {
		t.Errorf("%d bytes", len(tail))
	}
	for name, make := range map[string]func() error{
		"a link":                  func() error { return os.Symlink(log.path+".1", log.path) },
		"a fifo without a writer": func() error { return syscall.Mkfifo(log.path, 0o600) },
		"a folder":                func() error { return os.Mkdir(log.path, 0o700) },
	} {
		must.OK(t, os.Rename(log.path, log.path+".1"))
		must.OK(t, make())
		if tail := logTail(log.dir); tail != nil {
			t.Errorf("%s: %q", name, tail)
		}
		must.OK(t, os.Remove(log.path))
		must.OK(t, os.Rename(log.path+".1", log.path))
	}
}

// serverLogFile is a log that a test writes.
type serverLogFile struct {
	t         *testing.T
	dir, path string
}

func newLog(t *testing.T) serverLogFile {
	dir := t.TempDir()
	return serverLogFile{t, dir, filepath.Join(dir, "server.log")}
}

func (l serverLogFile) write(text string) {
	l.t.Helper()
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must.OK(l.t, err)
	_, err = file.WriteString(text)
	must.OK(l.t, errors.Join(err, file.Close()))
}
