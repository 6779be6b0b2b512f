// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// wasteJSON is an answer of mpsctl waste with so many rows. One name is a user's attack.
func wasteJSON(rows int) map[string]any {
	row := func(name string, hours float64) map[string]any {
		return map[string]any{"name": name, "sums": map[string]float64{"jobs": 40, "gpu_hours": hours,
			"never_used_hours": hours / 8, "no_process_hours": hours / 4, "sm_active": -1, "memory": 22, "more_fit": 30,
			"pay": 12, "no_gain": 20, "not_known": 8,
			"win_hours": hours / 5, "win_hours_low": hours / 6, "win_hours_high": hours / 4}}
	}
	all := []any{}
	for n := range rows {
		all = append(all, row(fmt.Sprintf("user%d", n), 90_000/float64(n+1)))
	}
	if rows > 1 {
		all[1].(map[string]any)["name"] = "\u202e</script><script>alert(1)</script>" + strings.Repeat("x", 300)
	}
	changes := []any{}
	for n := range rows {
		changes = append(changes, map[string]any{"name": fmt.Sprintf("user%d, relax", n),
			"line": "#SBATCH --constraint=mps --ntasks=8, and srun mpirun-wrap ./app",
			"sums": map[string]float64{"jobs": 12, "gpu_hours": 1234.5 / float64(n+1)}})
	}
	return map[string]any{"since": "2026-11-01T00:00:00+01:00", "until": "2026-12-01T00:00:00+01:00", "by": "user",
		"verdict": "Of 271,350 GPU hours, 101,756 had no process.", "all": row("all", 271_350), "rows": all,
		"changes":  changes,
		"left_out": map[string]int{"Files and folders without good reports": 3}}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func wastePage(t *testing.T, answer any) string {
	t.Helper()
	var page bytes.Buffer
	if err := Write(&page, answer); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

// The page has its answer, one script beside it, and nothing from another place.
func TestThePageHasTheWaste(t *testing.T) {
	page := wastePage(t, wasteJSON(3))
	_, text, _ := strings.Cut(page, `id="answer">`)
	text, _, _ = strings.Cut(text, "</script>")
	var answer struct{ Rows []any }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Rows) != 3 {
		t.Errorf("%v: %.300s", err, text)
	}
	for _, foreign := range []string{"src=", "href=", "url(", "@import", "https://", "innerHTML", "fetch(",
		"alert(1)</script>"} {
		if strings.Contains(page, foreign) {
			t.Errorf("the page contains %q", foreign)
		}
	}
	if n := strings.Count(page, "<script"); n != 2 {
		t.Errorf("the page has %d scripts", n)
	}
	if err := Write(fullDisk{}, wasteJSON(1)); err == nil || err.Error() != "no space left" {
		t.Errorf("%v", err)
	}
}

// The page loads without an error, has all rows, and needs no horizontal scrolling on a narrow and on a wide screen.
func TestWasteInABrowser(t *testing.T) {
	b := newBrowser(t)
	for _, rows := range []int{0, 1, 12, 120} {
		page := wastePage(t, wasteJSON(rows))
		dom, logged := b.open(t, page, 1280)
		for _, line := range logged {
			t.Error(line)
		}
		if bars := strings.Count(dom, `class="bar never"`); bars != min(rows, 20) {
			t.Errorf("%d rows: %d bars of GPUs that were never used", rows, bars)
		}
		for n := range min(rows, 100) {
			if name := fmt.Sprintf("<bdi>user%d</bdi></td>", n); n != 1 && !strings.Contains(dom, name) {
				t.Errorf("%d rows: the table lacks user%d", rows, n)
			}
		}
		if strings.Contains(dom, "\u202e") && strings.Contains(dom[:strings.Index(dom, "</main>")], "\u202e") {
			t.Error("a user's name turns a line round")
		}
		for _, want := range []string{"Of 271,350 GPU hours, 101,756 had no process.", "Files and folders without good reports: 3."} {
			if _, drawn, _ := strings.Cut(dom, "<main>"); !strings.Contains(drawn, want) {
				t.Errorf("%d rows: the page lacks %q", rows, want)
			}
		}
		for _, width := range []int{390, 1280} {
			if wider := b.overflow(t, page, width); wider != 0 {
				t.Errorf("%d rows: the page is %d pixels wider than a window of %d", rows, wider, width)
			}
		}
	}
}
