// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	. "github.com/slurm-mps/slurm-mps/site/usage"
)

func used(smUtil, smActive, dram float64, mib, clients int) GPU {
	g := GPU{UUID: "GPU-1", MemoryMiB: 143771, Resolution: 10}
	for i := range 20 {
		g.Add(began, Sample{At: began.Add(time.Duration(i+1) * 10 * time.Second), SMUtil: smUtil, SMActive: smActive, DRAM: dram,
			UsedMiB: float64(mib), Clients: clients})
	}
	return g
}

func TestAdvice(t *testing.T) {
	short := used(90, 20, 5, 14000, 8)
	short.Samples = short.Samples[:3]
	brief := used(50, 10, 5, 14000, 8)
	for i := range brief.Samples[:17] {
		brief.Samples[i].Clients = 0
	}
	for name, c := range map[string]struct {
		gpus []GPU
		want string // "" for none
	}{
		"room":               {[]GPU{used(96, 31, 12, 14336, 1)}, "4 ranks a GPU: 2.7 times the present throughput"},
		"memory full":        {[]GPU{used(96, 31, 12, 140000, 8)}, "no more ranks fit."},
		"busy":               {[]GPU{used(99, 92, 40, 14000, 1)}, "and more are not known to pay."},
		"a GPU without work": {[]GPU{used(99, 80, 5, 14000, 4), used(0, 0, 0, 500, 0)}, "1 of 2 GPUs had no work: ask for fewer GPUs"},
		"a GPU without work, and another with little": {[]GPU{brief, used(0, 0, 0, 500, 0)}, ""},
		"nothing known, as of MIG":                    {[]GPU{used(Unknown, Unknown, Unknown, 14000, 4)}, ""},
		"a short job":                                 {[]GPU{short}, ""},
		"a job with little GPU":                       {[]GPU{brief}, ""},
		"no samples":                                  {[]GPU{{UUID: "GPU-1"}}, ""},
	} {
		got := Job{Report{Begin: began, GPUs: c.gpus}}.advice()
		must.Hold(t, (got == "") == (c.want == "") && strings.Contains(got, c.want), "%s: %q, want %q", name, got, c.want)
	}
}

// Ranks of a batch script that all have the whole GPU are named if the wrapper would have divided it.
func TestUnplaced(t *testing.T) {
	ranks := func(n int, change func(*Client)) (all []Client) {
		for rank := range n {
			c := Client{PID: 10 + rank, Rank: rank, Step: "batch"}
			change(&c)
			all = append(all, c)
		}
		return all
	}
	as := func(*Client) {}
	const write = "start ranks by srun mpirun-wrap ./app or mpirun mpirun-wrap ./app."
	for name, c := range map[string]struct {
		share   string
		clients []Client
		seen    int // outside, by the guard
		want    string
	}{
		"outside, by the environment": {"even", ranks(2, func(c *Client) { c.Outside = true }), 0,
			"2 processes did not use the job's MPS daemon: " + write},
		"outside, by the guard": {"even", ranks(1, as), 1, "1 process did not use the job's MPS daemon: " + write},
		"whole GPUs": {"overlap:2", ranks(3, as), 0,
			"3 ranks of the batch script had all of GPU 4 each. If you did not choose that, " + write},
		"two of overlap:2":     {"overlap:2", ranks(2, as), 0, ""},
		"the site's share":     {"none", ranks(9, as), 0, ""},
		"an unknown share":     {"", ranks(9, as), 0, ""},
		"one program":          {"even", ranks(1, as), 0, ""},
		"a list":               {"3:1", ranks(3, as), 0, ""},
		"parts":                {"even", ranks(3, func(c *Client) { c.SMs = 44 }), 0, ""},
		"ranks of srun":        {"even", ranks(3, func(c *Client) { c.Step = "0" }), 0, ""},
		"processes of no rank": {"even", ranks(3, func(c *Client) { c.Rank = -1 }), 0, ""},
		"programs of one rank": {"even", ranks(3, func(c *Client) { c.Rank = 0 }), 0, ""},
	} {
		r := Report{Share: c.share, Clients: c.clients, GPUs: []GPU{{Index: 4, SMs: 132}}}
		r.OutsideSeen = c.seen
		must.Equal(t, name, (Job{r}).advice(), c.want)
	}
}
