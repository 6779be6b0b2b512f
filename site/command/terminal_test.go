// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"os"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// terminalOf80Columns opens a terminal of 80 columns, and returns its other end.
func terminalOf80Columns(t *testing.T) *os.File {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { ours.Close() })
	number := must.Get(unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN))(t)
	must.OK(t, unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0))
	theirs := must.Get(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { theirs.Close() })
	must.OK(t, unix.IoctlSetWinsize(int(ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	return theirs
}

// A terminal has colours if its environment allows them.
func TestScreenOfATerminal(t *testing.T) {
	screen := terminalOf80Columns(t)
	for _, c := range []struct {
		env    []string
		colour bool
	}{
		{[]string{"TERM=xterm"}, true}, {[]string{"TERM=xterm", "NO_COLOR=1"}, false}, {[]string{"TERM=dumb"}, false}, {nil, false},
	} {
		call := Invocation{Process: cli.Process{Out: screen, Env: c.env}}
		if s := call.Screen(); !s.Terminal || s.Columns != 80 || s.Colour != c.colour || (s.Red("x") != "x") != c.colour {
			t.Errorf("%q: %+v", c.env, s)
		}
	}
}
