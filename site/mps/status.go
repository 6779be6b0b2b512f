// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// State is a daemon's report. The daemon is the user's own process, so the user may have made up all of it.
type State struct {
	Ceiling float64  // the percentage of servers that start from now on, with one decimal
	Servers []Server // one at most, for the daemons that this package starts
	Clients []ClientRow
}

// Server is a server, as the daemon reports it.
type Server struct {
	PID     int     `json:"pid"`
	Status  string  `json:"status"`  // INITIALIZING, ACTIVE or FAULT
	Percent float64 `json:"percent"` // of clients that connect from now on, with one decimal
	// MemoryLimits are like "4G", in the order of the daemon's devices; "" for none.
	MemoryLimits []string `json:"memory_limits"`
}

// ClientRow is a line of ps: a client on a device.
type ClientRow struct {
	PID, Server int
	Device      string // the beginning of a UUID, cut at 22 characters (recorded)
	Command     string // printable
}

// readDeadline bounds all questions to one daemon, after the wait for the lock. It is shorter than other deadlines,
// because a reader must not delay an epilog: that waits 2 s for the lock and then asks without it.
const readDeadline = 2 * time.Second

// errShape is an answer of an unexpected form. Parts of it were dropped, or the daemon made it up.
var errShape = errors.New("unexpected answer")

// maxServers limits the questions. One user's daemon has one server, but its answer may be endless.
const maxServers = 8

// State asks a daemon for its state, servers and clients, and changes nothing. The error wraps site.ErrDaemonDown, or
// site.ErrNoAnswer if there was no answer within 2 s.
func (c ControlProgram) State(ctx context.Context, job lease.Job, d lease.Daemon) (State, error) {
	defer serialise(ctx, d, 0)()
	ctx, cancel := context.WithTimeout(ctx, readDeadline)
	defer cancel()
	for try := 1; ; try++ {
		state, err := c.state(ctx, job, d)
		if !errors.Is(err, errShape) || try == askTries || !wait.Sleep(ctx, 5*time.Millisecond) {
			return state, err
		}
	}
}

func (c ControlProgram) state(ctx context.Context, job lease.Job, d lease.Daemon) (State, error) {
	answer, err := c.askUntilAnswered(ctx, askTries, job, d, []string{"get_default_active_thread_percentage", "get_server_list"})
	if err != nil {
		return State{}, err
	}
	state, err := parseServers(answer)
	if err != nil || len(state.Servers) == 0 {
		return state, err
	}
	answer, err = c.askUntilAnswered(ctx, askTries, job, d, questions(state.Servers, len(d.Devices)))
	if err != nil {
		return State{}, err
	}
	return state, state.parse(answer, len(d.Devices))
}

// questions asks for all servers at once. A limit that is not set gives no line, so each is followed by a question
// that always has an answer, of another form.
func questions(servers []Server, devices int) []string {
	var lines []string
	for _, s := range servers {
		lines = append(lines, fmt.Sprintf("get_server_status %d", s.PID), fmt.Sprintf("get_active_thread_percentage %d", s.PID))
		for device := range devices {
			lines = append(lines, fmt.Sprintf("get_device_pinned_mem_limit %d %d", s.PID, device), fmt.Sprintf("get_server_status %d", s.PID))
		}
	}
	return append(lines, "ps", "get_default_active_thread_percentage")
}

// parseServers reads the answer to the first request.
func parseServers(answer []string) (State, error) {
	c := cursor{lines: answer}
	state := State{Ceiling: c.percent()}
	for c.err == nil && len(c.lines) > 0 {
		pid, err := strconv.Atoi(strings.TrimSpace(c.next()))
		if err != nil || pid <= 0 || len(state.Servers) == maxServers {
			return State{}, fmt.Errorf("cannot read list of servers: %w %q", errShape, answer[:min(len(answer), maxServers+2)])
		}
		state.Servers = append(state.Servers, Server{PID: pid})
	}
	return state, c.err
}

// parse reads the answer to the second request.
func (s *State) parse(answer []string, devices int) error {
	c := cursor{lines: answer}
	for i := range s.Servers {
		server := &s.Servers[i]
		server.Status, server.Percent = c.status(), c.percent()
		for range devices {
			server.MemoryLimits = append(server.MemoryLimits, c.limit())
			c.status()
		}
	}
	if c.err != nil {
		return c.err
	}
	if len(c.lines) == 0 {
		return fmt.Errorf("cannot read list of clients: %w: it is empty", errShape)
	}
	rows, err := parseRows(c.lines[:len(c.lines)-1])
	s.Clients = rows
	return err
}

