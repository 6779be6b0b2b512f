// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A socket of root's at the path of a step daemon is a sign. An abstract socket is not, because every user can give it
// such a name, and the path in it may be in a file system of the user's.
func TestSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("step daemons are root's")
	}
	path := filepath.Join(t.TempDir(), "n1_7.0")
	listener := must.Get(net.Listen("unix", path))(t)
	defer listener.Close()
	const line = "0000000000000000: 00000002 00000000 00010000 0001 01    45 "
	for name, runs := range map[string]bool{path: true, "@" + path: false, "@x " + path: false, path + ".1x": false} {
		s := Steps{jobs: map[uint32]string{}}
		s.socket(line + name)
		must.Equal(t, fmt.Sprintf("%s: %q, want a sign", name, s.jobs[7]), s.jobs[7] != "", runs)
	}
}

// A title that was cut counts for each job whose number begins with it. It does not count if a socket names such a
// job.
func TestSign(t *testing.T) {
	s := Steps{jobs: map[uint32]string{4200001: "a socket"}, sluids: map[string]string{"sB9NM830BDDR00": "a group"}, cuts: []fragment{{"41000", 8}, {"42000", 9}}}
	for job, runs := range map[uint32]bool{4100007: true, 41000: true, 4110007: false, 4200001: true, 4200002: false, 4: false} {
		if sign := s.Sign(job, ""); (sign != "") != runs {
			t.Errorf("job %d: %q", job, sign)
		}
	}
	must.Hold(t, s.Sign(5, "sB9NM830BDDR00") != "" && s.Sign(5, "sB9NM830BDDR01") == "", "the SLUID of another job")
}
