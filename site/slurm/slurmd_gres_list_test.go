// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
)

// These lists were printed by slurmd -G of 22.05 and 26.05, and 24.11 prints as 22.05 does. A list in an unknown form
// is not an empty list.
func TestParseGresList(t *testing.T) {
	for _, c := range []struct {
		name, printed string
		want          []int
		complaint     string
	}{
		{"22.05", "slurmd: Gres Name=gpu Type=(null) Count=2 Index=0 ID=7696487 File=/dev/nvidia[2-3] (null)\n", []int{2, 3}, ""},
		{"26.05", "[2026-11-23T01:32:00.164] error: Node configuration differs from hardware\n" +
			"[2026-11-23T01:32:00.215] Gres Name=gpu Type=(null) Count=2 Index=0 ID=7696487 File=/dev/nvidia[2-3] Links=(null) Flags=HAS_FILE\n", []int{2, 3}, ""},
		{"22.05 refuses", "slurmd: error: Parse error in file gres.conf line 1\nslurmd: fatal: error opening gres.conf\n",
			nil, "Parse error in file gres.conf line 1; error opening gres.conf"},
		{"26.05 refuses", "[2026-11-23T01:32:00.284] error: Parse error in file gres.conf line " +
			"1\n[2026-11-23T01:32:00.284] fatal: error opening gres.conf\n", nil, "Parse error in file gres.conf line 1; error opening gres.conf"},
		{"LogTimeFormat=thread_id", "Nov 29 02:14:22.581319 20229 slurmd       0x7f31c2a01740: Gres Name=gpu Type=(null) Count=2 Index=0 ID=7696487 " +
			"File=/dev/nvidia[2-3] (null)\n", []int{2, 3}, ""},
		{"thread_id refuses", "Nov 29 02:14:22.581319 20229 slurmd       0x7f31c2a01740: fatal: error: opening gres.conf\n", nil, "error: opening gres.conf"},
		{"no GPU", "[2026-11-23T01:32:00.364] s_p_parse_file: file \"gres.conf\" is empty\n", nil, ""},
		{"an unknown form", "gres gpu: /dev/nvidia0\n", nil, ""},
		{"no file", "slurmd: Gres Name=gpu Type=(null) Count=2 Index=0 ID=7696487 (null)\n", []int{}, ""},
	} {
		got, err := ParseGresList(c.printed)
		must.Hold(t, recorded.Message(err) == c.complaint && reflect.DeepEqual(got, c.want),
			"%s: %#v, %v; want %#v, %s", c.name, got, err, c.want, c.complaint)
	}
}

