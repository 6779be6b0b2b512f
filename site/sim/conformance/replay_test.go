// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

//go:embed testdata/answers-no-server.txt
var answersNoServer string

//go:embed testdata/start-query-share.txt
var startQueryShare string

//go:embed testdata/sweep-h200.txt
var sweep string

//go:embed testdata/percentages.txt
var percentages string

// exchange is a recorded command with its answer on standard output.
type exchange struct {
	command, answer string
	code            int
}

var ending = regexp.MustCompile(`^   rc=(\d+)  `)

// exchanges reads the lines "--> COMMAND", the answer (with or without "o|" before each line), "   rc=N  …".
func exchanges(text string) []exchange {
	var found []exchange
	var lines []string
	inside := false
	for _, line := range strings.Split(text, "\n") {
		command, begins := strings.CutPrefix(line, "-->")
		end := ending.FindStringSubmatch(line)
		switch {
		case begins:
			found, lines, inside = append(found, exchange{command: strings.TrimPrefix(command, " ")}), nil, true
		case end != nil && inside:
			last := &found[len(found)-1]
			last.answer = strings.Join(lines, "\n")
			last.code, _ = strconv.Atoi(end[1])
			inside = false
		case inside:
			lines = append(lines, strings.TrimPrefix(line, "o|"))
		}
	}
	return found
}

var (
	anyUUID     = regexp.MustCompile(`(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]+`)
	anyModel    = regexp.MustCompile(`(NVIDIA|Tesla|Quadro|GRID) [^,"\n]*`)
	anyPosition = regexp.MustCompile(`0000:[0-9a-f.]{8}`)
	anyProgram  = regexp.MustCompile(`/\S+\s*`)
	anyName     = regexp.MustCompile(`[0-9]{10} +`)
)

// plain replaces what differs on another machine: devices, models, positions, programs, namespaces.
func plain(answer string) string {
	answer = anyModel.ReplaceAllString(anyUUID.ReplaceAllString(answer, "UUID"), "MODEL")
	answer = anyPosition.ReplaceAllString(answer, "POSITION")
	answer = anyName.ReplaceAllString(answer, "NAMESPACE ")
	return anyProgram.ReplaceAllString(answer, "PROGRAM")
}

// replay sends the recorded commands to the daemon and compares the answers. renamed are pairs: a recorded pid and
// the pid in this run.
func (d *daemon) replay(recorded []exchange, renamed ...string) {
	d.t.Helper()
	rename := strings.NewReplacer(renamed...)
	must.Hold(d.t, len(recorded) != 0, "there is no recorded exchange to replay")
	for _, e := range recorded {
		command := rename.Replace(e.command)
		out := d.tell(command, answerDeadline)
		got, want := plain(strings.TrimSuffix(out.stdout, "\n")), plain(rename.Replace(e.answer))
		must.Hold(d.t, columns(got) == columns(want) && out.code == e.code && !out.late,
			"%q answers %q, rc %d; recorded %q, rc %d", command, got, out.code, want, e.code)
	}
}

// columns makes all gaps between columns equal, because pids differ in length.
func columns(text string) string { return regexp.MustCompile(` {2,}`).ReplaceAllString(text, "  ") }

// Every answer that was recorded without a server, in the order of the recording.
func TestRecordedAnswersWithoutServer(t *testing.T) {
	alone(t)
	d := start(t, "CUDA_VISIBLE_DEVICES="+under(t).gpus[0])
	d.replay(exchanges(answersNoServer), "2001", fmt.Sprint(d.uid))
}

// The answers of start-query-share.txt: without a server, with a server, and with two clients.
func TestRecordedAnswers(t *testing.T) {
	alone(t)
	all := exchanges(startQueryShare)
	before, after, clients := scenes(t, all)
	d := start(t, "CUDA_VISIBLE_DEVICES="+under(t).gpus[0])
	d.replay(before)
	server := fmt.Sprint(d.server())
	d.replay(after, "624", server)
	d.info() // the recording has a client before these two, so their IDs are 2 and 3
	one := d.spin(nil, "-ms", "1", "-for", "20")
	two := d.spin(nil, "-ms", "1", "-for", "20")
	d.replay(clients, "624", server, "670", fmt.Sprint(one.pid()), "671", fmt.Sprint(two.pid()))
}

// scenes divides the recording into three parts: before start_server; with a server; with the two clients, 670 and
// 671.
func scenes(t *testing.T, all []exchange) (before, after, clients []exchange) {
	t.Helper()
	started := false
	for _, e := range all {
		switch {
		case strings.HasPrefix(e.command, "start_server"):
			started = true
		case e.command == "quit":
			return before, after, clients
		case !started:
			before = append(before, e)
		case strings.Contains(e.answer, "670"):
			clients = append(clients, e)
		default:
			after = append(after, e)
		}
	}
	t.Fatal("the recording has no quit")
	return nil, nil, nil
}

