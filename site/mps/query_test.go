// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// The output of the control program decides. Its exit code counts only if the output is empty. Output and exit code
// were recorded for each answer.
//
// Contract: D3
func TestJudge(t *testing.T) {
	failed := errors.New("exit status 1")
	for _, c := range []struct {
		said  string
		exit  error
		lines string
		is    error
	}{
		{"", nil, "", nil},
		{"100.0\n", nil, "100.0", nil},
		{"670\n671\n", nil, "670|671", nil},
		{"Unknown command \"x\"\n", nil, `Unknown command "x"`, nil},
		{"Cannot find MPS control daemon process\n", failed, "", site.ErrDaemonDown},
		{"Cannot send command to MPS control daemon process\n", nil, "", errTransient},
		{"100.0\nCannot send command to MPS control daemon process\n", nil, "", errTransient},
		{"", failed, "", failed},
	} {
		lines, err := readAnswer(c.said, c.exit)
		must.Hold(t, strings.Join(lines, "|") == c.lines && errors.Is(err, c.is),
			"%q, %v: %q, %v; want %q, %v", c.said, c.exit, lines, err, c.lines, c.is)
	}
}

// A reader that has waited for others' questions to a daemon asks the daemon all the same.
func TestAReaderThatWaits(t *testing.T) {
	dir := t.TempDir()
	program, pipe := filepath.Join(dir, "control"), filepath.Join(dir, "pipe")
	lock, err1 := os.Create(filepath.Join(dir, "lock"))
	err2 := os.WriteFile(program, []byte("#!/bin/sh\necho 100.0\n"), 0o700)
	must.OK(t, errors.Join(err1, err2, unix.Flock(int(lock.Fd()), unix.LOCK_EX)))
	defer lock.Close()
	job := lease.Job{ID: 7, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	state, err := ControlProgram{Path: program}.State(t.Context(), job, lease.Daemon{PipeDir: pipe})
	must.Hold(t, err == nil && state.Ceiling == 100, "%+v, %v", state, err)
}

// A question without an answer has a limit of five seconds. A question that the daemon drops is asked six times.
//
// Contract: D3
func TestBoundsOfAQuestion(t *testing.T) {
	for _, c := range []struct {
		name, script string
		is           error
		asked        int
		from, to     time.Duration
	}{
		{"no answer", "exec sleep 60", site.ErrNoAnswer, 1, 5 * time.Second, 8 * time.Second},
		{"dropped", "echo Cannot send command to MPS control daemon process", errTransient, 6, 0, 4 * time.Second},
		{"not there", "echo Cannot find MPS control daemon process; exit 1", site.ErrDaemonDown, 1, 0, 4 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			program, asked := filepath.Join(dir, "control"), filepath.Join(dir, "asked")
			must.OK(t, os.WriteFile(program, []byte("#!/bin/sh\necho >>"+asked+"\n"+c.script+"\n"), 0o700))
			job := lease.Job{ID: 7, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
			began := time.Now()
			_, err := ControlProgram{Path: program}.ask(t.Context(), job, lease.Daemon{PipeDir: filepath.Join(dir, "0", "pipe")}, "get_server_list")
			if took := time.Since(began); !errors.Is(err, c.is) || took < c.from || took > c.to {
				t.Errorf("%v after %v", err, took)
			}
			if lines, _ := os.ReadFile(asked); len(lines) != c.asked {
				t.Errorf("asked %d times, want %d", len(lines), c.asked)
			}
		})
	}
}

// The control program gets only its three files from this process, even if other files are not close-on-exec.
//
// Contract: D1
func TestNoFileIsInherited(t *testing.T) {
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY, 0) // not close-on-exec
	must.OK(t, err)
	defer unix.Close(fd)
	program := filepath.Join(t.TempDir(), "control")
	must.OK(t, os.WriteFile(program, []byte("#!/bin/sh\nfor f in /proc/$$/fd/*; do readlink $f; done; exit 0\n"), 0o700))
	job := lease.Job{ID: 7, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	said, err := ControlProgram{Path: program}.run(t.Context(), job, lease.Daemon{PipeDir: "/nowhere"}, "")
	must.Hold(t, err == nil && strings.Count(said, "pipe:") == 3 && !strings.Contains(said, os.DevNull),
		"%v: %s", err, said)
}

// ps printed this table in a recording. Other tables are invalid.
func TestParseClients(t *testing.T) {
	table := strings.Split(`PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND        
670       2         624            GPU-5c872127-92d8-e70b    4026531836     /tmp/p/spin    
670       3         624            GPU-47c6af56-3710-e125    4026531836     /tmp/p/spin    
671       3         624            GPU-5c872127-92d8-e70b    4026531836     /tmp/p/a name`, "\n")
	rows, err := parseRows(table)
	clients := clientsOf(rows)
	want := []site.Client{{Server: 624, PID: 670}, {Server: 624, PID: 671}}
	must.Hold(t, err == nil && len(clients) == 2 && clients[0] == want[0] && clients[1] == want[1],
		"%v, %v; want %v", clients, err, want)
	if rows, err := parseRows([]string{"Server not found"}); err != nil || rows != nil {
		t.Errorf("without a server: %v, %v", rows, err)
	}
	for _, line := range []string{"no table", "1 2", "-1 2 3 x", "0 0 0", "1 2 x y"} {
		if rows, err := parseRows([]string{line}); err == nil {
			t.Errorf("%q is read as %v", line, rows)
		}
	}
}

// A later driver may add columns. The header says where they are, and a command may have spaces.
func TestTheHeaderGivesTheColumns(t *testing.T) {
	want := ClientRow{670, 624, "GPU-5c872127", "/tmp/p/a name"}
	for _, table := range []string{
		"PID ID SERVER DEVICE NAMESPACE COMMAND\n670 2 624 GPU-5c872127 4026531836 /tmp/p/a name",
		"ID PID SERVER SMS DEVICE COMMAND\n2 670 624 33 GPU-5c872127 /tmp/p/a name",
		"PID ID SERVER COMMAND DEVICE NAMESPACE\n670 2 624 /tmp/p/a name GPU-5c872127 4026531836",
		"COMMAND PID SERVER DEVICE\n/tmp/p/a name 670 624 GPU-5c872127",
	} {
		if rows, err := parseRows(strings.Split(table, "\n")); err != nil || len(rows) != 1 || rows[0] != want {
			t.Errorf("%q is read as %v, %v", table, rows, err)
		}
	}
}

// No client is hidden by a program whose name looks like a header.
func TestANameLikeAHeaderHidesNoClient(t *testing.T) {
	table := []string{
		"PID ID SERVER DEVICE NAMESPACE COMMAND", "670 2 624 GPU-1 4026531836 /tmp/a PID SERVER",
		"671 2 624 GPU-1 4026531836 PID ID SERVER DEVICE NAMESPACE COMMAND",
	}
	for _, lines := range [][]string{table, table[1:], append(slices.Clone(table), table[0])} {
		if rows, err := parseRows(lines); err != nil || len(rows) != 2 {
			t.Errorf("%q is read as %v, %v", lines, rows, err)
		}
	}
	if rows, err := parseRows(append(slices.Clone(table), "SERVER PID")); err == nil { // a name with a new line
		t.Errorf("a second header is read as %v", rows)
	}
}

// Contract: D4
func TestReadBack(t *testing.T) {
	for _, c := range []struct {
		ceiling string
		answer  string
		good    bool
	}{
		{"100", "100.0", true}, {"33.333334", "33.3|33.3", true}, {"50", "50.0|50.0", true},
		{"50", "100.0|100.0", false}, {"50", "50.0", false}, {"100", "33.3", false}, {"100", "abc", false}, {"100", "100.0|more", false},
	} {
		ceiling := whole
		if c.ceiling != "100" {
			ceiling = mustPercent(t, c.ceiling)
		}
		limits := lease.Limits{Ceiling: ceiling}
		if err := readBack(lease.Daemon{}, limits, strings.Split(c.answer, "|")); (err == nil) != c.good {
			t.Errorf("ceiling %s, answer %q: %v", c.ceiling, c.answer, err)
		}
	}
}

// Limits of memory are set and read in the places of the devices, behind the ceiling.
func TestLimitsOfMemory(t *testing.T) {
	limits := lease.Limits{Ceiling: mustPercent(t, "25"), MemoryMiB: []int{35788, 4096}}
	want := []string{
		"set_default_active_thread_percentage 25", "get_default_active_thread_percentage",
		"set_default_device_pinned_mem_limit 0 35788M", "get_default_device_pinned_mem_limit 0",
		"set_default_device_pinned_mem_limit 1 4096M", "get_default_device_pinned_mem_limit 1",
	}
	if got := configuration(limits); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for answer, good := range map[string]bool{
		"25.0|25.0|35788M|4096M": true, "25.0|25.0|35788M": false, "25.0|25.0|34G|4G": true, "25.0|25.0|35G|4G": false, "25.0|25.0|35788M|": false,
	} {
		if err := readBack(lease.Daemon{}, limits, strings.Split(answer, "|")); (err == nil) != good {
			t.Errorf("answer %q: %v", answer, err)
		}
	}
}

// Contract: D2
func TestCheckPath(t *testing.T) {
	longest := "/" + strings.Repeat("p", 106-len("/control_privileged")-1)
	must.Note(t, CheckPath(longest))
	if err := CheckPath(longest + "p"); err == nil || !strings.Contains(err.Error(), "has 107 bytes, and a socket's path has at most 106: use a shorter root") {
		t.Error(err)
	}
}

// A user's own daemon may give any answer, of any length.
func FuzzAnswers(f *testing.F) {
	f.Add("PID ID SERVER\n670 2 624 GPU-1 4026531836 /x\n100.0")
	f.Add("PID ID SERVER COMMAND DEVICE\n670 2 624 /tmp/a PID SERVER GPU-1\n100.0")
	f.Add("Cannot send command to MPS control daemon process")
	f.Add("\x00\n-1 -1 -1")
	f.Fuzz(func(t *testing.T, said string) {
		lines, err := readAnswer(said, nil)
		if err != nil {
			return
		}
		rows, err := parseRows(lines)
		for _, row := range rows {
			must.Hold(t, err != nil || row.PID > 0 && row.Server > 0, "%q gives %v", said, row)
		}
		numbered := 0 // rows that begin with a number, as each has that ps prints today
		for _, line := range lines {
			if fields := strings.Fields(line); len(fields) > 0 && strings.Trim(fields[0], "0123456789") == "" {
				numbered++
			}
		}
		must.Hold(t, err != nil || numbered <= len(rows), "%q gives only %v", said, rows)
		_ = readBack(lease.Daemon{}, lease.Limits{Ceiling: whole}, lines)
	})
}

func mustPercent(t *testing.T, s string) policy.Percent {
	t.Helper()
	p := must.Get(policy.ParsePercent(s))(t)
	return p
}

// A daemon that names more clients than any node has is not believed.
func TestTooManyClients(t *testing.T) {
	var table []string
	for pid := range maxRows + 1 {
		table = append(table, fmt.Sprintf("%d 2 624 GPU-5c872127 4026531836 x", pid+1))
	}
	if clients, err := parseRows(table[1:]); err != nil || len(clients) != maxRows {
		t.Errorf("%d clients, %v", len(clients), err)
	}
	if clients, err := parseRows(table); err == nil {
		t.Errorf("%d clients are believed", len(clients))
	}
}

func TestClients(t *testing.T) {
	for _, c := range []struct {
		files   uint64
		devices int
		want    int
	}{
		{1 << 20, 8, 60}, {16384, 16, 60}, {16383, 1, 60}, {4096, 1, 50}, {1024, 1, 12}, {1024, 4, 3}, {1024, 16, 0}, {120,
			1, 1}, {119, 1, 0}, {64, 1, 0}, {12, 1, 0},
	} {
		must.Equal(t, fmt.Sprintf("%d files, %d devices", c.files, c.devices), Clients(c.files, c.devices), c.want)
	}
}
