// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// ContextMiB agrees with the recorded sweep of a real H200: percent, SMs, context MiB. It must be enough, and not
// much more.
func TestContextIsTheRecordedSweep(t *testing.T) {
	points := 0
	for line := range lines(t, "../site/sim/conformance/testdata/sweep-h200.txt") {
		fields := strings.Fields(line)
		sms := must.Get(strconv.Atoi(fields[1]))(t)
		recorded := must.Get(strconv.Atoi(fields[2]))(t)
		if got := ContextMiB(sms); got < recorded || got > recorded+8 {
			t.Errorf("%d SMs: %d MiB, the H200 took %d", sms, got, recorded)
		}
		points++
	}
	must.Have(t, points == 100, "%d points, want 100", points)
}

func TestParseMemory(t *testing.T) {
	for given, want := range map[string]string{
		"none": "none", "even": "even", "8G": "8192M", "16384M": "16384M", "1.5G": "1536M", "0.5G": "512M", "1T": "1048576M", "1024T": "1073741824M", "1M": "1M",
		"8g": "8192M", "8gb": "8192M", "8GIB": "8192M", "512m": "512M", "8GB": "8192M", "8GiB": "8192M", "1.5GB": "1536M", "512MB": "512M", "512MiB": "512M", "1TB": "1048576M",
	} {
		rule, err := ParseMemory(given)
		must.Hold(t, err == nil && rule.String() == want, "%q is read as %q, %v, want %q", given, rule, err, want)
		if again, err := ParseMemory(rule.String()); err != nil || again != rule {
			t.Errorf("%q reads back as %q, %v", rule, again, err)
		}
		must.Equal(t, fmt.Sprintf("%q: no limit is", given), rule.None(), given == "none")
	}
	for _, given := range []string{"", "8", "G", "0G", "0.0M", "-8G", "8B", "8GBB", "8Gi", "8iB", "GB", "1.5M", "0.0001G", "1025T", "8K", "1e3M", "None", "99999999999G", "8 G", "é"} {
		_, err := ParseMemory(given)
		if want := fmt.Sprintf("cannot read memory %q: want none, even, or a size of whole MiB, like 8G or 16384M", given); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestMemoryEach(t *testing.T) {
	for _, c := range []struct {
		name           string
		total, context int
		ranks          int
		overlap        float64
		rule           string
		want           Memory
	}{
		{"no limit", 143771, 590, 8, 1, "none", Memory{}},
		{"even", 143771, 160, 8, 1, "even", Memory{17894, 17734}},
		{"even, once and a half over", 143771, 160, 8, 1.5, "even", Memory{26841, 26681}},
		{"even, more over than there are ranks", 143771, 590, 2, 4, "even", Memory{143155, 142565}},
		{"even of one is what CUDA says is free", 143771, 590, 1, 1, "even", Memory{143155, 142565}},
		{"an overlap below 1 is 1", 143771, 590, 2, 0, "even", Memory{71577, 70987}},
		{"a size is what the program can use", 143771, 160, 8, 1, "8G", Memory{8352, 8192}},
		{"the size that fits beside the context", 143771, 590, 1, 1, "142565M", Memory{143155, 142565}},
		{"sizes may be more than the GPU", 143771, 590, 48, 1, "100G", Memory{102990, 102400}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := MemoryPerRank(c.total, c.context, c.ranks, c.overlap, mustMemory(t, c.rule))
			must.Hold(t, err == nil && got == c.want, "got %+v, %v, want %+v", got, err, c.want)
		})
	}
}

func TestMemoryEachRefuses(t *testing.T) {
	for _, c := range []struct {
		total, context, ranks int
		rule, want            string
	}{
		{143771, 590, 0, "even", "cannot divide memory among 0 ranks"},
		{1000, 590, 1, "even", "cannot limit memory of a GPU of 1000 MiB: the driver takes 616 MiB of it and a context 590 MiB"},
		{15360, 348, 48, "even", "cannot divide 14744 MiB among 48 ranks: each would have 307 MiB and its context takes 348 MiB: run fewer ranks on the GPU"},
		{143771, 590, 1, "142566M", "cannot give a rank 142566 MiB: 142565 MiB of the GPU are left for it: ask for 142565M or less"},
	} {
		if _, err := MemoryPerRank(c.total, c.context, c.ranks, 1, mustMemory(t, c.rule)); err == nil || err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

// A limit of 2 GiB left a program of the whole H200 1534 MiB free (measured). The memory that a rule promises must be
// there.
func TestWhatIsPromisedIsThere(t *testing.T) {
	got := must.Get(MemoryPerRank(143771, ContextMiB(132), 1, 1, mustMemory(t, "1455M")))(t)
	must.Hold(t, got.LimitMiB == 2048 && got.UsableMiB <= 1534,
		"a limit of %d MiB should leave %d MiB, the H200 left 1534 of 2048", got.LimitMiB, got.UsableMiB)
}

// Even limits together never exceed the memory of the GPU, and less than a MiB for each rank is left.
func TestEvenMemoryAddsUp(t *testing.T) {
	for _, m := range models {
		for ranks := 1; ranks <= m.Clients; ranks++ {
			got := must.Get(MemoryPerRank(m.MemoryMiB, ContextMiB(MinSMs), ranks, 1, mustMemory(t, "even")))(t)
			all := m.MemoryMiB - ReserveMiB
			if sum := got.LimitMiB * ranks; sum > all || sum <= all-ranks {
				t.Errorf("%s, %d ranks: limits add up to %d MiB of %d", m.Name, ranks, sum, all)
			}
			must.Equal(t, fmt.Sprintf("%s, %d ranks: %+v", m.Name, ranks, got), got.UsableMiB, got.LimitMiB-ContextMiB(MinSMs))
		}
	}
}

func mustMemory(t *testing.T, s string) MemoryRule {
	t.Helper()
	rule := must.Get(ParseMemory(s))(t)
	return rule
}
