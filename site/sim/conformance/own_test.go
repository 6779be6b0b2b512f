// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A user needs no root: his daemon in a folder that only he may search serves his own clients. A client of another user
// gets no error there. It computes without MPS.
func TestPrivateFolder(t *testing.T) {
	alone(t)
	needsRoot(t)
	d := directories(t, under(t).uid)
	must.OK(t, os.Chmod(d.dir, 0o700))
	must.OK(t, os.Chown(d.dir, d.uid, d.uid))
	d.again()
	server := d.server()
	if under(t).node != nil {
		withoutMPS(t)
	}
	own := d.neighbour()
	if other := read(t, d.clientOf(d.uid+1, nil, "info")); other.err != 0 {
		t.Errorf("a client of another user: %+v", other)
	}
	clients := strings.Fields(d.ask(fmt.Sprintf("get_client_list %d", server)))
	if len(clients) != 1 || !strings.HasPrefix(own.line(0), "pid="+clients[0]+" ") {
		t.Errorf("clients %q, the user's own client is %q", clients, own.line(0))
	}
	own.survives("a client of another user")
	if out := d.tell("quit", answerDeadline); out.code != 0 {
		t.Errorf("quit: %+v", out)
	}
	if under(t).node == nil {
		return
	}
	if list := withoutMPS(t); len(list) != 1 || list[0] == clients[0] {
		t.Errorf("contexts without MPS: %q, want that of the other user alone", list)
	}
}

// withoutMPS returns the pids of the processes that have computed without MPS since the last call. On a real machine
// no one knows them.
func withoutMPS(t *testing.T) []string {
	t.Helper()
	path := filepath.Join(under(t).node.Dir, "without_mps")
	text := must.Get(os.ReadFile(path))(t)
	must.OK(t, os.Truncate(path, 0))
	return strings.Fields(string(text))
}

// What a daemon and its server do with a signal that ends other programs. No recording has it, so knobs choose.
func TestSignals(t *testing.T) {
	alone(t)
	onlySimulated(t, "it was not measured")
	all := []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}
	for _, s := range all { // a signal that this process ignores, as below nohup, would be ignored by its children
		caught := make(chan os.Signal, 1)
		signal.Notify(caught, s)
		defer signal.Stop(caught)
	}
	t.Run("each ends the daemon", func(t *testing.T) {
		for _, s := range all {
			d := start(t)
			server, pid := d.server(), d.pid()
			syscall.Kill(pid, s)
			eventually(t, "daemon and server are gone", answerDeadline, func() bool { return !alive(pid) && !alive(server) })
			must.Equal(t, fmt.Sprintf("%v: the daemon has removed its files", s), d.pid(), pid)
		}
	})
	t.Run("each ends the server", func(t *testing.T) {
		for _, s := range all {
			d := start(t)
			server := d.server()
			client := d.spin(nil, "-ms", "1", "-for", "15")
			syscall.Kill(server, s)
			client.fails(s.String(), 806)
		}
	})
	t.Run("ignored", func(t *testing.T) {
		fault(t, "daemon_ignores", "TERM INT HUP")
		fault(t, "server_ignores", "TERM HUP INT\n")
		d := start(t)
		server := d.server()
		client := d.neighbour()
		for _, s := range all {
			syscall.Kill(d.pid(), s)
			syscall.Kill(server, s)
		}
		time.Sleep(faultDelay)
		if got := d.servers(); len(got) != 1 || got[0] != server {
			t.Errorf("servers %v, want %d", got, server)
		}
		client.survives("signals")
	})
	t.Run("ignored at the start", func(t *testing.T) {
		d := directories(t, under(t).uid)
		out := under(t).command(d.environment, d.uid, "sh", "-c", "trap '' TERM INT HUP; exec "+under(t).control+" -d").run()
		must.Have(t, out.code == 0, "-d: %+v", out)
		server := d.server()
		client := d.neighbour()
		for _, s := range all {
			syscall.Kill(d.pid(), s)
			syscall.Kill(server, s)
		}
		client.survives("signals")
	})
	t.Run("quit", func(t *testing.T) {
		fault(t, "daemon_quits_on", "TERM")
		d := start(t)
		server, pid := d.server(), d.pid()
		client := d.spin(nil, "-ms", "1", "-for", "15")
		syscall.Kill(pid, syscall.SIGTERM)
		eventually(t, "daemon and server are gone", answerDeadline, func() bool { return !alive(pid) && !alive(server) })
		client.fails("quit", 806)
		must.Hold(t, d.pid() == 0, "the pid file is left")
	})
}
