// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// The recorded answers of an H200 to one sequence of questions.
func TestParseState(t *testing.T) {
	state, err := parseServers([]string{"100.0", "624"})
	if err != nil || !slices.EqualFunc(state.Servers, []Server{{PID: 624}}, func(a, b Server) bool { return a.PID == b.PID }) {
		t.Fatalf("%+v, %v", state, err)
	}
	if got, want := strings.Join(questions(state.Servers, 2),
		"|"), "get_server_status 624|get_active_thread_percentage 624|get_device_pinned_mem_limit 624 0|get_server_status 624|get_device_pinned_mem_limit 624 1|get_server_status 624|ps|get_default_active_thread_percentage"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	answer := strings.Split(`ACTIVE
33.3
ACTIVE
3G
ACTIVE
PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND
670       2         624            GPU-5c872127-92d8-e70b    4026531836     /tmp/p/spin
671       3         624            GPU-47c6af56-3710-e125    4026531836     /tmp/p/a `+"\x1b[31mname"+`
100.0`, "\n")
	want := State{
		Ceiling: 100,
		Servers: []Server{{PID: 624, Status: "ACTIVE", Percent: 33.3, MemoryLimits: []string{"", "3G"}}},
		Clients: []ClientRow{{670, 624, "GPU-5c872127-92d8-e70b", "/tmp/p/spin"}, {671, 624, "GPU-47c6af56-3710-e125", "/tmp/p/a ?[31mname"}},
	}
	if err := state.parse(answer, 2); err != nil || !reflect.DeepEqual(state, want) {
		t.Errorf("got  %+v, %v\nwant %+v", state, err, want)
	}
}

// A made-up or incomplete answer is refused.
func TestParseStateRefuses(t *testing.T) {
	for _, answer := range []string{"", "abc", "-1", "101", "NaN", "100.0|x", "100.0|-5", "100.0|0", "100.0|1|2|3|4|5|6|7|8|9"} {
		if state, err := parseServers(lines(answer)); !errors.Is(err, errShape) {
			t.Errorf("%q is read as %+v, %v", answer, state, err)
		}
	}
	for _, answer := range []string{
		"", "ACTIVE", "active|100.0|100.0", "Server 624 not found|Server 624 not found|100.0", "ACTIVE|100.0|4G", "ACTIVE|100.0|4G|100.0",
		"ACTIVE|100.0|ACTIVE", "ACTIVE|100.0|ACTIVE|rubbish|100.0", "ACTIVE|1000|ACTIVE|100.0",
	} {
		state := State{Servers: []Server{{PID: 624}}}
		if err := state.parse(lines(answer), 1); !errors.Is(err, errShape) {
			t.Errorf("%q is read as %+v, %v", answer, state, err)
		}
	}
}

func lines(answer string) []string {
	if answer == "" {
		return nil
	}
	return strings.Split(answer, "|")
}

func FuzzState(f *testing.F) {
	f.Add("100.0\n624", "ACTIVE\n100.0\n4G\nACTIVE\n670 2 624 GPU-1 4026531836 /x\n100.0")
	f.Add("33.3", "")
	f.Add("1e1\n1\n2", "\x00\nACTIVE")
	f.Fuzz(func(t *testing.T, first, second string) {
		state, err := parseServers(strings.Split(first, "\n"))
		if err != nil {
			return
		}
		if err := state.parse(strings.Split(second, "\n"), 1); err != nil {
			return
		}
		for _, row := range state.Clients {
			if row.PID <= 0 || row.Server <= 0 || strings.ContainsAny(row.Command+row.Device, "\x00\x1b\n\r") {
				t.Errorf("%q, %q gives %+v", first, second, row)
			}
		}
		for _, s := range state.Servers {
			if s.PID <= 0 || !(s.Percent >= 0 && s.Percent <= 100) || !isStatus(s.Status) {
				t.Errorf("%q, %q gives %+v", first, second, s)
			}
		}
	})
}

// The running file decides the role. The arguments count only if the file cannot be read.
func TestRoleOf(t *testing.T) {
	for _, c := range []struct {
		file, line string
		want       role
	}{
		{"nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", RoleDaemon},
		{"nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-control -f", RoleDaemon},
		{"nvidia-cuda-mps-control", "nvidia-cuda-mps-control", RoleQuery},
		{"nvidia-cuda-mps-server", "nvidia-cuda-mps-server", RoleServer},
		{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server", RoleQuery},
		{"", "/opt/nvidia-cuda-mps-server", RoleServer},
		{"", "nvidia-cuda-mps-control -d", RoleDaemon},
		{"", "", RoleQuery},
	} {
		must.Equal(t, fmt.Sprintf("%s, %q", c.file, c.line), roleOf(c.file, strings.Fields(c.line)), c.want)
	}
}

// FindAll lists a process that only has the name of a server, and IsServerOf refuses it.
func TestCensusOfAnImpostor(t *testing.T) {
	all := must.Get(FindAll(t.Context()))(t)
	self := must.Get(proc.Current())(t)
	if slices.ContainsFunc(all, func(p Process) bool { return p.Process == self }) {
		t.Error("FindAll lists this process, which is not of MPS")
	}
	impostor := Process{Process: self, Parent: os.Getppid(), Role: RoleServer}
	if IsServerOf(impostor, proc.Process{PID: os.Getppid(), Start: 1}) {
		t.Error("a child of another process is taken for a server")
	}
}

func TestTheFormsOfAnAnswer(t *testing.T) {
	for line, want := range map[string][2]bool{ // a status, an amount
		"ACTIVE": {true, false}, "IN_FAULT": {true, false}, "A": {false, false}, "active": {false, false}, "": {false, false},
		"4G": {false, true}, "4096": {false, true}, "12MB": {false, true}, "0B": {false, true}, "G": {false, false}, "4GG": {false, false},
		"4 G": {false, false}, "B": {false, false}, "KB": {true, false}, "-1": {false, false}, "123456789012345678901": {false, false},
		strings.Repeat("A", 33): {false, false},
	} {
		must.Equal(t, fmt.Sprintf("%q: a status, an amount", line), [2]bool{isStatus(line), isAmount(line)}, want)
	}
}
