// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

func TestBound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control")
	listener := must.Get(net.Listen("unixpacket", path))(t)
	client := must.Get(net.Dial("unixpacket", path))(t)
	defer client.Close()
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	for _, c := range []struct {
		path string
		want bool
	}{{path, true}, {path + "x", false}, {filepath.Dir(path), false}} {
		if got, err := bound(c.path); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", c.path, got, err)
		}
	}
	listener.Close()
	if got, err := bound(path); err != nil || got {
		t.Errorf("a socket that no process has: %v, %v", got, err)
	}
}