// point is a percentage and the number of SMs that it gave on a device of 132 SMs. mib is the memory of the context;
// it is 0 if it was not recorded.
type point struct {
	percentage string
	sms, mib   int
}

func points(t *testing.T) []point {
	t.Helper()
	var all []point
	for _, line := range strings.Split(strings.TrimSpace(sweep), "\n") {
		var p point
		if _, err := fmt.Sscanf(line, "%s %d %d", &p.percentage, &p.sms, &p.mib); err != nil {
			t.Fatalf("sweep: %q: %v", line, err)
		}
		all = append(all, p)
	}
	for _, line := range strings.Split(percentages, "\n") {
		words := regexp.MustCompile(`^\[?([^\]\s]*)\]? err=0\(cudaSuccess\) sm=(\d+) `).FindStringSubmatch(line)
		if words != nil && !strings.HasPrefix(line, "err") {
			sms, _ := strconv.Atoi(words[2])
			all = append(all, point{percentage: words[1], sms: sms})
		}
	}
	for _, line := range strings.Split(startQueryShare, "\n") {
		words := regexp.MustCompile(`^([\d.]+) err=0\(cudaSuccess\) sm=(\d+) ndev=1 init=[\d.]+ free=(\d+)MiB total=(\d+)MiB`).FindStringSubmatch(line)
		if words != nil {
			sms, _ := strconv.Atoi(words[2])
			free, _ := strconv.Atoi(words[3])
			total, _ := strconv.Atoi(words[4])
			all = append(all, point{words[1], sms, total - free})
		}
	}
	must.Have(t, len(all) >= 150, "only %d recorded points", len(all))
	return all
}

// The client sees the recorded SMs and free memory at every ninth recorded point. The test also includes the points
// with .333 and the values that MPS ignores.
func TestSharesOfClient(t *testing.T) {
	alone(t)
	d := start(t, "CUDA_VISIBLE_DEVICES="+under(t).gpus[0])
	d.server()
	if whole := d.info(); whole.sms != 132 {
		t.Skipf("the recording is from a device of 132 SMs, and this device has %d", whole.sms)
	}
	for i, p := range points(t) {
		if i%9 != 0 && !strings.Contains(p.percentage, ".333") && p.percentage != "" && p.percentage != "0" && p.percentage != "abc" {
			continue
		}
		got := d.info("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=" + p.percentage)
		must.Hold(t, got.err == 0 && got.sms == p.sms && (p.mib == 0 || got.total-got.free == p.mib),
			"%s %%: %+v, recorded %d SMs and %d MiB", p.percentage, got, p.sms, p.mib)
	}
}

// The simulation's share arithmetic gives the recorded SMs and memory at every recorded point.
func TestSharesOfArithmetic(t *testing.T) {
	alone(t)
	onlySimulated(t, "it tests a function of the simulation")
	_, here, _, _ := runtime.Caller(0)
	header := filepath.Join(filepath.Dir(here), "..", "cuda", "share.h")
	if _, err := os.Stat(header); err != nil {
		t.Skipf("this machine does not have the sources: %v", err)
	}
	dir := t.TempDir()
	source := fmt.Sprintf("#include %q\n#include <stdio.h>\n#include <string.h>\nint main(void)\n{\n\tchar line[64];\n"+
		"\twhile (fgets(line, sizeof line, stdin)) {\n\t\tline[strcspn(line, \"\\n\")] = 0;\n"+
		"\t\tint sms = share_sms(132, 2, share_percentage(line));\n\t\tprintf(\"%%d %%d\\n\", sms, share_context_mib(sms));\n\t}\n}\n", header)
	must.OK(t, os.WriteFile(filepath.Join(dir, "points.c"), []byte(source), 0o644))
	program := filepath.Join(dir, "points")
	if out, err := exec.Command("gcc", "-Wall", "-Wextra", "-O2", "-o", program, filepath.Join(dir, "points.c")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	all := points(t)
	var stdin bytes.Buffer
	for _, p := range all {
		fmt.Fprintln(&stdin, p.percentage)
	}
	command := exec.Command(program)
	command.Stdin = &stdin
	out := must.Get(command.Output())(t)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	must.Have(t, len(lines) == len(all), "%d lines for %d points", len(lines), len(all))
	for i, p := range all {
		var sms, mib int
		fmt.Sscanf(lines[i], "%d %d", &sms, &mib)
		must.Hold(t, sms == p.sms && (p.mib == 0 || mib == p.mib),
			"%q %%: %d SMs, %d MiB; recorded %d and %d", p.percentage, sms, mib, p.sms, p.mib)
	}
}
