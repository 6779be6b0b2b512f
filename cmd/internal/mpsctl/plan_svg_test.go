// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
)

// drawn is the picture of a plan. drawn has also parsed it as XML.
func drawn(t *testing.T, args string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plan.svg")
	code, out, complaint := mpsctl(append(strings.Fields("plan --svg "+path), strings.Fields(args)...)...)
	if code != cli.ExitOK || complaint != "" || !strings.Contains(out, "rank  GPU") {
		t.Fatalf("code %d, %s\n%s", code, complaint, out)
	}
	picture, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for read := xml.NewDecoder(strings.NewReader(string(picture))); ; {
		if _, err := read.Token(); errors.Is(err, io.EOF) {
			return string(picture)
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestPlanPictures(t *testing.T) {
	for name, args := range map[string]string{
		"seven-on-two":     "--gpu H200 --gpus 2 --ranks 7 --share even --mem even",
		"default":          "--gpu H200 --ranks 8",
		"size-and-ceiling": "--gpu h100-pcie --gpus 2 --ranks 4 --share none --mem 8G --ceiling 50",
		"full":             "--gpu A100-80 --ranks 48 --share even --mem even --mem-overcommit 1.5",
		"idle-gpu":         "--gpu T4 --gpus 3 --ranks 2 --share 40%",
		"no-cap":           "--gpu H200 --ranks 48 --share none",
	} {
		t.Run(name, func(t *testing.T) {
			golden.Compare(t, filepath.Join("testdata", "plan", name+".svg"), drawn(t, args))
		})
	}
}

// The picture of the largest node has a bounded size. The node has 48 ranks on each of 8 GPUs.
func TestTheLargestPicture(t *testing.T) {
	for _, share := range []string{"even", "overlap:2", "overlap:3", "60%", "none"} {
		picture := drawn(t, "--gpu H200 --gpus 8 --ranks 384 --share "+share)
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

func TestAPictureThatCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none", "plan.svg")
	code, out, complaint := mpsctl("plan", "--gpu", "H200", "--ranks", "2", "--svg", path)
	want := fmt.Sprintf("mpsctl: cannot write %s: no such file or directory\n", path)
	if code != cli.ExitFindings || out != "" || complaint != want {
		t.Errorf("code %d, printed %q\ngot  %swant %s", code, out, complaint, want)
	}
}
