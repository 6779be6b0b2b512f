// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// browser is chromium without a window. REQUIRE_LAB does not ask for it, because no package of a lab has it.
type browser struct{ path, profile string }

func newBrowser(t *testing.T) browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: apt-get install --no-install-recommends chromium")
	}
	return browser{path, t.TempDir()}
}

// open loads a page in a window with a width in pixels. It returns the elements as the browser has them, and what the
// page logged.
func (b browser) open(t *testing.T, page string, width int, more ...string) (dom string, logged []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--enable-logging=stderr",
		"--user-data-dir=" + b.profile, fmt.Sprintf("--window-size=%d,1000", width), "--dump-dom"}
	var e strings.Builder
	cmd := exec.CommandContext(t.Context(), b.path, append(append(args, more...), "file://"+file)...)
	cmd.Stderr = &e
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, e.String())
	}
	for line := range strings.Lines(e.String()) {
		if strings.Contains(line, ":CONSOLE") {
			logged = append(logged, line)
		}
	}
	return string(out), logged
}

// overflow is how many pixels a page is wider than its window. A script in a copy of the page measures it. The window
// is a frame in another page, because chromium has no window below 500 pixels.
func (b browser) overflow(t *testing.T, page string, width int) int {
	t.Helper()
	const script = `<script>{ const e = document.documentElement
parent.document.documentElement.dataset.wide = innerWidth + " " + (e.scrollWidth - e.clientWidth) }</script>`
	policy := regexp.MustCompile(`<meta http-equiv="Content-Security-Policy"[^>]*>`)
	inner := strings.Replace(policy.ReplaceAllString(page, ""), "</body>", script+"</body>", 1)
	dom, _ := b.open(t, fmt.Sprintf(`<!doctype html><iframe style="width:%dpx;height:1000px;border:0" srcdoc="%s"></iframe>`,
		width, html.EscapeString(inner)), 1500)
	found := regexp.MustCompile(`data-wide="(\d+) (\d+)"`).FindStringSubmatch(dom)
	if found == nil || found[1] != strconv.Itoa(width) {
		t.Fatalf("the browser did not measure in %d pixels: %q", width, found)
	}
	wider, _ := strconv.Atoi(found[2])
	return wider
}

// The checks of the browser find what they look for: an error of a page, and a page that is too wide.
func TestTheBrowserSeesFaults(t *testing.T) {
	b := newBrowser(t)
	page := wastePage(t, wasteJSON(12))
	if _, logged := b.open(t, strings.Replace(page, "</body>", `<script>1</script></body>`, 1), 1400); len(logged) == 0 {
		t.Error("a script that the page's policy forbids logs nothing")
	}
	if wider := b.overflow(t, strings.Replace(page, "</body>", `<div style="width: 1000px">x</div></body>`, 1), 600); wider < 300 {
		t.Errorf("a page with an element of 1000 pixels is %d wider than 600", wider)
	}
}
