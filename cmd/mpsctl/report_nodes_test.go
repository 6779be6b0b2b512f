// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"golang.org/x/sys/unix"
)

// onNode is the report of reported on another node and at another time.
func onNode(node string, later time.Duration) usage.Report {
	r := reported()
	r.Node, r.NodeList, r.Array = node, "gpu[01-04]", "4709_3"
	r.Begin, r.End = r.Begin.Add(later), r.End.Add(later)
	return r
}

// The report of several nodes has a line for each, and one with their sums. A client stays with its node's GPU. Nodes
// without a report are named.
func TestReportOfNodes(t *testing.T) {
	second := onNode("gpu03", time.Minute)
	second.Clients, second.ClientsSeen, second.BadEnds, second.Pauses = second.Clients[:1], 1, 1, 0
	second.Clients[0].PID, second.Clients[0].Rank = 4303, 20 // a pid that the fault's client has on the other node
	second.GPUs, second.EnergyJ, second.Faults = second.GPUs[:1], 1476000, nil
	a := answerOf([]usage.Report{onNode("gpu01", 0), second}, second.End)
	text := reportText(a, command.Screen{Columns: 80}, second.End)
	golden.CompareIn(t, goldens, "report/nodes.txt", text)
	fitsColumns(t, text)
	content, err := json.Marshal(a)
	var got struct {
		Job      uint32
		Node     string
		Nodes    []listed
		Missing  []string
		GPUHours float64 `json:"gpu_hours"`
		GPUs     []usage.GPU
		Clients  []usage.Client
		usage.Totals
	}
	err = errors.Join(err, json.Unmarshal(content, &got))
	must.OK(t, err)
	if got.Job != 4711 || got.Node != "gpu01,gpu03" || !slices.Equal(got.Missing, []string{"gpu02", "gpu04"}) ||
		got.GPUHours != 3.75 || got.ClientsSeen != 10 || got.BadEnds != 6 || got.EnergyJ != 4428000 || got.Pauses != 2 {
		t.Errorf("%.300s", content)
	}
	if last := got.Clients[len(got.Clients)-1]; len(got.GPUs) != 3 || got.GPUs[last.GPU].Node != "gpu03" {
		t.Errorf("the client of the second node is on GPU %d of %d", last.GPU, len(got.GPUs))
	}
	if n := got.Nodes[1]; len(got.Nodes) != 2 || n.Node != "gpu03" || n.ClientsSeen != 1 || n.GPUHours != 1.25 {
		t.Errorf("%+v", got.Nodes)
	}
}

// A job that runs on one of its nodes runs. The report of one node is as it was, with the same shape in JSON.
func TestReportOfOneNodeAndOfARunningOne(t *testing.T) {
	running := onNode("gpu02", 0)
	running.End = time.Time{}
	for _, order := range [][]usage.Report{{onNode("gpu01", 0), running}, {running, onNode("gpu01", 0)}} {
		if a := answerOf(order, running.Begin); !a.End.IsZero() {
			t.Errorf("it has ended at %v", a.End)
		}
	}
	a := answerOf([]usage.Report{reported()}, reported().End)
	if len(a.Nodes) != 1 || a.Nodes[0].Node != "gpu01" || len(a.Missing) != 0 || a.Missing == nil ||
		a.GPUs[0].Node != "" || a.GPUHours != a.Nodes[0].GPUHours {
		t.Errorf("%+v", a.Nodes)
	}
}

// writeReport writes a report as a user has it: a copy, or the JSON of mpsctl report.
func writeReport(t *testing.T, path string, of any) {
	t.Helper()
	content, err := json.Marshal(of)
	must.OK(t, errors.Join(err, os.WriteFile(path, content, 0o600)))
}

