// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// stubSMI replaces nvidia-smi. It keeps each GPU's mode in a file, and a list of the modes that were set.
const stubSMI = `#!/bin/sh
cd %s/gpus || exit 1
case $1 in
--query-gpu=*) for gpu in *; do echo "$gpu, $(cat "$gpu")"; done ;;
-i) echo "$*" >>../set; case $4 in DEFAULT) echo Default ;; EXCLUSIVE_PROCESS) echo Exclusive_Process ;; *) exit 1 ;; esac >"$2" ;;
*) exit 1 ;;
esac
`

// gpu.sh passes ALLOW_MODE_CHANGES to the programs that it runs. It sets a mode itself only to restore a mode that an
// act has changed, and only if modes may change.
func TestGPURunPutsBackOnlyWhatItMayChange(t *testing.T) {
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skip("needs xz")
	}
	for allowed, want := range map[string]struct{ set, after string }{
		"1": {"-i GPU-a -c DEFAULT\n-i GPU-b -c EXCLUSIVE_PROCESS\n", "Default Exclusive_Process"},
		"0": {"", "Exclusive_Process Default"}, "true": {"", "Exclusive_Process Default"}, "": {"", "Exclusive_Process Default"},
	} {
		t.Run(allowed, func(t *testing.T) {
			dir := stubbedRun(t)
			run := exec.CommandContext(t.Context(), "./gpu.sh", filepath.Join(dir, "pack"), filepath.Join(dir, "results"))
			run.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "ALLOW_MODE_CHANGES="+allowed)
			out, err := run.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "the GPUs are not as they were") {
				t.Errorf("the run does not report changed modes: %v\n%s", err, out)
			}
			if got, _ := os.ReadFile(filepath.Join(dir, "set")); string(got) != want.set {
				t.Errorf("the run set %q, want %q\n%s", got, want.set, out)
			}
			if got := strings.Join(strings.Fields(text(t, dir, "gpus/GPU-a")+text(t, dir, "gpus/GPU-b")), " "); got != want.after {
				t.Errorf("modes afterwards %s, want %s", got, want.after)
			}
			if got := text(t, dir, "told"); got != allowed {
				t.Errorf("the acts got ALLOW_MODE_CHANGES=%q", got)
			}
		})
	}
}

// stubbedRun returns a folder with a pack. The programs of the pack only change the mode of both GPUs.
func stubbedRun(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"gpus/GPU-a": "Default\n", "gpus/GPU-b": "Exclusive_Process\n", "bundle/slurm/empty": "", "nvidia-smi": fmt.Sprintf(stubSMI, dir),
		"pack/demo": "#!/bin/sh\n", "pack/bench": "#!/bin/sh\n", "pack/conformance.test": "#!/bin/sh\n",
		"pack/real.test": fmt.Sprintf("#!/bin/sh\ncd %s\nprintf %%s \"$ALLOW_MODE_CHANGES\" >told\necho Exclusive_Process >gpus/GPU-a\necho Default >gpus/GPU-b\n", dir),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := node.WriteProgram(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("tar", "-C", filepath.Join(dir, "bundle"), "-cJf",
		filepath.Join(dir, "pack/slurm-bundle.tar.xz"), "slurm").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

func text(t *testing.T, dir, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
