// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/xml"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
)

// drawn is the picture of a plan. drawn has also parsed it as XML.
func drawn(t *testing.T, q Request) string {
	t.Helper()
	plan, err := q.Answer()
	if err != nil {
		t.Fatal(err)
	}
	var picture strings.Builder
	if err := plan.WriteSVG(&picture); err != nil {
		t.Fatal(err)
	}
	for read := xml.NewDecoder(strings.NewReader(picture.String())); ; {
		if _, err := read.Token(); errors.Is(err, io.EOF) {
			return picture.String()
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestPictures(t *testing.T) {
	for name, q := range map[string]Request{
		"seven-on-two":     {GPU: "H200", GPUs: 2, Ranks: 7, Share: "even", Memory: "even", Over: "1", Ceiling: "100"},
		"default":          {GPU: "H200", GPUs: 1, Ranks: 8, Share: policy.DefaultGrant().Rule().String(), Memory: "none", Over: "1", Ceiling: "100"},
		"size-and-ceiling": {GPU: "h100-pcie", GPUs: 2, Ranks: 4, Share: "none", Memory: "8G", Over: "1", Ceiling: "50"},
		"full":             {GPU: "A100-80", GPUs: 1, Ranks: 48, Share: "even", Memory: "even", Over: "1.5", Ceiling: "100"},
		"idle-gpu":         {GPU: "T4", GPUs: 3, Ranks: 2, Share: "40%", Memory: "none", Over: "1", Ceiling: "100"},
		"no-cap":           {GPU: "H200", GPUs: 1, Ranks: 48, Share: "none", Memory: "none", Over: "1", Ceiling: "100"},
	} {
		t.Run(name, func(t *testing.T) {
			golden.Compare(t, filepath.Join("testdata", name+".svg"), drawn(t, q))
		})
	}
}

// The picture of the largest node has a bounded size. The node has 48 ranks on each of 8 GPUs.
func TestTheLargestPicture(t *testing.T) {
	for _, share := range []string{"even", "overlap:2", "overlap:3", "60%", "none"} {
		picture := drawn(t, Request{GPU: "H200", GPUs: 8, Ranks: 384, Share: share, Memory: "none", Over: "1", Ceiling: "100"})
		t.Logf("%s: %d bytes", share, len(picture))
		if len(picture) > 256<<10 {
			t.Errorf("%s: %d bytes, want at most 256 KiB", share, len(picture))
		}
	}
}

// The pieces of a GPU are those of the plan. Each rank has its SMs, no piece leaves the GPU, and no two pieces of a
// layer overlap.
func TestPiecesAreThePlan(t *testing.T) {
	const sms = 132
	for _, share := range []string{"even", "overlap:1.5", "overlap:3", "40%", "18sm"} {
		for n := 1; n <= 48; n++ {
			q := Request{GPU: "H200", GPUs: 1, Ranks: n, Share: share, Memory: "none", Over: "1", Ceiling: "100"}
			plan, err := q.Answer()
			if err != nil {
				t.Fatal(err)
			}
			got, want, taken := 0, 0, map[[2]int]bool{}
			for _, r := range plan.Ranks {
				want += r.SMs
			}
			for _, p := range piecesOf(plan.Ranks, sms) {
				got += p.sms * p.owners
				for i := p.from; i < p.from+p.sms; i++ {
					if place := [2]int{p.layer, i}; i >= sms || taken[place] {
						t.Fatalf("%+v: SM %d of layer %d is taken twice, or does not exist", q, i, p.layer)
					} else {
						taken[place] = true
					}
				}
			}
			if got != want {
				t.Errorf("%+v: %d SMs are drawn, the plan has %d", q, got, want)
			}
		}
	}
}
