// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A user can make the daemon start a program that no signal ends. It is neither daemon nor server, so all is undone, the
// log names it, and the node goes on.
func TestAProcessThatStaysInTheDaemonsGroupDrainsNoNode(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	n.Fail["empty group-7-0"] = &site.LeftInGroupError{PIDs: []int{os.Getpid(), noProcess}, Err: errors.New("cannot empty control group")}
	must.Note(t, n.close())
	n.IsAsBefore()
	for _, want := range []string{fmt.Sprintf(`"pid":%d,`, os.Getpid()), `"name":"epilog.test"`, `"user":"hpc1"`} {
		if !strings.Contains(n.log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, n.log.String())
		}
	}
}

// If the daemon itself does not end, or the group cannot be read, nothing is proved.
func TestAGroupThatStaysBesideADaemonIsAFailure(t *testing.T) {
	left := &site.LeftInGroupError{PIDs: []int{os.Getpid()}, Err: errors.New("cannot empty control group")}
	stuck := errors.New("it does not go")
	for name, fail := range map[string]map[string]error{
		"the daemon stays":         {"quit daemon": site.ErrNoAnswer, "kill daemon": stuck, "empty group-7-0": left},
		"the group cannot be read": {"empty group-7-0": stuck},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.leased(nil)
			for event, err := range fail {
				n.Fail[event] = err
			}
			if err := n.close(); !errors.Is(err, stuck) {
				t.Errorf("%v", err)
			}
		})
	}
}
