// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// If the pipe directory is missing or not searchable, CUDA starts without MPS and prints nothing.
func TestSilentWithoutMPS(t *testing.T) {
	alone(t)
	d := directories(t, under(t).uid)
	for _, pipe := range []string{d.pipe(), "/nonexistent", "/tmp/" + strings.Repeat("x", 200)} {
		if got := d.info("CUDA_MPS_PIPE_DIRECTORY=" + pipe); got.err != 0 || got.sms == 0 {
			t.Errorf("%s: %+v", pipe, got)
		}
	}
}

// A daemon that user U runs serves only U. Another user who can reach the pipe directory gets error 805, and root
// gets it too. A user who cannot reach the pipe directory runs without MPS.
func TestForeignUsers(t *testing.T) {
	alone(t)
	needsRoot(t)
	if under(t).uid == 0 {
		t.Skip("needs a daemon of an ordinary user: CONFORMANCE_UID")
	}
	d := start(t)
	d.server()
	for _, uid := range []int{0, d.uid + 1} {
		if got := read(t, d.clientOf(uid, nil, "info")); got.err != 805 {
			t.Errorf("user %d: %+v", uid, got)
		}
	}
	must.OK(t, os.Chmod(d.pipe(), 0o700))
	if got := read(t, d.clientOf(d.uid+1, nil, "info")); got.err != 0 {
		t.Errorf("without access: %+v", got)
	}
	if out := d.tell("quit", answerDeadline); out.code != 0 {
		t.Errorf("quit after foreign users were refused: rc %d", out.code)
	}
}

// In EXCLUSIVE_PROCESS the server holds the GPU. A client of MPS can use the GPU, and a client without MPS gets error
// 46. If no server runs, the first process gets the GPU, and then the server cannot get it.
func TestExclusiveProcess(t *testing.T) {
	alone(t)
	onlySimulated(t, "this suite does not change the compute mode of a real GPU")
	gpu := under(t).node.GPU(0)
	must.OK(t, gpu.SetMode(3))
	t.Cleanup(func() { gpu.SetMode(0) })
	d := start(t)
	d.server()
	if got := d.info(); got.err != 0 {
		t.Errorf("client of MPS: %+v", got)
	}
	if got := d.info("CUDA_MPS_PIPE_DIRECTORY=/nonexistent"); got.err != 46 {
		t.Errorf("client without MPS: %+v", got)
	}
	d.ask("quit")
	holder := d.spin(nil, "-ms", "0", "-for", "10")
	if got := d.info(); got.err != 46 {
		t.Errorf("second process: %+v", got)
	}
	d.again()
	if got := d.info(); got.err == 0 {
		t.Errorf("client of a server that starts while a process holds the GPU: %+v", got)
	}
	holder.signal(syscall.SIGKILL)
}

