// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
)

func mpsctl(args ...string) (code int, out, complaint string) { return runRoot(planCommand, args...) }

// The whole output of a plan is as in the golden files, as text and as JSON.
func TestPlanGoldens(t *testing.T) {
	for name, args := range map[string]string{
		"seven-on-two":     "--gpu H200 --gpus 2 --ranks 7 --share even --mem even",
		"default":          "--gpu H200 --ranks 8",
		"size-and-ceiling": "--gpu h100-pcie --gpus 2 --ranks 4 --share none --mem 8G --ceiling 50",
		"full":             "--gpu A100-80 --ranks 48 --share even --mem even --mem-overcommit 1.5",
		"idle-gpu":         "--gpu T4 --gpus 3 --ranks 2 --share 40%",
		"unnamed":          "--sms 57 --ranks 3 --share even",
		"sixty":            "--gpu B200 --clients 60 --ranks 60 --share overlap:2",
	} {
		for ending, more := range map[string][]string{".txt": nil, ".json": {"--json"}} {
			t.Run(name+ending, func(t *testing.T) {
				code, out, complaint := mpsctl(append(append([]string{"plan"}, strings.Fields(args)...), more...)...)
				if code != cli.ExitOK || complaint != "" {
					t.Fatalf("code %d, %s", code, complaint)
				}
				golden.Compare(t, filepath.Join("testdata", "plan", name+ending), out)
				if ending == ".txt" {
					fitsTerminal(t, out)
				}
			})
		}
	}
}

func fitsTerminal(t *testing.T, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// The JSON of a plan has the fields of the contract in their order. A missing cap or limit is null.
func TestPlanJSON(t *testing.T) {
	_, out, _ := mpsctl("plan", "--gpu", "H200", "--gpus", "2", "--ranks", "3", "--share", "even", "--json")
	const want = `{"ranks":[{"rank":0,"gpu":0,"sms":66,"percent":50,"memory_mib":null},{"rank":1,"gpu":1,"sms":132,"percent":null,"memory_mib":null},{"rank":2,"gpu":0,"sms":66,"percent":50,"memory_mib":null}]}` + "\n"
	if out != want {
		t.Errorf("got  %swant %s", out, want)
	}
	_, out, _ = mpsctl("plan", "--gpu", "H200", "--ranks", "8", "--share", "even", "--mem", "17000M", "--json")
	if want := `{"ranks":[{"rank":0,"gpu":0,"sms":18,"percent":13.636364,"memory_mib":17000},`; !strings.HasPrefix(out, want) {
		t.Errorf("got  %swant %s…", out, want)
	}
}

const models = "V100, V100-32, T4, A100-40, A100-80, A30, A40, RTX A6000, A10, A2, A16, RTX 3090, L4, L20, L40, L40S, RTX 6000 Ada, RTX 4090, H100 PCIe, H100 NVL, H100 SXM, H20, H200, B200, GB200, B300, RTX 5090, RTX PRO 6000, GH200"

func TestBadQuestions(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"plann", `cannot run "plann": there is no such command: did you mean plan?`},
		{"--frob", "cannot read flags: unknown flag: --frob: see mpsctl --help"},
		{"plan", "cannot plan: no GPU is given: name one with --gpu, or give its multiprocessors with --sms"},
		{"plan H200", `cannot take "H200": mpsctl plan takes only flags: see mpsctl plan --help`},
		{"plan --gpu", "cannot read flags: flag needs an argument: --gpu: see mpsctl plan --help"},
		{"plan --gpu H300 --ranks 2", `cannot find GPU "H300": known are ` + models + "; for another GPU, give --sms N in place of --gpu"},
		{"plan --gpu H200", "cannot plan for 0 ranks: give --ranks, the number of ranks on the node"},
		{"plan --gpu H200 --ranks -1", "cannot plan for -1 ranks: give --ranks, the number of ranks on the node"},
		{"plan --gpu H200 --ranks x", `cannot read --ranks: it is "x": want a whole number: see mpsctl plan --help`},
		{"plan --gpu H200 --ranks 2 --gpus 0", "cannot plan for 0 GPUs: give --gpus 1 to 64"},
		{"plan --gpu H200 --ranks 2 --gpus 65", "cannot plan for 65 GPUs: give --gpus 1 to 64"},
		{"plan --gpu H200 --ranks 49", "cannot place 49 ranks on 1 GPU: GPU 0 would have 49 and MPS serves 48 at once: run at most 48 ranks, or more GPUs"},
		{"plan --gpu H200 --ranks 97 --gpus 2", "cannot place 97 ranks on 2 GPUs: GPU 0 would have 49 and MPS serves 48 at once: run at most 96 ranks, or more GPUs"},
		{"plan --gpu H200 --ranks 61 --clients 60",
			"cannot place 61 ranks on 1 GPU: GPU 0 would have 61 and MPS serves 60 at once: run at most 60 ranks, or more GPUs"},
		{"plan --gpu H200 --ranks 1 --clients -1", "cannot plan for -1 clients: give --clients 1 or more"},
		{"plan --gpu H200 --ranks 2 --share evn", `cannot read share "evn": want none, even, overlap:F, PCT%, Nsm or a list like 3:1: did you mean even?`},
		{"plan --gpu H200 --ranks 2 --share half", `cannot read share "half": want none, even, overlap:F, PCT%, Nsm or a list like 3:1`},
		{"plan --gpu H200 --ranks 3 --gpus 2 --share 3:1",
			"cannot give share 3:1: the list is for 2 ranks on a GPU, and this GPU has 1: give as many entries as ranks"},
		{"plan --gpu H200 --ranks 2 --share 200sm", "cannot give share 200sm: the GPU has 132 SMs: ask for 132sm or less"},
		{"plan --gpu H200 --ranks 2 --mem 8", `cannot read memory "8": want none, even, or a size of whole MiB, like 8G or 16384M`},
		{"plan --gpu H200 --ranks 2 --mem 200G", "cannot give a rank 204800 MiB: the GPU has 142562 MiB beside the rank's context: ask for 142562M or less"},
		{"plan --gpu T4 --ranks 48 --share none --mem even --ceiling 100", ""},
		{"plan --gpu H200 --ranks 2 --mem-overcommit 0", `cannot read overcommit "0": want a factor from 1 to 48, like 1.5`},
		{"plan --gpu H200 --ranks 2 --ceiling 0",
			`cannot read --ceiling: cannot read percentage "0": want a number above 0 and up to 100, with at most six decimals`},
		{"plan --gpu H200 --ranks 2 --sms 60", "cannot plan with --sms 60: H200 has 132 SMs: leave out --gpu or --sms"},
		{"plan --sms -1 --ranks 2", "cannot plan for a GPU of -1 SMs: give --sms 1 to 10000"},
		{"plan --sms 10001 --ranks 2", "cannot plan for a GPU of 10001 SMs: give --sms 1 to 10000"},
		{"plan --sms 1 --ranks 2", "cannot divide GPU of 1 SMs in units of 2"},
		{"plan --sms 60 --ranks 2 --mem even", "cannot limit memory to even: the memory of a GPU given by --sms is not known: name it with --gpu (" + models + ")"},
	} {
		code, out, complaint := mpsctl(strings.Fields(c.args)...)
		if c.want == "" {
			if code != cli.ExitOK || complaint != "" {
				t.Errorf("%s: code %d, %s", c.args, code, complaint)
			}
			continue
		}
		if code != cli.ExitUsage || out != "" || complaint != "mpsctl: "+c.want+"\n" {
			t.Errorf("%s: code %d, printed %q\ngot  %swant mpsctl: %s", c.args, code, out, complaint, c.want)
		}
	}
}

