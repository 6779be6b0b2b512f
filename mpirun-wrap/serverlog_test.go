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
)

// recorded is what a real server wrote while faults were made, and what the daemon said of it meanwhile.
const recorded = "../docs/measurements/3-h200/fault-window.txt"

var (
	killedAt = regexp.MustCompile(`^kill -9 of the victim at (\d\d:\d\d:\d\d\.\d+)`)
	answered = regexp.MustCompile(`^ *(\d+) ms  get_server_status '(\w+)' \(asked (\d+), took`)
	logLine  = regexp.MustCompile(`^ *server  (\[\S+ (\d\d:\d\d:\d\d\.\d+) .*)$`)
)

// While the daemon of an H200 said FAULT, the server's log said so as well, so that nobody needs to ask a daemon whose
// server's log speaks of no fault; and once the daemon said ACTIVE again, so did the log.
func TestTheLogTellsOfEveryFaultThatTheDaemonTellsOf(t *testing.T) {
	content, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
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
		began := 0 // of FAULT; a line is there for each change of the answer
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
					t.Errorf("%.30q: FAULT at %d ms, and the log knows of none", section, ms)
					break
				}
			}
			if f := until(at); began > 0 && f.server != 0 {
				t.Errorf("%.30q: ACTIVE at %d ms, and the log has a fault still: %+v", section, at, f)
			}
		}
	}
	if faults != 5 {
		t.Errorf("%d faults are recorded, want 5", faults)
	}
}

type stamped struct {
	at   time.Time
	text string
}

// logOf are a section's lines of the server's log, and when the victim was killed.
func logOf(t *testing.T, section string) (lines []stamped, kill time.Time) {
	t.Helper()
	clock := func(text string) time.Time {
		at, err := time.Parse("15:04:05.999999", text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
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
			t.Errorf("a fault without anybody in it: %+v", found)
		}
	})
}

func TestClientsInTheLog(t *testing.T) {
	for line, want := range map[string]int{
		"Client {PID: 827, Context ID: 0} connected":                        827,
		"Client {827, 0} connected":                                         827, // drivers before 580
		"Failed to accept client {PID: 975, Context ID: 0} with status 807": 975,
		"Received new client request for {PID: 4, Context ID: 845}":         0, // not that one's pid (measured)
		"Received new client request for {PID: -1333654781, Context ID: 0}": 0,
		"Client process 827 disconnected":                                   0,
		"Client {PID: -3, Context ID: 0} connected":                         0,
		"Client {": 0,
		"Failed to accept new client. Maximum number of clients (48) reached.":                      0,
		"Server failed to recevie command with status 806, assuming client {PID: 9, Context ID: 1}": 0,
	} {
		if got, ok := clientOf([]byte(stamp + line + "\n")); got*btoi(ok) != want {
			t.Errorf("%s: %d, %v", line, got, ok)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A log is followed from where it ends at the start, by whole lines; what is not the same log any more says nothing.
func TestFollowingALog(t *testing.T) {
	connected := func(pid int) string { return fmt.Sprintf("%sClient {PID: %d, Context ID: 0} connected\n", stamp, pid) }
	t.Run("from its end", func(t *testing.T) {
		log := newLog(t)
		log.write(connected(1))
		a := follow(log.dir)
		log.write(connected(2) + connected(3)[:60])
		if !a.read() || a.pids[1] || !a.pids[2] || a.pids[3] {
			t.Errorf("%+v", a)
		}
		log.write(connected(3)[60:])
		if !a.read() || !a.pids[3] {
			t.Errorf("%+v", a)
		}
	})
	t.Run("one that comes later", func(t *testing.T) {
		log := newLog(t)
		a := follow(log.dir)
		if !a.read() || len(a.pids) > 0 {
			t.Errorf("before there is a server: %+v", a)
		}
		log.write(connected(2))
		if !a.read() || !a.pids[2] {
			t.Errorf("%+v", a)
		}
	})
	t.Run("a large one, a part at a time", func(t *testing.T) {
		log := newLog(t)
		a := follow(log.dir)
		log.write(strings.Repeat(stamp+"Creating worker thread\n", mostRead/50) + connected(2))
		looks := 1
		for ; !a.read(); looks++ {
			if a.lost || looks > 9 {
				t.Fatalf("look %d: %+v", looks, a)
			}
		}
		if looks < 2 || !a.pids[2] {
			t.Errorf("%d looks, %v", looks, a.pids)
		}
	})
	for name, change := range map[string]func(*testing.T, serverLogFile){
		"truncated":     func(t *testing.T, l serverLogFile) { must(t, os.Truncate(l.path, 0)) },
		"replaced":      func(t *testing.T, l serverLogFile) { must(t, os.Rename(l.path, l.path+".1")); l.write(connected(2)) },
		"gone":          func(t *testing.T, l serverLogFile) { must(t, os.Remove(l.path)) },
		"without lines": func(t *testing.T, l serverLogFile) { l.write(strings.Repeat("x", 2*chunkBytes)) },
		"a link": func(t *testing.T, l serverLogFile) {
			must(t, os.Rename(l.path, l.path+".1"))
			must(t, os.Symlink(l.path+".1", l.path))
		},
		"a fifo nobody writes": func(t *testing.T, l serverLogFile) {
			must(t, os.Remove(l.path))
			must(t, syscall.Mkfifo(l.path, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := newLog(t)
			log.write(connected(1))
			a := follow(log.dir)
			change(t, log)
			if a.read() {
				t.Errorf("%+v", a)
			}
			if tail := logTail(log.dir); name == "a link" && tail != nil || name == "a fifo nobody writes" && tail != nil {
				t.Errorf("tail %q", tail)
			}
		})
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
	must(l.t, err)
	_, err = file.WriteString(text)
	must(l.t, errors.Join(err, file.Close()))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What a start costs where there is no fault: 0.1 ms is the bar, with a log as long as is read.
func BenchmarkNoFault(b *testing.B) {
	dir := b.TempDir()
	line := []byte(stamp + "Client {PID: 957, Context ID: 1} exiting. Number of active client contexts is 1.\n")
	if err := os.WriteFile(filepath.Join(dir, "server.log"), bytes.Repeat(line, 2*tailBytes/len(line)), 0o644); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if f := readFault(logTail(dir)); f.server != 0 {
			b.Fatal(f)
		}
	}
}
