// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/sim/control/visible"
	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
)

// answer is the result of a command: the lines for the caller, the lines for the log (mostly the same), and the exit
// code. If later is set, another part of the daemon sends the answer when the work is done.
type answer struct {
	lines, logged []string
	code          int
	later         bool
}

// textAnswer returns an answer whose lines the caller gets and the log has as well.
func textAnswer(lines ...string) answer { return answer{lines: lines, logged: lines} }

// commands are those of control binary 13000. Extra words after a command's arguments are ignored.
var commands = map[string]func(*daemon, []string, arrival) answer{
	"start_server":                         (*daemon).startServer,
	"shutdown_server":                      (*daemon).shutdownServer,
	"quit":                                 (*daemon).quit,
	"get_server_list":                      (*daemon).serverList,
	"get_server_status":                    (*daemon).serverStatus,
	"get_client_list":                      (*daemon).clientList,
	"get_device_client_list":               (*daemon).deviceClientList,
	"ps":                                   (*daemon).processes,
	"terminate_client":                     (*daemon).terminateClient,
	"device_query":                         (*daemon).deviceQuery,
	"set_default_active_thread_percentage": (*daemon).setDefaultPercentage,
	"get_default_active_thread_percentage": (*daemon).defaultPercentage,
	"set_active_thread_percentage":         (*daemon).setPercentage,
	"get_active_thread_percentage":         (*daemon).percentage,
	"set_default_device_pinned_mem_limit":  (*daemon).setDefaultPinned,
	"get_default_device_pinned_mem_limit":  (*daemon).defaultPinned,
	"set_device_pinned_mem_limit":          (*daemon).setPinned,
	"get_device_pinned_mem_limit":          (*daemon).pinned,
	"set_default_client_priority":          (*daemon).setDefaultPriority,
	"get_default_client_priority":          (*daemon).defaultPriority,
}

// changing are the commands that only the daemon's user and root may use.
var changing = map[string]bool{
	"start_server": true, "shutdown_server": true, "quit": true, "terminate_client": true,
	"set_default_active_thread_percentage": true, "set_active_thread_percentage": true,
	"set_default_device_pinned_mem_limit": true, "set_device_pinned_mem_limit": true,
	"set_default_client_priority": true,
}

func (d *daemon) answer(words []string, a arrival) answer {
	name := ""
	if len(words) > 0 {
		name = words[0]
	}
	command, known := commands[name]
	if !known {
		return textAnswer(fmt.Sprintf("Unknown command %q", name))
	}
	if changing[name] && a.peer.UID != 0 && a.peer.UID != d.uid {
		return textAnswer(insufficient(a.peer.UID))
	}
	return command(d, words[1:], a)
}

func insufficient(uid int) string {
	return fmt.Sprintf("Insufficient privileges for UID %d. Control deamon settings can only be modified by the user "+
		"who started it or by the root user.", uid)
}

// word returns word i of a command, or "" if the command has fewer words.
func word(words []string, i int) string {
	if i < len(words) {
		return words[i]
	}
	return ""
}

// named returns the server that a command names by its pid. If there is no such server, it returns the text that
// reports this. A missing word, or one that is no number, counts as 0.
func (d *daemon) named(words []string) (*server, string) {
	pid, _ := strconv.Atoi(word(words, 0))
	s := d.alive()
	if s == nil || s.pid != pid {
		return nil, fmt.Sprintf("Server %d not found", pid)
	}
	return s, ""
}

func (d *daemon) startServer(words []string, a arrival) answer {
	uid, err := strconv.Atoi(word(words, 1))
	if word(words, 0) != "-uid" || err != nil {
		return textAnswer("A user id (UID) is required to start a new server")
	}
	if a.peer.UID != 0 && a.peer.UID != uid {
		return textAnswer(insufficient(a.peer.UID))
	}
	if d.alive() == nil {
		d.reply(a.conn, nil, 0) // before the server is ready: 4 ms were measured, and 140 ms until it is ready
		d.start(uid)
		return answer{later: true}
	}
	return answer{}
}