// cursor iterates over the lines of an answer. After the first error it returns no more lines.
type cursor struct {
	lines []string
	err   error
}

func (c *cursor) next() string {
	if c.err != nil || len(c.lines) == 0 {
		c.fail("the end")
		return ""
	}
	line := c.lines[0]
	c.lines = c.lines[1:]
	return line
}

func (c *cursor) fail(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("cannot read answer of daemon: %w: %.80q", errShape, what)
	}
}

func (c *cursor) percent() float64 {
	line := c.next()
	value, err := strconv.ParseFloat(line, 64)
	if err != nil || !(value >= 0 && value <= 100) {
		c.fail(line)
	}
	return value
}

// isStatus reports whether a line has the form of a server's status, such as ACTIVE.
func isStatus(line string) bool {
	return len(line) >= 2 && len(line) <= 32 && strings.Trim(line, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == ""
}

func (c *cursor) status() string {
	line := c.next()
	if !isStatus(line) {
		c.fail(line)
	}
	return line
}

// isAmount reports whether a line has the form of a memory limit, such as 4G.
func isAmount(line string) bool {
	digits := strings.TrimSuffix(line, "B")
	if unit := len(digits) - 1; unit > 0 && strings.ContainsRune("KMGT", rune(digits[unit])) {
		digits = digits[:unit]
	}
	return digits != "" && len(digits) <= 20 && strings.Trim(digits, "0123456789") == ""
}

// limit returns "" if the next line is the status that follows.
func (c *cursor) limit() string {
	if len(c.lines) > 0 && isAmount(c.lines[0]) {
		return c.next()
	}
	return ""
}

// maxRows is above the rows of one node's servers: 60 clients on each of 16 GPUs.
const maxRows = 1024

// columns are the columns of the table that ps prints, unless its header names others:
//
//	PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND
//	670       2         624            GPU-5c872127-92d8-e70b    4026531836     /tmp/p/spin
var columns = []string{"PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"}

// parseRows reads the table that ps prints, a row for each client and device. A header has no numbers, and only the first
// one counts. So no program hides a row by a name that looks like a header.
func parseRows(table []string) (rows []ClientRow, err error) {
	var header []string
	for _, line := range table {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "Server ") && strings.HasSuffix(line, "not found") {
			continue
		}
		isNumber := func(field string) bool { _, err := strconv.Atoi(field); return err == nil }
		numbers := slices.ContainsFunc(fields, isNumber)
		names := !numbers && slices.Contains(fields, "PID") && slices.Contains(fields, "SERVER") // the columns
		if names && (header == nil || slices.Equal(fields, header)) {
			header = fields
			continue
		}
		if header == nil {
			header = columns
		}
		row, ok := parseRow(header, fields)
		if !ok || len(rows) == maxRows {
			return nil, fmt.Errorf("cannot read list of clients: %w: line %d: %s", errShape, len(rows)+1, excerpt(line))
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// parseRow reads a row of a table with this header. A command may have spaces, so the columns after it are counted from
// the end.
func parseRow(header, fields []string) (row ClientRow, ok bool) {
	value := func(column string) string {
		i, command := slices.Index(header, column), slices.Index(header, "COMMAND")
		if command >= 0 && i > command {
			i += len(fields) - len(header)
		}
		if i < 0 || i >= len(fields) {
			return ""
		}
		if i == command {
			return strings.Join(fields[i:max(i, len(fields)-(len(header)-1-i))], " ")
		}
		return fields[i]
	}
	row = ClientRow{Device: printable(value("DEVICE"), 40), Command: printable(value("COMMAND"), 80)}
	var err1, err2 error
	row.PID, err1 = strconv.Atoi(value("PID"))
	row.Server, err2 = strconv.Atoi(value("SERVER"))
	return row, err1 == nil && err2 == nil && row.PID > 0 && row.Server > 0
}

// printable makes text from a user safe for a terminal, with a maximum length.
func printable(text string, maxLength int) string {
	runes := []rune(words.Printable(text))
	return string(runes[:min(len(runes), maxLength)])
}