// TestAgainstSlurmd compares this package's reading of gres.conf and slurm.conf with a real slurmd's, which prints
// its list with -G. It needs slurmd, and root to make device nodes. With REQUIRE_LAB=1 their absence is a failure.
// SLURM_BUNDLE names another Slurm than the installed one.
func TestAgainstSlurmd(t *testing.T) {
	slurmd := labSlurmd(t)
	dev := labDevices(t, 6)
	tests := []struct {
		name, gres, conf string
		refused          bool // by slurmd, and so by this package
	}{
		{"a range", "Name=gpu File=DEV[0-3]", "gpu:4", false},
		{"the middle", "Name=gpu File=DEV[2-3]", "gpu:2", false},
		{"two lines against the numbers", "Name=gpu File=DEV3\nName=gpu File=DEV1", "gpu:2", false},
		{"a list against the numbers", "Name=gpu File=DEV4,DEV[0,2]", "gpu:3", false},
		{"NodeName= lines come last", "NodeName=n1 Name=gpu File=DEV4\nName=gpu File=DEV0\nNodeName=n[1-2] Name=gpu File=DEV3", "gpu:3", false},
		{"another node's line", "NodeName=n2 Name=gpu File=DEV4\nNodeName=n[1,3] Name=gpu File=DEV5", "gpu:1", false},
		{"padded names", "NodeName=n[01-03] Name=gpu File=DEV4\nNodeName=n1 Name=gpu File=DEV2", "gpu:1", false},
		{"slurm.conf counts fewer", "Name=gpu File=DEV5\nName=gpu File=DEV[1-4]", "gpu:3", false},
		{"a type", "Name=gpu Type=a File=DEV[1-2]", "gpu:a:2", false},
		{"slurm.conf drops a type", "Name=gpu Type=a File=DEV0\nName=gpu Type=b File=DEV[3-4]", "gpu:b:2", false},
		{"slurm.conf without types", "Name=gpu Type=b File=DEV3\nName=gpu Type=a File=DEV0", "gpu:2", false},
		{"another case of the type", "Name=gpu Type=A File=DEV[1-2]", "gpu:a:2", false},
		{"quotes, continuation, comment", "name=gpu \\\n  FILE=\"DEV2\" # File=DEV9", "gpu:1", false},
		{"a comment within quotes", "Name=gpu File=DEV1 Type=\"a#b\"", "gpu:1", false},
		{"spaces around =", "Name = gpu File= DEV2", "gpu:1", false},
		{"an escape", "Name=gpu File=DEV2 Type=a\\#b", "gpu:a#b:1", false},
		{"two backslashes at the end", "Name=gpu File=DEV2 Type=a\\\\\nName=gpu File=DEV1 Type=b", "gpu:2", false},
		{"include", "Include more.conf\nName=gpu File=DEV1", "gpu:2", false},
		{"AutoDetect off here", "AutoDetect=nvml\nNodeName=n1 AutoDetect=off Name=gpu File=DEV[1-2]", "gpu:2", false},
		{"AutoDetect behind Name", "Name=gpu File=DEV3 AutoDetect=nvml", "gpu:1", false},
		{"the last of a name counts", "Name=gpu File=DEV3 File=DEV2", "gpu:1", false},
		{"a line without Name", "NodeName=n1 Count=2\nNodeName=n1 Name=gpu File=DEV2", "gpu:1", false},
		{"Count wrong", "Name=gpu File=DEV[1-2] Count=3", "gpu:2", true},
		{"a name unknown", "Name=gpu File=DEV1 Foo=3", "gpu:1", true},
		{"a key unknown", "DEFAULT=1\nName=gpu File=DEV1", "gpu:1", true},
		{"AutoDetect with more", "AutoDetect=off Name=gpu File=DEV1", "gpu:1", true},
		{"AutoDetect twice", "NodeName=n1 AutoDetect=off\nNodeName=n1 AutoDetect=nvml Name=gpu File=DEV1", "gpu:1", true},
		{"twice the same", "Name=gpu File=DEV1\nName=gpu File=DEV1", "gpu:2", true},
		{"type on one", "Name=gpu Type=a File=DEV1\nName=gpu File=DEV2", "gpu:2", true},
		{"file on one", "Name=gpu Type=a File=DEV1\nName=gpu Type=a Count=1", "gpu:2", true},
		{"a range backwards", "Name=gpu File=DEV[2-0]", "gpu:3", true},
		{"both kinds of files", "Name=gpu File=DEV1 MultipleFiles=DEV2,DEV3", "gpu:1", true},
		{"rubbish at the end", "Name=gpu File=DEV1 rubbish", "gpu:1", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			labConf(t, dir, strings.ReplaceAll(tt.gres, "DEV", dev), strings.ReplaceAll("Name=gpu File=DEV5", "DEV", dev), tt.conf)
			theirs, err := labList(t, slurmd, dir)
			if refused := err != nil; refused != tt.refused {
				t.Fatalf("slurmd refuses: %v (%v), the table says %v", refused, err, tt.refused)
			}
			ours, err := ourList(dir)
			if tt.refused {
				must.Hold(t, err != nil, "slurmd refuses the files, and we read %v", ours)
				return
			}
			must.Hold(t, err == nil && slices.Equal(ours, theirs) && len(ours) != 0,
				"we read %v, %v, slurmd %v", ours, err, theirs)
		})
	}
}