// Of a folder, a job has its latest run, one report of each node, and no file that another user can write.
func TestTheLatestRun(t *testing.T) {
	folder := t.TempDir()
	for name, r := range map[string]usage.Report{
		"4711.gpu02.json": onNode("gpu02", 0), // of an earlier run
		"a":               onNode("gpu01", 0),
		"b":               onNode("gpu01", 2*time.Hour),
	} {
		writeReport(t, filepath.Join(folder, name), r)
	}
	writeReport(t, filepath.Join(folder, "c"), answerOf([]usage.Report{onNode("gpu03", 2*time.Hour)}, time.Now()))
	other := onNode("gpu04", 2*time.Hour)
	other.Job, other.Array = 4712, "4709_4"
	writeReport(t, filepath.Join(folder, "d"), other)
	writeReport(t, filepath.Join(folder, "e"), onNode("gpu05", 2*time.Hour))
	must.OK(t, errors.Join(os.Chmod(filepath.Join(folder, "e"), 0o622),
		os.WriteFile(filepath.Join(folder, "f"), []byte("{"), 0o600), os.Symlink(filepath.Join(folder, "d"), filepath.Join(folder, "g"))))
	for job, want := range map[string]string{
		"4711": "gpu01 gpu03", "4709_3": "gpu01 gpu03", "4709_4": "gpu04", "4712": "gpu04",
	} {
		nodes, err := latestRun(folder, job)
		var names []string
		for _, r := range nodes {
			names = append(names, r.Node)
		}
		must.Hold(t, err == nil && strings.Join(names, " ") == want, "%s: %q, %v, want %s", job, names, err, want)
	}
	claims := onNode("gpu04", 3*time.Hour) // a job that a task of the array has submitted
	claims.Job = 4713
	writeReport(t, filepath.Join(folder, "h"), claims)
	const several = "several jobs have this name: give the number of one: job 4711 of "
	if nodes, err := latestRun(folder, "4709_3"); err == nil || !strings.HasPrefix(err.Error(), several) {
		t.Errorf("%v, %v, want %s", nodes, err, several)
	}
	must.Equal(t, "it is named", nameOf(claims), "4713 (4709_3)")
	none := filepath.Join(folder, "none")
	later := filepath.Join(t.TempDir(), "later")
	other.Schema = usage.Schema + 1
	writeReport(t, later, other)
	const lacks = " has no copy of its report that is your own: it comes at the job's end; "
	for folder, want := range map[string]string{
		folder: folder + lacks + "cannot read ",
		none:   none + lacks + "open " + none + ": no such file or directory",

		filepath.Dir(later): later + ": a newer slurm-mps has written it: use its mpsctl",
	} {
		if _, err := latestRun(folder, "47"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// sharing is a node with a kept report of the user nobody, and the site's shared folder.
func sharing(t *testing.T) (paths site.Paths, shared string, owner *user.User) {
	t.Helper()
	owner, err := user.Lookup("nobody")
	if os.Geteuid() != 0 || err != nil {
		t.Skip("needs root and the user nobody")
	}
	top := must.Get(os.MkdirTemp("", "shared"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	paths, shared = site.Paths{Root: filepath.Join(top, "node")}, filepath.Join(top, "shared")
	config := "shared_reports = \"" + shared + "/%u\"\n"
	must.OK(t, errors.Join(os.Chmod(top, 0o755), os.Mkdir(shared, 0o755), os.Chmod(shared, 0o777|os.ModeSticky),
		os.MkdirAll(paths.Reports(), 0o755), os.MkdirAll(filepath.Dir(paths.ConfigFile()), 0o755), os.WriteFile(paths.ConfigFile(), []byte(config), 0o644)))
	keepAgain(t, paths, time.Hour)
	return paths, shared, owner
}

// keepAgain keeps a report that ended some time ago.
func keepAgain(t *testing.T, paths site.Paths, ago time.Duration) {
	t.Helper()
	r := reported()
	r.User, r.End = "nobody", time.Now().Add(-ago)
	writeReport(t, filepath.Join(paths.Reports(), "4711.json"), r)
}

// A copy is its user's own, in a folder of the user's own, and readable for no one else. It is written
// once for each run.
func TestACopyIsTheUsers(t *testing.T) {
	paths, shared, owner := sharing(t)
	path := filepath.Join(shared, "nobody", "4711.gpu01.json")
	for _, ago := range []time.Duration{time.Hour, time.Minute} { // it is requeued
		keepAgain(t, paths, ago)
		must.OK(t, shareReports(paths))
		first := must.Get(os.Lstat(path))(t)
		if r, err := usage.ReadOwn(path, uint32(os.Geteuid())); err == nil {
			t.Errorf("root has taken %+v for its own", r.Job)
		}
		for file, mode := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
			info, err := os.Lstat(file)
			if err != nil || strconv.Itoa(int(info.Sys().(*syscall.Stat_t).Uid)) != owner.Uid || info.Mode() != mode {
				t.Errorf("%s: %v, %v", file, info.Mode(), err)
			}
		}
		must.OK(t, shareReports(paths))
		if again, err := os.Lstat(path); err != nil || !os.SameFile(first, again) {
			t.Errorf("it is copied twice: %v", err)
		}
		var copied usage.Report
		content, err := os.ReadFile(path)
		if err = errors.Join(err, json.Unmarshal(content, &copied)); err != nil || time.Since(copied.End) > ago+time.Minute {
			t.Errorf("it ended at %v: %v", copied.End, err)
		}
	}
}

// Root's rights are not used: not for a folder into which the user may not write, nor behind the user's link.
func TestACopyHasTheUsersRights(t *testing.T) {
	paths, shared, owner := sharing(t)
	roots := filepath.Join(filepath.Dir(shared), "roots")
	uid, _ := strconv.Atoi(owner.Uid)
	link := filepath.Join(shared, "nobody")
	must.OK(t, errors.Join(os.Mkdir(roots, 0o755), os.Symlink(roots, link), os.Lchown(link, uid, -1)))
	if err := shareReports(paths); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a link to root's folder: %v", err)
	}
	must.OK(t, errors.Join(os.Remove(link), os.Mkdir(link, 0o755)))
	const want = "cannot share reports of nobody: "
	if err := shareReports(paths); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), want) {
		t.Errorf("root's folder: %v", err)
	}
	for _, folder := range []string{roots, link} {
		if entries, _ := os.ReadDir(folder); len(entries) > 0 {
			t.Errorf("%s has %v", folder, entries)
		}
	}
	probe := filepath.Join(roots, "probe") // this process is root as before
	must.Note(t, errors.Join(os.WriteFile(probe, nil, 0o600), os.Remove(probe)))
}

// Without shared_reports, nothing is copied, and old reports never are. A run beside one that hangs does nothing.
func TestWhatIsNotCopied(t *testing.T) {
	paths, shared, _ := sharing(t)
	day := time.Now().Add(-25 * time.Hour)
	path := filepath.Join(paths.Reports(), "4711.json")
	must.Note(t, errors.Join(os.Chtimes(path, day, day), shareReports(paths)))
	keepAgain(t, paths, time.Hour)
	kept, err := os.OpenFile(filepath.Join(paths.Kept(), ".share"), os.O_RDWR, 0)
	must.OK(t, errors.Join(err, syscall.Flock(int(kept.Fd()), syscall.LOCK_EX)))
	if err := shareReports(paths); err == nil || !strings.Contains(err.Error(), "one process of root") {
		t.Errorf("beside another one: %v", err)
	}
	kept.Close()
	must.Note(t, errors.Join(os.WriteFile(paths.ConfigFile(), nil, 0o644), shareReports(paths)))
	if entries, _ := os.ReadDir(shared); len(entries) > 0 {
		t.Errorf("copied: %v", entries)
	}
}

// No user can hold the lock: its file is root's alone. A lock on the folder, which any user can take, means nothing.
func TestNoUserStopsTheCopies(t *testing.T) {
	paths, shared, _ := sharing(t)
	kept, err := os.Open(paths.Reports())
	must.Note(t, errors.Join(err, syscall.Flock(int(kept.Fd()), syscall.LOCK_EX), shareReports(paths)))
	defer kept.Close()
	if _, err := os.Stat(filepath.Join(shared, "nobody", "4711.gpu01.json")); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Join(paths.Kept(), ".share")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the lock: %v, %v", info, err)
	}
}