func (d *daemon) shutdownServer(words []string, _ arrival) answer {
	s, missing := d.named(words)
	if s == nil {
		return textAnswer(missing)
	}
	s.shutdown() // the daemon logs the end of the server when the server ends
	return answer{}
}

func (d *daemon) serverList(_ []string, _ arrival) answer {
	if s := d.alive(); s != nil {
		return textAnswer(strconv.Itoa(s.pid))
	}
	return answer{}
}

func (d *daemon) serverStatus(words []string, _ arrival) answer {
	if len(words) == 0 {
		return textAnswer("A server PID is required")
	}
	s, missing := d.named(words)
	if s == nil {
		return textAnswer(missing)
	}
	return textAnswer(s.lines("status")...)
}

func (d *daemon) clientList(words []string, _ arrival) answer {
	s, missing := d.named(words)
	if s == nil {
		return textAnswer(missing)
	}
	return textAnswer(s.lines("clients")...)
}

func (d *daemon) deviceClientList(words []string, _ arrival) answer {
	s := d.alive()
	if len(words) > 0 {
		var missing string
		if s, missing = d.named(words); s == nil {
			return textAnswer(missing)
		}
	}
	if s == nil {
		return answer{}
	}
	return textAnswer(s.lines("device clients")...)
}

func (d *daemon) processes(words []string, _ arrival) answer {
	s := d.alive()
	if word(words, 0) == "-p" {
		asked, missing := d.named(words[1:])
		switch {
		case asked == nil && s == nil:
			return textAnswer(missing, missing)
		case asked == nil:
			return textAnswer(missing, missing, "")
		}
	}
	if s == nil {
		return textAnswer("Server not found")
	}
	return textAnswer(s.lines("processes")...)
}

// terminateClient waits until the client agrees. If the client is stopped, it waits for ever, and every other caller
// waits as well.
func (d *daemon) terminateClient(words []string, _ arrival) answer {
	s, missing := d.named(words)
	if s == nil {
		return textAnswer(missing, missing+"!", "1")
	}
	d.terminated = true
	return textAnswer(s.lines("terminate " + word(words, 1))...)
}

func (d *daemon) setDefaultPercentage(words []string, _ arrival) answer {
	d.defaults.setPercentage(word(words, 0))
	return textAnswer(shown(d.defaults.percentage))
}

func (d *daemon) defaultPercentage(_ []string, _ arrival) answer {
	return textAnswer(shown(d.defaults.percentage))
}

func (d *daemon) setPercentage(words []string, _ arrival) answer {
	s, missing := d.named(words)
	if s == nil {
		return textAnswer(missing)
	}
	return textAnswer(s.lines("percentage " + word(words, 1))...)
}

func (d *daemon) percentage(words []string, _ arrival) answer {
	s, missing := d.named(words)
	if s == nil {
		return textAnswer(missing)
	}
	return textAnswer(s.lines("percentage")...)
}

func (d *daemon) setDefaultPinned(words []string, _ arrival) answer {
	d.defaults.setPinned(word(words, 0), word(words, 1))
	return answer{logged: []string{fmt.Sprintf("set_default_device_pinned_mem_limit %s.", strings.Join(words, " "))}}
}

func (d *daemon) defaultPinned(words []string, _ arrival) answer {
	if len(words) == 0 {
		return answer{logged: []string{"Invalid command format."}}
	}
	value, set := d.defaults.pinned[words[0]]
	if !set {
		return answer{logged: []string{"No default pinned memory limit set for the device!"}}
	}
	return textAnswer(inGiB(value))
}

// inGiB returns a limit of MiB as the daemon prints it: whole GiB, rounded down (measured on an H200: 71577M is 69G).
func inGiB(limit string) string {
	mib, inMiB := strings.CutSuffix(limit, "M")
	n, err := strconv.Atoi(mib)
	if !inMiB || err != nil || n < 1024 {
		return limit
	}
	return strconv.Itoa(n/1024) + "G"
}

func (d *daemon) setPinned(words []string, _ arrival) answer {
	s, missing := d.named(words)
	if s == nil {
		return textAnswer(missing)
	}
	s.request("pinned " + word(words, 1) + " " + word(words, 2))
	return answer{}
}

