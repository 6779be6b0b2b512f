// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
)

// sharedCounts returns the counts of all positions, or the error.
func sharedCounts(g Gres, name string) (counts []int, err error) {
	gpus, err := g.positions()
	for i := 0; i < gpus && err == nil; i++ {
		var n int
		n, err = g.SharedCount(name, i)
		counts = append(counts, n)
	}
	return counts, err
}

// sharedFiles are the files of the tests below. The counts are those of slurmd -G, with which
// TestSharedCountAgainstSlurmd compares them. A "-" means that slurmd does not start.
var sharedFiles = []struct{ name, conf, lines, want string }{
	{"one line", "gpu:4,shard:8", "Name=shard Count=8", "2 2 2 2"},
	{"a remainder", "gpu:4,shard:10", "Name=shard Count=10", "2 2 3 3"},
	{"fewer than GPUs", "gpu:4,shard:2", "Name=shard Count=2", "0 0 1 1"},
	{"slurm.conf alone", "gpu:4,shard:7", "", "1 2 2 2"},
	{"no Count= is one", "gpu:4,shard:8", "Name=shard", "-"},
	{"no counts", "gpu:4,shard", "Name=shard", "0 0 0 1"},
	{"slurm.conf has fewer", "gpu:4,shard:4", "Name=shard Count=8", "1 1 1 1"},
	{"slurm.conf has more", "gpu:4,shard:8", "Name=shard Count=4", "-"},
	{"fewer GPUs in slurm.conf", "gpu:3,shard:8", "Name=shard Count=8", "2 3 3"},
	{"a line a file", "gpu:4,shard:10", "Name=shard Count=4 File=DEV0\nName=shard Count=6 File=DEV[1-3]", "4 2 2 2"},
	{"files in another order", "gpu:4,shard:8", "Name=shard Count=2 File=DEV3\nName=shard Count=6 File=DEV[0-1]", "3 3 0 2"},
	{"a remainder of files is lost", "gpu:4,shard:5", "Name=shard Count=5 File=DEV[0-1]", "2 2 0 0"},
	{"a suffix", "gpu:4,shard:1K", "Name=shard Count=1K", "256 256 256 256"},
	{"another node's line", "gpu:4,shard:4", "NodeName=n2 Name=shard Count=9\nNodeName=n1 Name=shard Count=4", "1 1 1 1"},
	{"mps", "gpu:4,mps:400", "Name=mps Count=400", "100 100 100 100"},
	{"mps of files", "gpu:4,mps:310", "Name=mps Count=200 File=DEV0\nName=mps Count=30 File=DEV1\nName=mps Count=80 File=DEV[2-3]",
		"200 30 40 40"},
}

func TestSharedCount(t *testing.T) {
	for _, c := range sharedFiles {
		text := "Name=gpu File=/dev/nvidia[0-3]\n" + strings.ReplaceAll(c.lines, "DEV", "/dev/nvidia") + "\n"
		gres := sharedGres(t, text, "NodeName=n1 Gres="+c.conf+"\n")
		counts, err := sharedCounts(gres, sharedName(c.conf))
		if got := strings.Trim(fmt.Sprint(counts), "[]"); err == nil && got != c.want || (err != nil) != (c.want == "-") {
			t.Errorf("%s: %s, %v, want %s", c.name, got, err, c.want)
		}
	}
	gres := sharedGres(t, "Name=gpu File=/dev/nvidia[0-3]\nName=shard Count=8\n", "")
	if counts, err := sharedCounts(gres, "shard"); err != nil || !slices.Equal(counts, []int{2, 2, 2, 2}) {
		t.Errorf("without slurm.conf: %v, %v", counts, err)
	}
	gres = sharedGres(t, "AutoDetect=nvml\n", "NodeName=n1 Gres=gpu:4,shard:10\n")
	if counts, err := sharedCounts(gres, "shard"); err != nil || !slices.Equal(counts, []int{2, 2, 3, 3}) {
		t.Errorf("AutoDetect: %v, %v", counts, err)
	}
}

