// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

var h200 = GPU{SMs: 132, SMsPerTPC: 2}

// SMsAt gives the recorded sweep of a real H200: percent, SMs, context MiB.
func TestSMsAtIsTheRecordedSweep(t *testing.T) {
	points := 0
	for line := range lines(t, "../site/sim/conformance/testdata/sweep-h200.txt") {
		fields := strings.Fields(line)
		percent := must.Get(ParsePercent(fields[0]))(t)
		want := must.Get(strconv.Atoi(fields[1]))(t)
		must.Equal(t, fmt.Sprintf("%s %%", fields[0]), h200.SMsAt(percent), want)
		points++
	}
	must.Have(t, points == 100, "%d points, want 100", points)
}

// SMsAt gives the recorded thresholds, at which one millionth of a percent decides. Values that CUDA ignored are no
// percentages here.
func TestSMsAtIsTheRecordedThresholds(t *testing.T) {
	form := regexp.MustCompile(`^([0-9.]+) err=0\(cudaSuccess\) sm=(\d+)`)
	points := 0
	for line := range lines(t, "../site/sim/conformance/testdata/percentages.txt") {
		m := form.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		percent, err := ParsePercent(m[1])
		if m[1] == "33.3333334" {
			continue // seven decimals: the driver reads them, but no share needs them
		}
		must.OK(t, err)
		must.Equal(t, fmt.Sprintf("%s %%", m[1]), fmt.Sprint(h200.SMsAt(percent)), m[2])
		points++
	}
	must.Have(t, points >= 30, "only %d points read", points)
}

func TestPercentOfInvertsAndIsTheSmallest(t *testing.T) {
	for _, gpu := range []GPU{{SMs: 132, SMsPerTPC: 2}, {SMs: 108, SMsPerTPC: 2}, {SMs: 80, SMsPerTPC: 2}, {SMs: 40, SMsPerTPC: 2}, {SMs: 142, SMsPerTPC: 2}, {SMs: 148, SMsPerTPC: 2}, {SMs: 56, SMsPerTPC: 2}} {
		for sms := gpu.minShare(); sms <= gpu.SMs; sms += gpu.SMsPerTPC {
			p := gpu.percentOf(sms)
			if got := gpu.SMsAt(p); got != sms {
				t.Errorf("%d of %d SMs: %s %% gives %d", sms, gpu.SMs, p, got)
			}
			must.Hold(t, sms <= gpu.minShare() || gpu.SMsAt(p-1) < sms,
				"%d of %d SMs: %s %% is not the smallest", sms, gpu.SMs, p)
		}
	}
	must.Equal(t, "44 of 132 is", h200.percentOf(44).String(), "33.333334")
	must.Equal(t, "66 of 132 is", h200.percentOf(66).String(), "50")
}

func TestEvenSharesAddUpAndDifferByOneTPC(t *testing.T) {
	grant := DefaultGrant()
	grant.Share = Overlap(1)
	for _, gpu := range []GPU{{SMs: 132, SMsPerTPC: 2}, {SMs: 108, SMsPerTPC: 2}, {SMs: 80, SMsPerTPC: 2}, {SMs: 148, SMsPerTPC: 2}} {
		for ranks := 1; ranks <= gpu.SMs/8; ranks++ {
			shares := must.Get(EvenShares(gpu, ranks, grant))(t)
			sum, lowest, highest := 0, gpu.SMs, 0
			for _, s := range shares {
				sum, lowest, highest = sum+s.SMs, min(lowest, s.SMs), max(highest, s.SMs)
			}
			must.Hold(t, sum == gpu.SMs && highest-lowest <= gpu.SMsPerTPC,
				"%d ranks on %d SMs: sum %d, from %d to %d", ranks, gpu.SMs, sum, lowest, highest)
		}
	}
}

func TestDivide(t *testing.T) {
	for _, c := range []struct {
		name    string
		ranks   int
		share   string
		ceiling float64
		want    string
	}{
		{"one rank has it all", 1, "even", 100, "132/null"},
		{"two", 2, "even", 100, "66/50 66/50"},
		{"three", 3, "even", 100, "44/33.333334 44/33.333334 44/33.333334"},
		{"eight: the first two have a TPC more", 8, "even", 100, "18/13.636364 18/13.636364 16/12.121213 16/12.121213 16/12.121213 16/12.121213 16/12.121213 16/12.121213"},
		{"overlap 2 of four is two's", 4, "overlap:2", 100, "66/50 66/50 66/50 66/50"},
		{"overlap above the ranks is the GPU", 2, "overlap:3", 100, "132/null 132/null"},
		{"the ceiling bounds", 2, "overlap:2", 40, "52/39.393940 52/39.393940"},
		{"no cap", 2, "none", 100, "132/null 132/null"},
		{"no cap but the ceiling", 1, "none", 50, "66/50"},
	} {
		t.Run(c.name, func(t *testing.T) {
			shares := must.Get(EvenShares(h200, c.ranks, Grant{Share: mustRule(t, c.share), Ceiling: c.ceiling}))(t)
			var got []string
			for _, s := range shares {
				percent, _ := s.Percent.MarshalJSON()
				got = append(got, fmt.Sprintf("%d/%s", s.SMs, percent))
			}
			must.Equal(t, "got", strings.Join(got, " "), strings.ReplaceAll(c.want, "39.393940", "39.39394"))
		})
	}
}

func TestManyRanksGetWhatTheDriverGives(t *testing.T) {
	shares := must.Get(EvenShares(h200, 48, Grant{Share: Overlap(1), Ceiling: 100}))(t)
	for i, s := range shares {
		must.Equal(t, fmt.Sprintf("rank %d has", i), s.SMs, MinSMs)
	}
}

func TestDivideRefuses(t *testing.T) {
	for _, c := range []struct {
		gpu   GPU
		ranks int
		want  string
	}{
		{GPU{SMs: 0, SMsPerTPC: 2}, 1, "cannot divide GPU of 0 SMs in units of 2"},
		{GPU{SMs: 132, SMsPerTPC: 0}, 1, "cannot divide GPU of 132 SMs in units of 0"},
		{h200, 0, "cannot divide GPU among 0 ranks"},
	} {
		if _, err := EvenShares(c.gpu, c.ranks, DefaultGrant()); err == nil || err.Error() != c.want {
			t.Errorf("%v among %d: %v, want %s", c.gpu, c.ranks, err, c.want)
		}
	}
	for _, s := range []string{"0", "101", "abc", "", "-5", "NaN", "33.3333334"} {
		if p, err := ParsePercent(s); err == nil {
			t.Errorf("%q is read as %s", s, p)
		}
	}
}

func lines(t *testing.T, path string) func(func(string) bool) {
	file := must.Get(os.Open(path))(t)
	t.Cleanup(func() { file.Close() })
	return func(yield func(string) bool) {
		for scanner := bufio.NewScanner(file); scanner.Scan(); {
			if !yield(scanner.Text()) {
				return
			}
		}
	}
}