func labSlurmd(t *testing.T) string {
	t.Helper()
	if bundle := os.Getenv("SLURM_BUNDLE"); bundle != "" {
		return filepath.Join(bundle, "sbin", "slurmd")
	}
	path, err := exec.LookPath("slurmd")
	if err != nil {
		path = "/usr/sbin/slurmd"
		_, err = os.Stat(path)
	}
	if err == nil && os.Geteuid() != 0 {
		err = fmt.Errorf("not root")
	}
	if err == nil {
		return path
	}
	must.Have(t, os.Getenv("REQUIRE_LAB") != "1", "REQUIRE_LAB=1: %v", err)
	t.Skipf("needs slurmd and root: %v", err)
	return ""
}

// labDevices makes n device nodes, because slurmd accepts no plain files, and returns their common prefix.
func labDevices(t *testing.T, n int) string {
	t.Helper()
	prefix := filepath.Join(t.TempDir(), "nvidia")
	for i := range n {
		if err := syscall.Mknod(fmt.Sprint(prefix, i), syscall.S_IFCHR|0o600, 195<<8|i); err != nil {
			if os.Getenv("REQUIRE_LAB") == "1" {
				t.Fatal(err)
			}
			t.Skipf("needs device nodes: %v", err)
		}
	}
	return prefix
}