// A client can lower the server's percentage and cannot raise it. set_* applies to clients that start later.
// set_default_* applies to servers that start later. Decimals are kept: 33.333334 gives 44 SMs of 132.
func TestPercentageOfServer(t *testing.T) {
	alone(t)
	d := start(t)
	server := d.server()
	whole := d.info().sms
	share := func(percentage float64) int { return int(float64(whole)*percentage/100/2) * 2 }
	expect := func(what string, want int, variables ...string) {
		t.Helper()
		if got := d.info(variables...); got.err != 0 || got.sms != want {
			t.Errorf("%s: %+v, not %d SMs", what, got, want)
		}
	}
	d.ask("set_default_active_thread_percentage 33.333334")
	expect("default set after the server's start", whole)
	must.Equal(t, "set_active_thread_percentage", d.ask(fmt.Sprintf("set_active_thread_percentage %d 50", server)), "50.0")
	expect("server 50", share(50))
	expect("server 50, client 80", share(50), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=80")
	expect("server 50, client 20", share(20), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20")
	d.ask(fmt.Sprintf("shutdown_server %d", server))
	expect("next server, default 33.333334", share(33.333334))
}

// A client's memory limit names the device by ordinal or by UUID. If a client's list names a device that the process
// does not see, every limit in the list is dropped. The daemon's default applies to servers that start later. A
// default that names the device by UUID has no effect.
func TestMemoryLimit(t *testing.T) {
	alone(t)
	d := start(t, "CUDA_VISIBLE_DEVICES="+under(t).gpus[0])
	server := d.server()
	limited := func(what string, want bool, variables ...string) {
		t.Helper()
		got := d.info(variables...)
		must.Hold(t, got.err == 0 && (got.free < 2048) == want, "%s: %+v", what, got)
	}
	const variable = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="
	limited("none", false)
	limited("0=2G", true, variable+"0=2G")
	limited("UUID", true, variable+under(t).gpus[0]+"=2G")
	limited("an invisible device in the list", false, variable+"0=2G,9=2G")
	set := "set_default_device_pinned_mem_limit " + under(t).gpus[0] + " 2G\nget_default_device_pinned_mem_limit 0"
	must.Equal(t, "default by UUID", d.ask(set), "")
	if got := d.ask("set_default_device_pinned_mem_limit 0 2G\nget_default_device_pinned_mem_limit 0"); got != "2G" {
		t.Errorf("default: %q", got)
	}
	if got := d.ask("set_default_device_pinned_mem_limit 0 71577M\nget_default_device_pinned_mem_limit 0\nset_default_device_pinned_mem_limit 0 2G"); got != "69G" {
		t.Errorf("default in MiB: %q", got)
	}
	limited("default set after the server's start", false)
	d.ask(fmt.Sprintf("shutdown_server %d", server))
	limited("next server", true)
	if out := d.client(nil, "alloc", "4096"); !strings.Contains(out.stdout, "err=2(") {
		t.Errorf("4096 MiB of 2048: %q", out.stdout)
	}
}

// If a client asks for more memory than the GPU has, or than the client's limit, the request fails. The neighbours of
// this client are not affected.
func TestOutOfMemory(t *testing.T) {
	alone(t)
	d := start(t, "CUDA_VISIBLE_DEVICES="+under(t).gpus[0])
	d.server()
	neighbour := d.neighbour()
	for _, environment := range [][]string{nil, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + under(t).gpus[0] + "=2G"}} {
		const more = "1000000" // MiB, more than any GPU has
		if out := d.client(environment, "alloc", more); !strings.Contains(out.stdout, "err=2(") {
			t.Errorf("%s MiB with %q: %q", more, environment, out.stdout)
		}
	}
	if got := d.info(); got.err != 0 {
		t.Errorf("new client: %+v", got)
	}
	neighbour.survives("another client asked for too much memory")
}

// CUDA_VISIBLE_DEVICES of the daemon gives the devices new numbers. UUIDs work in the daemon's list and in the
// client's list. The order of the daemon's list is not the order that a client without a list sees.
func TestVisibleDevices(t *testing.T) {
	alone(t)
	needsGPUs(t, 2)
	d := start(t, "CUDA_VISIBLE_DEVICES="+under(t).gpus[1])
	for _, c := range []struct {
		list, uuids string
		err         int
	}{
		{"", under(t).gpus[1], 0}, {"0", under(t).gpus[1], 0}, {under(t).gpus[1], under(t).gpus[1], 0},
		{"1", "", 100}, {under(t).gpus[0], "", 100},
	} {
		var variables []string
		if c.list != "" {
			variables = []string{"CUDA_VISIBLE_DEVICES=" + c.list}
		}
		out := d.client(variables, "count")
		want := "count=1 uuid=" + c.uuids
		if c.err != 0 {
			want = fmt.Sprintf("count err=%d", c.err)
		}
		must.Hold(t, strings.HasPrefix(out.stdout, want), "client's list %q: %q, not %q", c.list, out.stdout, want)
	}
	pid := d.pid()
	d.ask("quit")
	eventually(t, "the daemon has ended", answerDeadline, func() bool { return !alive(pid) })
	d.again("CUDA_VISIBLE_DEVICES=" + under(t).gpus[1] + "," + under(t).gpus[0])
	both := "count=2 uuid=" + under(t).gpus[0] + " uuid=" + under(t).gpus[1]
	if out := d.client(nil, "count"); !strings.HasPrefix(out.stdout, both) {
		t.Errorf("daemon for both, reversed: %q", out.stdout)
	}
}

// If a daemon is limited to one GPU and a client asks for another, the server's log has an error. The error names the
// device that the client asked for.
func TestInvisibleDeviceIsLogged(t *testing.T) {
	alone(t)
	needsGPUs(t, 2)
	d := start(t, "CUDA_VISIBLE_DEVICES="+under(t).gpus[1])
	d.client([]string{"CUDA_VISIBLE_DEVICES=1"}, "count")
	const line = "Client requested 1 which is not a valid GPU ID in the MPS visible set of devices"
	eventually(t, "the log has "+line, soon, func() bool { return strings.Contains(d.log("server.log"), line) })
}

// A device has at most 48 contexts. Client 49 gets error 46, and the other clients continue.
func TestMostClients(t *testing.T) {
	alone(t)
	onlySimulated(t, "takes half a minute on a real GPU, and the result depends on the driver's version")
	d := start(t)
	d.server()
	var clients [48]*spinner
	var group sync.WaitGroup
	for i := range clients {
		clients[i] = d.launch(nil, "-ms", "0", "-for", "20", "-exit-idle")
	}
	for _, client := range clients {
		group.Go(func() {
			eventually(t, "a client is ready", answerDeadline, func() bool { return client.line(0) != "" })
		})
	}
	group.Wait()
	if got := d.info(); got.err != 46 {
		t.Errorf("client 49: %+v", got)
	}
	if got := len(strings.Fields(d.ask(fmt.Sprintf("get_client_list %d", d.servers()[0])))); got != 48 {
		t.Errorf("get_client_list lists %d clients, not 48", got)
	}
	for _, client := range clients {
		client.signal(syscall.SIGTERM)
	}
	for _, client := range clients {
		client.survives("client 49")
	}
	if got := d.info(); got.err != 0 {
		t.Errorf("new client after the others ended: %+v", got)
	}
}

// If the daemon has RLIMIT_NOFILE 1024, none of 48 clients finishes.
func TestFewDescriptors(t *testing.T) {
	alone(t)
	onlySimulated(t, "takes half a minute on a real GPU")
	d := directories(t, under(t).uid)
	c := under(t).command(d.environment, d.uid, "/bin/sh", "-c", `ulimit -S -n 1024 && exec "$0" -d`, under(t).control)
	if out := c.run(); out.code != 0 {
		t.Fatalf("-d: %+v", out)
	}
	d.server()
	limits, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", d.pid()))
	must.Hold(t, strings.Contains(string(limits), "Max open files            1024 "), "limits of the daemon: %s", limits)
	var clients [24]*spinner
	for i := range clients {
		clients[i] = d.launch(nil, "-ms", "1", "-for", "2")
	}
	for _, client := range clients {
		eventually(t, "a client is ready", answerDeadline, func() bool { return client.line(0) != "" })
	}
	select {
	case <-clients[0].done:
		t.Errorf("a client finished: %q", clients[0].line(1))
	case <-time.After(3 * time.Second):
	}
	for _, client := range clients {
		must.Equal(t, "a client ended or printed a second line", client.line(1), "")
		client.signal(syscall.SIGKILL)
		client.end()
	}
}
