// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// stay starts a client that stops at a stage and stays there. When stay returns, the client is at this stage.
func (d *daemon) stay(stage string, variables ...string) *spinner {
	d.t.Helper()
	s := d.run(variables, "stay", stage, "20")
	eventually(d.t, "a client is at its stage", answerDeadline, func() bool { return s.line(0) != "" })
	if !strings.Contains(s.line(0), fmt.Sprintf("stays at %s err=0 ", stage)) {
		d.t.Fatalf("client: %q", s.line(0))
	}
	return s
}

// opened counts the driver's files that a process has open, by their names without the folder.
func opened(pid int) map[string]int {
	found := map[string]int{}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		to, _ := os.Readlink(link)
		if at := strings.LastIndex(to, "/dev/nvidia"); at >= 0 {
			found[to[at+len("/dev/"):]]++
		}
	}
	return found
}

// After cuInit a process has the driver's files open, with MPS and without. A process that has only loaded the
// library has none of them open. The library is mapped at each stage.
func TestWhatAProcessOpens(t *testing.T) {
	alone(t)
	d := start(t, "CUDA_VISIBLE_DEVICES="+under(t).gpus[0])
	d.server()
	for _, c := range []struct {
		stage string
		opens bool
	}{{"load", false}, {"init", true}, {"context", true}} {
		for _, pipe := range []string{d.pipe(), "/nonexistent"} {
			s := d.stay(c.stage, "CUDA_MPS_PIPE_DIRECTORY="+pipe)
			files := opened(s.pid())
			gpus := 0
			for name := range files {
				if rest := strings.TrimPrefix(name, "nvidia"); rest != "" && strings.Trim(rest, "0123456789") == "" {
					gpus++
				}
			}
			if got := []bool{gpus > 0, files["nvidiactl"] > 0, files["nvidia-uvm"] > 0}; got[0] != c.opens || got[1] != c.opens || got[2] != c.opens {
				t.Errorf("%s, pipe folder %s: %v", c.stage, pipe, files)
			}
			maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", s.pid()))
			if !strings.Contains(string(maps), "/libcuda.so") {
				t.Errorf("%s: libcuda is not mapped", c.stage)
			}
			s.signal(syscall.SIGKILL)
			s.end()
		}
	}
}

// The server's log names every client after its cuInit, and no other process. The list of clients names a client
// after its first context.
func TestClientsAreLogged(t *testing.T) {
	alone(t)
	d := start(t)
	server := d.server()
	for _, c := range []struct {
		stage          string
		mps            bool
		logged, listed bool
	}{{"load", true, false, false}, {"init", true, true, false}, {"context", true, true, true}, {"context", false, false, false}} {
		var variables []string
		if !c.mps {
			variables = []string{"CUDA_MPS_PIPE_DIRECTORY=/nonexistent"}
		}
		s := d.stay(c.stage, variables...)
		line := fmt.Sprintf("Client {PID: %d, Context ID: 0} connected", s.pid())
		logged := func() bool { return strings.Contains(d.log("server.log"), line) }
		if c.logged {
			eventually(t, "server.log has "+line, soon, logged)
		} else if logged() {
			t.Errorf("%+v: logged", c)
		}
		list := strings.Fields(d.ask(fmt.Sprintf("get_client_list %d", server)))
		if got := len(list) == 1 && list[0] == fmt.Sprint(s.pid()); got != c.listed {
			t.Errorf("%+v: listed %v: %q", c, got, list)
		}
		s.signal(syscall.SIGKILL)
		s.end()
		eventually(t, "get_client_list lists no client", answerDeadline, func() bool { return d.ask(fmt.Sprintf("get_client_list %d", server)) == "" })
	}
}

// A fault lasts until every process that it hit has ended. Until then new clients get 807 at once, and the log has
// the reason. After that the same server serves new clients.
func TestAFaultLastsAsLongAsItsClients(t *testing.T) {
	alone(t)
	d, server, victim, neighbour := beside(t, "-ms", "1", "-hold", "60")
	d.client(nil, "fault")
	neighbour.fails("illegal access", 700)
	eventually(t, "the victim has its error", answerDeadline, func() bool { return strings.Contains(victim.line(1), " err=700 ") })
	for range 3 {
		must.Equal(t, "status", d.ask(fmt.Sprintf("get_server_status %d", server)), "FAULT")
		if got := d.info(); got.err != 807 {
			t.Errorf("new client: %+v", got)
		}
	}
	log := d.log("server.log")
	_, sticky, _ := strings.Cut(log, "The following client process have a sticky error set:\n")
	if want := fmt.Sprintf("] %d\n", victim.pid()); !strings.Contains(sticky, want) {
		t.Errorf("server.log lacks %q after the first line of the list:\n%s", want, sticky)
	}
	for _, want := range []string{"Server teardown in progress. Refusing to accept new client {PID: ", "Context ID: 0} with status 807\n"} {
		if got := strings.Count(log, want); got < 3 {
			t.Errorf("server.log has %q %d times", want, got)
		}
	}
	victim.signal(syscall.SIGKILL)
	eventually(t, "new clients work", soon, func() bool { return d.info().err == 0 })
	must.Equal(t, "status", d.ask(fmt.Sprintf("get_server_status %d", server)), "ACTIVE")
	if line := fmt.Sprintf("Client process %d disconnected\n", victim.pid()); !strings.Contains(d.log("server.log"), line) {
		t.Errorf("server.log lacks %q", line)
	}
}