func TestSharedCountRefuses(t *testing.T) {
	const gpus = "Name=gpu File=/dev/nvidia[0-3]\n"
	for _, c := range []struct{ text, conf, name, want string }{
		{gpus, "gpu:4", "shard", "slurm.conf gives the node none"},
		{gpus + "Name=shard Count=8\n", "", "mps", "/g has no line of it"},
		{gpus + "Name=shard Count=8\n", "gpu:4,shard:9", "shard", "slurm.conf has 9 and /g 8: make them agree"},
		{gpus + "Name=shard Count=8 File=/dev/nvidia[0-3]\n", "gpu:4,shard:4", "shard", "slurm.conf has 4 and /g 8: make them agree"},
		{gpus + "Name=shard Count=x\n", "gpu:4,shard:8", "shard", "its Count= or File= is malformed (/g:2)"},
		{gpus + "Name=shard Count=8 File=/dev/dri/card0\n", "gpu:4,shard:8", "shard", "its Count= or File= is malformed (/g:2)"},
		{gpus + "Name=shard Count=99999999999999G\n", "gpu:4,shard:8", "shard", "its Count= or File= is malformed (/g:2)"},
		{gpus + "Name=shard Count=4\nName=shard Count=4\n", "gpu:4,shard:8", "shard",
			"a line without File= must be its only line (/g:3): slurmd does not start with it"},
		{"AutoDetect=nvml\n", "", "shard", "with AutoDetect=nvml the number of GPUs is in slurm.conf (not read): set SLURM_CONF"},
		{"AutoDetect=nvml\nName=shard Count=8 File=/dev/nvidia[0-3]\n", "gpu:4,shard:8", "shard",
			"its lines have File=, and which file the position has is not certain: use File= lines of the GPUs and no AutoDetect="},
		{"Name=shard Count=8\n", "gpu:4,shard:8", "shard", "the node has 0 GPUs in /g"},
	} {
		conf := ""
		if c.conf != "" {
			conf = "NodeName=n1 Gres=" + c.conf + "\n"
		}
		want := "cannot count gres/" + c.name + " of GPU 0 of node n1: " + c.want
		if _, err := sharedGres(t, c.text, conf).SharedCount(c.name, 0); recorded.Message(err) != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	gres := sharedGres(t, gpus+"Name=shard Count=8\n", "")
	for _, position := range []int{-1, 4} {
		want := fmt.Sprintf("cannot count gres/shard of GPU %d of node n1: the node has 4 GPUs in /g", position)
		if _, err := gres.SharedCount("shard", position); recorded.Message(err) != want {
			t.Errorf("got %v", err)
		}
	}
}

// sharedGres reads a gres.conf, and a slurm.conf if it is not empty.
func sharedGres(t *testing.T, text, conf string) Gres {
	t.Helper()
	all := files{"/g": text, "/s": conf}
	gres := must.Get(readGres(all.open, "/g", "n1"))(t)
	if conf != "" {
		node := must.Get(readNode(all.open, "/s", "n1"))(t)
		gres.Add(node)
	}
	return gres
}

// sharedName returns the name of the last GRES in "gpu:4,shard:8".
func sharedName(conf string) string {
	name, _, _ := strings.Cut(conf[strings.LastIndex(conf, ",")+1:], ":")
	return name
}

var sharedForm = regexp.MustCompile(`Gres Name=(\w+) Type=\S+ Count=(\d+) .*File=\S*nvidia(\d+)`)

// TestSharedCountAgainstSlurmd compares SharedCount with the list that a real slurmd prints.
func TestSharedCountAgainstSlurmd(t *testing.T) {
	slurmd := labSlurmd(t)
	dev := labDevices(t, 4)
	for _, c := range sharedFiles {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			name := sharedName(c.conf)
			labConf(t, dir, "Name=gpu File="+dev+"[0-3]\n"+strings.ReplaceAll(c.lines, "DEV", dev), "", c.conf)
			path := filepath.Join(dir, "slurm.conf")
			text := must.Get(os.ReadFile(path))(t)
			typed := strings.Replace(string(text), "GresTypes=gpu", "GresTypes=gpu,"+name, 1)
			must.OK(t, os.WriteFile(path, []byte(typed), 0o644))
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, slurmd, "-G", "-N", "n1")
			cmd.Env = []string{"SLURM_CONF=" + path, "PATH=/usr/sbin:/usr/bin:/bin"}
			out, err := cmd.CombinedOutput()
			var counts []string
			for _, m := range sharedForm.FindAllStringSubmatch(string(out), -1) {
				if m[1] == name {
					counts = append(counts, m[2])
				}
			}
			if got := strings.Join(counts, " "); err == nil && got != c.want || (err != nil) != (c.want == "-") {
				t.Errorf("slurmd has %q, %v, the table %q:\n%s", got, err, c.want, out)
			}
		})
	}
}

func TestShardsOnNode(t *testing.T) {
	for value, want := range map[string]int{"1": 1, "8": 8, "1073741824": 1 << 30} {
		if n, err := ShardsOnNode(Env{"SLURM_SHARDS_ON_NODE": value}); n != want || err != nil {
			t.Errorf("%s: %d, %v", value, n, err)
		}
	}
	if n, err := ShardsOnNode(Env{}); n != 0 || err != nil {
		t.Errorf("not set: %d, %v", n, err)
	}
	for _, value := range []string{"", "0", "-1", "2x", "1073741825", "99999999999999999999"} {
		want := `cannot count the shards: SLURM_SHARDS_ON_NODE is "` + value + `", want a number from 1 to 1073741824`
		if n, err := ShardsOnNode(Env{"SLURM_SHARDS_ON_NODE": value}); n != 0 || recorded.Message(err) != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// The recorded batch scripts and tasks tell their shards, and the prologs do not.
func TestShardsOfRecordings(t *testing.T) {
	for _, path := range recordings(t, "shared/*[0-9]-shard2-[bept]*.env", 15) {
		who := strings.TrimSuffix(path[strings.LastIndex(path, "shard2-")+len("shard2-"):], ".env")
		want := map[bool]int{true: 0, false: 2}[who == "prolog" || who == "epilog"]
		if n, err := ShardsOnNode(recording(t, path)); n != want || err != nil {
			t.Errorf("%s: %d, %v, want %d", path, n, err, want)
		}
	}
	for _, path := range recordings(t, "shared/*-shard2-step1-task0.env", 3) {
		if n, err := ShardsOnNode(recording(t, path)); n != 1 || err != nil {
			t.Errorf("%s: %d, %v, want 1", path, n, err)
		}
	}
}
