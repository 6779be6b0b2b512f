// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"errors"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// slurmd has started with its files and has sent the job. So a line that cannot be read here refuses the job, and the
// node stays in service.
func TestAFileOfSlurmThatCannotBeReadRefusesTheJob(t *testing.T) {
	for name, lookups := range map[string]policy.Lookups{
		"for the GPUs": {}, "for a rule about the GPU": {GPU: true}, "for a rule about features": {Features: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.noConf = errors.New("cannot read /etc/slurm/gres.conf:3: New= is not a name of gres.conf")
			rules := granting(oneDaemon())
			rules.Lookups = lookups
			n.refuses(t, rules, "cannot read /etc/slurm/gres.conf:3: New= is not a name of gres.conf: ask your admin")
		})
	}
}

func TestAPositionThatIsNoWholeGPURefusesTheJob(t *testing.T) {
	n := newNode(t)
	n.gres.Entries = []slurm.GresEntry{{Minor: -1, Other: "/dev/nvidia-caps/nvidia-cap337", From: "/e/gres.conf:2"}, {Minor: 1}}
	n.refuses(t, granting(oneDaemon()), `cannot resolve GPUs of job 7: position 0 (/e/gres.conf:2): "/dev/nvidia-caps/nvidia-cap337" is not the device`)
	if outcome, err := n.open(job(1), granting(oneDaemon())); outcome != opened || err != nil {
		t.Errorf("the job with a whole GPU: %s, %v", outcome, err)
	}
}

// refuses checks that a job with the first GPU is refused with this sentence.
func (n *node) refuses(t *testing.T, rules policy.Policy, sentence string) {
	t.Helper()
	if outcome, err := n.open(job(0), rules); outcome != refused || err != nil {
		t.Errorf("%s, %v", outcome, err)
	}
	if ticket, err := n.Store.ReadTicket(7); err != nil || !strings.HasPrefix(ticket.RefusalReason, sentence) {
		t.Errorf("%q, %v, want %q", ticket.RefusalReason, err, sentence)
	}
}