// The links of /proc lead root into the folders of any process, and a user only into those of their own.
func TestACopyTakesNoWayThroughProc(t *testing.T) {
	paths, shared, owner := sharing(t)
	const other = 2001
	secret := filepath.Join(filepath.Dir(shared), "secret")
	open := filepath.Join(secret, "open")
	must.OK(t, errors.Join(os.MkdirAll(open, 0o700), os.Chmod(open, 0o777), os.Chown(secret, other, other)))
	process := exec.Command("sleep", "600")
	process.Dir, process.SysProcAttr = open, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other}}
	must.OK(t, process.Start())
	defer func() { _, _ = process.Process.Kill(), process.Wait() }()
	uid, _ := strconv.Atoi(owner.Uid)
	link := filepath.Join(shared, "nobody")
	way := fmt.Sprintf("/proc/%d/cwd", process.Process.Pid)
	must.OK(t, errors.Join(os.Symlink(way, link), os.Lchown(link, uid, -1)))
	if err := shareReports(paths); err == nil {
		t.Error("another user's folder is taken")
	}
	if entries, err := os.ReadDir(open); err != nil || len(entries) > 0 {
		t.Errorf("another user's folder has %v, %v", entries, err)
	}
}

// A root that may not become the user, as in a container without that user, writes nothing with its own rights.
func TestACopyIsNeverRoots(t *testing.T) {
	_, shared, owner := sharing(t)
	folder, result := filepath.Join(shared, owner.Username), make(chan error)
	for _, lacks := range []uint{unix.CAP_SETUID, unix.CAP_SETGID} {
		go func() {
			runtime.LockOSThread() // and this thread ends with the goroutine
			header, have := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
			err := unix.Capget(&header, &have[0])
			have[0].Effective &^= 1 << lacks
			if err = errors.Join(err, unix.Capset(&header, &have[0])); err != nil {
				result <- err
				return
			}
			result <- copyAs(owner.Username, folder, []usage.Report{reported()})
		}()
		if err := <-result; !errors.Is(err, os.ErrPermission) {
			t.Errorf("without capability %d: %v", lacks, err)
		}
		if entries, err := os.ReadDir(folder); err == nil {
			t.Errorf("without capability %d, root made %s with %v", lacks, folder, entries)
		}
	}
}

// A user can give a job the name of another user's in its array. Root gets neither of them in place of the other.
func TestANameOfTwoJobs(t *testing.T) {
	paths := site.Paths{Root: t.TempDir()}
	must.OK(t, os.MkdirAll(paths.Reports(), 0o755))
	for user, job := range map[string]uint32{"hpc1": 7, "hpc2": 8} {
		r := reported()
		r.Job, r.User, r.Array = job, user, "4711_3"
		writeReport(t, filepath.Join(paths.Reports(), fmt.Sprintf("%d.json", job)), r)
	}
	_, err := latestReport(paths, "4711_3")
	if err == nil || !strings.Contains(err.Error(), "7 of hpc1") || !strings.Contains(err.Error(), "8 of hpc2") {
		t.Error(err)
	}
	if r, err := latestReport(paths, "7"); err != nil || r.User != "hpc1" {
		t.Errorf("%+v, %v", r, err)
	}
}
