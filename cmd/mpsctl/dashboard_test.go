// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

func siteFile(t *testing.T, name string) string {
	t.Helper()
	content := must.Get(os.ReadFile("../../site/etc/" + name))(t)
	return string(content)
}

// board is the part of a dashboard that the tests read.
type board struct {
	UID           string  `json:"uid"`
	Title         string  `json:"title"`
	SchemaVersion int     `json:"schemaVersion"`
	Panels        []panel `json:"panels"`
	Templating    struct {
		List []struct{ Name, Type, Definition string } `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID         int
	Type       string
	Title      string
	GridPos    struct{ X, Y, W, H int }
	Datasource *datasource
	Targets    []struct {
		Expr       string
		RefID      string `json:"refId"`
		Datasource datasource
	}
}

type datasource struct{ Type, UID string }

func dashboard(t *testing.T) board {
	t.Helper()
	var d board
	must.OK(t, json.Unmarshal([]byte(siteFile(t, "grafana.json")), &d))
	return d
}

// The dashboard has the form that Grafana reads. Each panel has its own number and place, and no data source of a
// site is named.
func TestDashboard(t *testing.T) {
	d := dashboard(t)
	must.Have(t, d.UID != "" && d.Title != "" && d.SchemaVersion >= 36 && len(d.Panels) >= 15,
		"uid %q, title %q, schema %d, %d panels", d.UID, d.Title, d.SchemaVersion, len(d.Panels))
	defined := map[string]bool{"$__all": true}
	for _, v := range d.Templating.List {
		defined["$"+v.Name] = true
	}
	for _, name := range []string{"$datasource", "$node", "$partition"} {
		must.Hold(t, defined[name], "no variable %s", name)
	}
	for _, used := range regexp.MustCompile(`\$\{?\w+`).FindAllString(siteFile(t, "grafana.json"), -1) {
		if name := strings.Replace(used, "{", "", 1); !defined[name] {
			t.Errorf("%s is no variable of the dashboard", used)
		}
	}
	for i, p := range d.Panels {
		p.check(t)
		for _, q := range d.Panels[:i] {
			must.Hold(t, p.ID != q.ID && !p.overlaps(q), "panels %q and %q have the same number or place", p.Title, q.Title)
		}
	}
}

func (p panel) check(t *testing.T) {
	t.Helper()
	at := p.GridPos
	must.Hold(t, p.Title != "" && p.ID != 0 && at.X >= 0 && at.W > 0 && at.H > 0 && at.X+at.W <= 24,
		"panel %d %q at %+v", p.ID, p.Title, at)
	if p.Type == "row" {
		return
	}
	must.Hold(t, slices.Contains([]string{"stat", "timeseries", "table"}, p.Type) && len(p.Targets) != 0,
		"panel %q: type %q, %d queries", p.Title, p.Type, len(p.Targets))
	own := datasource{"prometheus", "${datasource}"}
	must.Hold(t, p.Datasource != nil && *p.Datasource == own, "panel %q: data source %v", p.Title, p.Datasource)
	for i, target := range p.Targets {
		must.Hold(t, target.Expr != "" && target.RefID == string(rune('A'+i)) && target.Datasource == own,
			"panel %q: query %+v", p.Title, target)
	}
}

func (p panel) overlaps(q panel) bool {
	a, b := p.GridPos, q.GridPos
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}

// fullMetrics is what mpsctl metrics prints of a node on which each metric has a sample.
func fullMetrics() string {
	n := state.Node{
		Jobs: []state.Job{{ID: 7, Phase: state.Opened, Daemons: []state.Daemon{{State: state.Serves}, {State: state.NoAnswer}}}},
		GPUs: []state.GPU{{UUID: site.UUID("GPU-a"), Held: true, Processes: []state.Process{{Kind: state.KindClient}}}},
	}
	n.Jobs[0].Report = usage.Report{Job: 7, User: "hpc1", Partition: "gpu"}
	node := nodeMetrics(n, []state.Finding{{Kind: "server-fault"}})
	return metricsText(slices.Concat(node, runningMetrics(n.Jobs), totals{jobs: 3}.families()))
}

var ourMetric = regexp.MustCompile(`slurm_mps_[a-z_]+`)

// mpsctl metrics prints each metric that the dashboard or an alert names.
func TestSiteFilesNameOurMetrics(t *testing.T) {
	printed := fullMetrics()
	for _, name := range []string{"grafana.json", "alerts.yml"} {
		named := ourMetric.FindAllString(siteFile(t, name), -1)
		must.Hold(t, len(named) >= 5, "%s names only %d metrics", name, len(named))
		for _, metric := range named {
			must.Hold(t, strings.Contains(printed, "# TYPE "+metric+" "),
				"%s names %s, which mpsctl metrics does not print", name, metric)
		}
	}
}

// program is the path of a program of Debian's package prometheus.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not here: install Debian's package prometheus", name)
	}
	return path
}

// The alert rules are rules of Prometheus. They fire in the cases of alerts_test.yml and in no other case.
func TestAlertRules(t *testing.T) {
	const tests = "testdata/alerts_test.yml"
	if text, err := os.ReadFile(tests); err != nil || !strings.Contains(string(text), "\nrule_files: [../../../site/etc/alerts.yml]\n") {
		t.Errorf("%s does not test the shipped rules: %v", tests, err) // promtool would not fail
	}
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "../../site/etc/alerts.yml"}, {"test", "rules", tests}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	cases := must.Get(os.ReadFile(tests))(t)
	rules := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(siteFile(t, "alerts.yml"), -1)
	for _, rule := range rules {
		for _, fires := range []string{`alertname: %s, exp_alerts: \[\]`, `alertname: %s\n +exp_alerts:\n`} {
			if !regexp.MustCompile(fmt.Sprintf(fires, rule[1])).Match(cases) {
				t.Errorf("alerts_test.yml has no case %q", fmt.Sprintf(fires, rule[1]))
			}
		}
	}
}

// docs/operator.md has the five alerts, and names those that are critical.
func TestTheFiveAlertsOfThePage(t *testing.T) {
	page := must.Get(os.ReadFile("../../docs/operator.md"))(t)
	rules := regexp.MustCompile(`alert: (\w+)(?s:.*?)severity: (\w+)`).FindAllStringSubmatch(siteFile(t, "alerts.yml"), -1)
	var documented, shipped []string
	for _, row := range regexp.MustCompile(`(?m)^\* (SlurmMPS\w+(?:, critical)?): `).FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, row[1])
	}
	for _, rule := range rules {
		name := rule[1]
		if rule[2] == "critical" {
			name += ", critical"
		}
		shipped = append(shipped, name)
	}
	slices.Sort(documented)
	slices.Sort(shipped)
	must.Hold(t, len(shipped) == 5 && slices.Equal(documented, shipped),
		"docs/operator.md has %q, alerts.yml %q: want the same five", documented, shipped)
}

// A real Prometheus reads what mpsctl metrics prints, and answers each query of the dashboard.
func TestDashboardInPrometheus(t *testing.T) {
	p := startPrometheus(t, fullMetrics())
	d := dashboard(t)
	substitute := strings.NewReplacer("$node", ".*", "$partition", ".*")
	queries := 0
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			queries++
			if found := p.query(t, substitute.Replace(target.Expr)); found == 0 && !strings.Contains(target.Expr, "increase(") {
				t.Errorf("panel %q has no data: %s", panel.Title, target.Expr)
			}
		}
	}
	must.Hold(t, queries >= 14, "only %d queries", queries)
	must.Hold(t, p.query(t, `slurm_mps_job_clients_seen{jobid="7",job="node"}`) == 1,
		"Prometheus does not keep the number of the Slurm job")
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		metric, label, _ := strings.Cut(strings.Trim(strings.TrimPrefix(v.Definition, "label_values"), "()"), ", ")
		must.Hold(t, p.query(t, fmt.Sprintf("count by (%s) (%s)", label, metric)) == 1,
			"variable %s has no value: %s", v.Name, v.Definition)
	}
}

// prometheus is a running server.
type prometheus struct{ address string }

// startPrometheus starts a server that reads a node's metrics each second, and waits until it has read them.
func startPrometheus(t *testing.T, metrics string) prometheus {
	t.Helper()
	path, dir := program(t, "prometheus"), t.TempDir()
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, metrics) }))
	t.Cleanup(node.Close)
	conf := fmt.Sprintf("global: {scrape_interval: 1s}\nrule_files: [%s/alerts.yml]\nscrape_configs:\n- job_name: node\n  static_configs:\n  - targets: [%q]\n",
		dir, strings.TrimPrefix(node.URL, "http://"))
	for name, content := range map[string]string{"prometheus.yml": conf, "alerts.yml": siteFile(t, "alerts.yml")} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	p := prometheus{freeAddress(t)}
	server := exec.CommandContext(t.Context(), path, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.address)
	said := must.Get(os.Create(filepath.Join(dir, "log")))(t)
	defer said.Close()
	server.Stderr = said
	must.OK(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if n, err := p.ask("slurm_mps_inspection_errors"); err == nil && n == 1 {
			return p
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(said.Name())
			t.Fatalf("Prometheus has not read the metrics:\n%s", log)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	return listener.Addr().String()
}

// query returns how many series a query has.
func (p prometheus) query(t *testing.T, expr string) int {
	t.Helper()
	n, err := p.ask(expr)
	must.Hold(t, err == nil, "%s: %v", expr, err)
	return n
}

func (p prometheus) ask(expr string) (series int, err error) {
	answer, err := http.Get("http://" + p.address + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	var is struct {
		Status, Error string
		Data          struct{ Result []any }
	}
	if err := json.NewDecoder(answer.Body).Decode(&is); err != nil {
		return 0, err
	}
	if is.Status != "success" {
		return 0, fmt.Errorf("%s: %s", is.Status, is.Error)
	}
	return len(is.Data.Result), nil
}