// A plan that cannot be printed gives exit code 1, because the request has no error.
func TestAPlanThatCannotBePrinted(t *testing.T) {
	for _, more := range [][]string{nil, {"--json"}} {
		var e bytes.Buffer
		code := command.Run(cli.Process{Args: append([]string{"plan", "--gpu", "H200", "--ranks", "2"}, more...), Out: fullPlan{}, Err: &e}, Command)
		if want := "mpsctl: cannot print plan: no space left\n"; code != 1 || e.String() != want {
			t.Errorf("code %d\ngot  %swant %s", code, e.String(), want)
		}
	}
}

type fullPlan struct{}

func (fullPlan) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestHelpAndVersion(t *testing.T) {
	code, out, complaint := mpsctl("plan", "--help")
	if code != cli.ExitOK || complaint != "" {
		t.Errorf("code %d, %s", code, complaint)
	}
	for _, word := range []string{"overlap:F", "3:1", "PCT%", "Nsm", "--gpu", "--json", "H100 PCIe", `(default "overlap:2")`} {
		if !strings.Contains(out, word) {
			t.Errorf("the help does not have %s:\n%s", word, out)
		}
	}
	if code, out, _ := mpsctl("--version"); code != cli.ExitOK || out != cli.Version()+"\n" {
		t.Errorf("code %d, %s", code, out)
	}
}

// The JSON of a plan has the values of its table.
func TestJSONReadsBack(t *testing.T) {
	_, out, _ := mpsctl("plan", "--gpu", "L4", "--ranks", "5", "--share", "even", "--mem", "even", "--json")
	var read struct {
		Ranks []struct {
			Rank, GPU, SMs int
			Percent        *float64
			MemoryMiB      *int `json:"memory_mib"`
		}
	}
	if err := json.Unmarshal([]byte(out), &read); err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, r := range read.Ranks {
		sum += r.SMs
		if r.Percent == nil || r.MemoryMiB == nil {
			t.Errorf("rank %d has null", r.Rank)
		}
	}
	if len(read.Ranks) != 5 || sum != 58 {
		t.Errorf("%d ranks, %d SMs", len(read.Ranks), sum)
	}
}