func labConf(t *testing.T, dir, gres, included, counted string) {
	t.Helper()
	host := must.Get(os.Hostname())(t)
	host, _, _ = strings.Cut(host, ".")
	plugins := ""
	if bundle := os.Getenv("SLURM_BUNDLE"); bundle != "" {
		plugins = "PluginDir=" + filepath.Join(bundle, "plugins") + "\n"
	}
	conf := plugins + strings.NewReplacer("DIR", dir, "HOST", host, "GRES", strings.ReplaceAll(counted, "#", `\#`)).Replace(`ClusterName=lab
SlurmctldHost=localhost
GresTypes=gpu
SelectType=select/cons_tres
SlurmdSpoolDir=DIR/spool
SlurmdLogFile=DIR/log
SlurmdPidFile=DIR/pid
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
NodeName=n[1-3] NodeHostname=HOST NodeAddr=127.0.0.1 Port=17018-17020 CPUs=1 RealMemory=1 Gres=GRES
PartitionName=main Nodes=ALL Default=YES
`)
	for name, text := range map[string]string{"slurm.conf": conf, "gres.conf": gres + "\n", "more.conf": included + "\n"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
}

// labList returns the minor numbers that slurmd prints, or its reason to refuse.
func labList(t *testing.T, slurmd, dir string) ([]int, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, slurmd, "-G", "-N", "n1")
	cmd.Env = []string{"SLURM_CONF=" + filepath.Join(dir, "slurm.conf"), "PATH=/usr/sbin:/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	must.Have(t, ctx.Err() == nil, "slurmd -G did not end: %s", out)
	list, refused := ParseGresList(string(out))
	if refused == nil && err != nil {
		refused = fmt.Errorf("%w: %s", err, out)
	}
	return list, refused
}

// ourList resolves one position after another until there are no more.
func ourList(dir string) ([]int, error) {
	gres, err := ReadGres(filepath.Join(dir, "gres.conf"), "n1")
	if err != nil {
		return nil, err
	}
	node, err := ReadNode(filepath.Join(dir, "slurm.conf"), "n1")
	if err != nil {
		return nil, err
	}
	gres.Add(node)
	var list []int
	for {
		refs, err := ResolvePositions(gres, Job{Job: policy.Job{ID: 1, GPUs: []int{len(list)}}})
		if err != nil && len(list) > 0 && strings.Contains(err.Error(), "position") {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		list = append(list, refs[0].N)
	}
}

// slurmd takes any file for a GPU (run: slurmd -G of 22.05 with each of these). A job with a whole GPU beside such a line
// is found, and a job with such a position is refused.
func TestFilesThatAreNoWholeGPU(t *testing.T) {
	const whole, not = "Name=gpu File=/dev/nvidia[0,1]\n", " is not the device of a whole NVIDIA GPU: File= wants /dev/nvidiaN"
	for _, c := range []struct{ text, refused string }{
		{whole + "Name=gpu File=/dev/nvidia-caps/nvidia-cap[337,346]\n", `position 2 (/g:2): "/dev/nvidia-caps/nvidia-cap337"` + not},
		{whole + "Name=gpu File=/dev/nvidia-caps/nvidia-cap66\nName=gpu File=/dev/nvidia-caps/nvidia-cap75\n", `position 2 (/g:2): "/dev/nvidia-caps/nvidia-cap66"` + not},
		{whole + "Name=gpu File=/dev/nvidiactl\n", `position 2 (/g:2): "/dev/nvidiactl"` + not},
		{whole + "Name=gpu File=/dev/dri/renderD[128-129]\n", `position 2 (/g:2): "/dev/dri/renderD128"` + not},
		{whole + "Name=gpu File=/dev/nvidia[00-01]\n", `position 2 (/g:2): "/dev/nvidia00"` + not},
		{whole + "Name=gpu File=/dev/nvidia255\n", `position 2 (/g:2): "/dev/nvidia255" is not the device of a GPU: its number is above 253`},
	} {
		gres, err := readGres(files{"/g": c.text}.open, "/g", "n1")
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		refs, err := ResolvePositions(gres, Job{Job: policy.Job{ID: 7, GPUs: []int{0, 1}}})
		if want := []DeviceRef{{By: ByMinor, N: 0}, {By: ByMinor, N: 1}}; err != nil || !slices.Equal(refs, want) {
			t.Errorf("%s: whole GPUs are %v, %v, want %v", c.text, refs, err, want)
		}
		_, err = ResolvePositions(gres, Job{Job: policy.Job{ID: 7, GPUs: []int{2}}})
		must.Equal(t, fmt.Sprintf("got  %v\nwant", err), recorded.Message(err), "cannot resolve GPUs of job 7: "+c.refused)
		mig := site.UUID("MIG-GPU-aaaaaaaa/1/0")
		refs, err = ResolvePositions(gres, Job{Job: policy.Job{ID: 7, GPUs: []int{2}}, MIG: []site.UUID{mig}, Visible: []string{string(mig)}})
		if want := []DeviceRef{{By: ByUUID, UUID: mig}}; err != nil || !slices.Equal(refs, want) {
			t.Errorf("%s: the instance that Slurm names is %v, %v, want %v", c.text, refs, err, want)
		}
	}
}

// slurmd follows links, whatever their names are.
func TestLinksToGPUs(t *testing.T) {
	dir := t.TempDir()
	for link, target := range map[string]string{"gpu-a": "nvidia3", "nvidia0": "nvidia1", "loop": "loop", "chain": "gpu-a"} {
		must.OK(t, os.Symlink(filepath.Join(dir, target), filepath.Join(dir, link)))
	}
	for _, name := range []string{"nvidia1", "nvidia3"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	for name, want := range map[string]int{"gpu-a": 3, "chain": 3, "nvidia0": 1, "nvidia1": 1, "nvidia2": 2, "loop": -1} {
		got, err := readGres(files{"/g": "Name=gpu File=" + filepath.Join(dir, name) + "\n"}.open, "/g", "n1")
		must.Hold(t, err == nil && len(got.Entries) == 1 && got.Entries[0].Minor == want,
			"%s is %+v, %v, want minor %d", name, got.Entries, err, want)
	}
}

// A healthy node with instances: whole GPUs and the files of instances (slurmd -G with AutoDetect=nvml).
func TestSlurmdsListWithInstances(t *testing.T) {
	const printed = "slurmd: Gres Name=gpu Type=nvidia_h100 Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Flags=HAS_FILE\n" +
		"slurmd: Gres Name=gpu Type=h100_4g.40gb Count=1 Index=1 ID=7696487 File=/dev/nvidia-caps/nvidia-cap291 Flags=HAS_FILE\n"
	got, err := ParseGresList(printed)
	if want := []int{0, -1}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}