func (d *daemon) pinned(words []string, _ arrival) answer {
	s, missing := d.named(words)
	if s == nil {
		return textAnswer(missing)
	}
	value := s.request("pinned " + word(words, 1))
	if value == "none" {
		return answer{logged: []string{"No pinned memory limit set for the device!"}}
	}
	return textAnswer(value)
}

func (d *daemon) setDefaultPriority(words []string, _ arrival) answer {
	priority, err := strconv.Atoi(word(words, 0))
	if err != nil || priority < 0 || priority > 1 {
		return textAnswer("Invalid priority value - must be 0 or 1!")
	}
	d.defaults.priority = priority
	return answer{}
}

func (d *daemon) defaultPriority(_ []string, _ arrival) answer {
	return textAnswer(strconv.Itoa(d.defaults.priority))
}

func (d *daemon) deviceQuery(words []string, _ arrival) answer {
	form, asked := table, words[:0:0]
	for _, w := range words {
		if w == "--csv" {
			form = csv
			continue
		}
		asked = append(asked, w)
	}
	s := d.alive()
	if len(asked) > 0 {
		if named, missing := d.named(asked); named == nil {
			return textAnswer(missing)
		}
	}
	lines := append([]string{"Default"}, form(d.devices)...)
	if s != nil {
		lines = append(append(lines, "", fmt.Sprintf("Server %d", s.pid)), form(d.devices)...)
	}
	return textAnswer(lines...)
}

func table(devices []visible.Device) []string {
	const row = "%-15s %-14s %-41s %-33s %s"
	lines := []string{fmt.Sprintf(row, "Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes")}
	for i, device := range devices {
		lines = append(lines, fmt.Sprintf(row, strconv.Itoa(i), position(device), device.UUID, device.Name, "N/A"))
	}
	return lines
}

func csv(devices []visible.Device) []string {
	lines := []string{"Device Ordinal,PCI IDs,UUID,Name,Attributes"}
	for i, device := range devices {
		lines = append(lines, fmt.Sprintf("%d,%s,%s,%s,N/A", i, position(device), device.UUID, device.Name))
	}
	return lines
}

// position returns "0000:00.06.00" for NVML's bus id "00000000:00:06.0".
func position(device visible.Device) string {
	var domain, bus, slot, function int
	if _, err := fmt.Sscanf(device.BusID, "%x:%x:%x.%x", &domain, &bus, &slot, &function); err != nil {
		return device.BusID
	}
	return fmt.Sprintf("%04x:%02x.%02x.%02x", domain, bus, slot, function)
}

// errUnsent means that the daemon closed the connection before it had read the command.
var errUnsent = errors.New("the daemon did not take the command")

// converse sends each line of stdin to the daemon and prints the answers in order. It returns the exit code of the
// last command. It returns 1 if the daemon cannot be reached or rejects the caller. An error text in an answer does
// not change the exit code.
func converse(pipe string, stdin io.Reader, stdout, stderr io.Writer) int {
	conn, err := wire.Dial(filepath.Join(pipe, "control"))
	if err != nil {
		fmt.Fprintln(stderr, "Cannot find MPS control daemon process")
		return 1
	}
	defer conn.Close()
	code, err := 0, conn.Send("ui")
	for lines := bufio.NewScanner(stdin); err == nil && lines.Scan(); {
		code, err = ask(conn, lines.Text(), stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "Cannot send command to MPS control daemon process")
		return 1
	}
	return code
}

// ask sends one command and prints its answer. If the daemon closes the connection without an answer, nothing is
// printed and the exit code is 0.
func ask(conn wire.Conn, command string, stdout io.Writer) (code int, err error) {
	if err := conn.Send("command " + command); err != nil {
		return 1, errUnsent
	}
	for {
		packet, _, err := conn.Receive()
		if wire.Reset(err) {
			return 1, errUnsent
		}
		if err != nil {
			return 0, nil
		}
		word, rest, _ := strings.Cut(packet, " ")
		if word == "end" {
			return strconv.Atoi(rest)
		}
		fmt.Fprintln(stdout, rest)
	}
}
