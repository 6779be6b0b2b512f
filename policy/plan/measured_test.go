// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// sweepLine is a line of the measurements. Only some lines are points of the sweep.
type sweepLine struct {
	Point *struct {
		Asked      string `json:"asked"`
		SMs        int    `json:"sms"`
		ContextMiB int    `json:"context_mib"`
	} `json:"point"`
}

// For every share that the wrapper was asked for, the plan has the SMs that CUDA on a real H200 reported. The plan
// keeps at kept as much memory for the context as the context took.
func TestPlanAgreesWithTheSweepOfAnH200(t *testing.T) {
	file, err := os.Open("../../docs/measurements/9-h200/moments.jsonl")
	must.OK(t, err)
	defer file.Close()
	points := 0
	for lines := json.NewDecoder(file); ; {
		var line sweepLine
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if line.Point == nil {
			continue
		}
		points++
		asked := line.Point.Asked
		if _, sms := strings.CutSuffix(asked, "sm"); sms { // a form that a share had then
			asked = policy.PercentFrom(math.Ceil(float64(line.Point.SMs)/132*1e8)/1e6).String() + "%"
		}
		ranks, err := onH200s(t, 1, 1, asked, "100").Answer()
		if err != nil {
			t.Fatalf("%s: %v", line.Point.Asked, err)
		}
		if got := ranks[0].SMs; got != line.Point.SMs {
			t.Errorf("%s: the plan has %d SMs, CUDA reported %d", line.Point.Asked, got, line.Point.SMs)
		}
		if kept := policy.ContextMiB(line.Point.SMs); kept < line.Point.ContextMiB {
			t.Errorf("%s: %d MiB are kept for the context, and it took %d", line.Point.Asked, kept, line.Point.ContextMiB)
		}
	}
	if points != 166 {
		t.Errorf("%d points: want every whole percentage and every number of TPCs of 132 SMs, 166", points)
	}
}
