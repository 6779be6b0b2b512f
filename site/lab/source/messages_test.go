// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

// varies matches what differs between two messages of a kind. It also matches where the programs join parts of a
// message.
var varies = regexp.MustCompile(`: | \(pid|/run\S+|GPU-\.\.\.|\.\.\.|\bn1\b|[0-9]+s?`)

// joinedText is where a text goes on in the next line of the source.
var joinedText = regexp.MustCompile(`"\s*\+\s*"`)

// programTexts returns the sources of what users' programs print.
func programTexts(t *testing.T) string {
	t.Helper()
	var source strings.Builder
	for _, pattern := range []string{"../../../mpirun-wrap/*.go", "../../../mpirun-wrap/own/*.go", "../../../prolog/*.go",
		"../../../site/*/*.go", "../../../site/slurm/launch/*.go", "../../../policy/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %q, %v", pattern, files, err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(file, "_test.go") {
				source.Write(joinedText.ReplaceAll(content, nil))
			}
		}
	}
	return source.String()
}

// docs/troubleshooting.md quotes messages of mpirun-wrap as the programs print them.
func TestTheMessagesAreThePrograms(t *testing.T) {
	source := programTexts(t)
	pieces := 0
	quoted := regexp.MustCompile("(?m)^\\* `([^`]+)`:")
	for _, m := range quoted.FindAllStringSubmatch(part(t, e2e.Read(t, "../../../docs/troubleshooting.md"), "Messages of mpirun-wrap"), -1) {
		for _, piece := range varies.Split(m[1], -1) {
			if piece = strings.Trim(piece, " :()"); len(piece) < 8 {
				continue
			}
			pieces++
			if !strings.Contains(source, piece) {
				t.Errorf("no program prints %q, which docs/troubleshooting.md quotes", piece)
			}
		}
	}
	if pieces < 15 {
		t.Errorf("only %d pieces of messages found", pieces)
	}
}

// docs/operator.md quotes what users see of a failure as the programs, Slurm and CUDA print it.
func TestWhatUsersSee(t *testing.T) {
	source, others := programTexts(t), []string{"DUE TO NODE FAILURE"} // of slurmstepd
	for _, p := range printed {
		others = append(others, p.words)
	}
	ours, quotes := 0, 0
	table := part(t, e2e.Read(t, "../../../docs/operator.md"), "What users see")
	for _, row := range regexp.MustCompile(`(?m)^\|[^|]+\|([^|]+)\|[^|]+\|$`).FindAllStringSubmatch(table, -1) {
		for _, quote := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			quotes++
			if slices.Contains(others, quote[1]) {
				continue
			}
			for _, piece := range varies.Split(quote[1], -1) {
				if piece = strings.Trim(piece, " :();"); len(piece) < 8 {
					continue
				}
				if ours++; !strings.Contains(source, piece) {
					t.Errorf("no program prints %q, which docs/operator.md quotes", piece)
				}
			}
		}
	}
	if quotes < 10 || ours < 5 {
		t.Errorf("only %d quotes found, %d pieces of ours", quotes, ours)
	}
}

// printed are 35 texts that users of slurm-mps see if something is wrong: 11 of ours, and 24 of other programs. The
// source of ours is the file that has the text in code. The source of the others is who prints the text, and if.
var printed = []struct{ words, source, code string }{
	{"cannot use MPS: this is not a Slurm job (SLURM_JOB_ID is not set)", "../../../mpirun-wrap/placement.go", ""},
	{"the job did not ask for MPS", "../../../mpirun-wrap/placement.go", ""},
	{"this job has no MPS: ", "../../../mpirun-wrap/placement.go", ""},
	{"ranks share it, and at most 48 can", "../../../mpirun-wrap/placement.go", "ranks share it, and at most %d can"},
	{"in EXCLUSIVE_PROCESS mode, so a program without MPS fails with CUDA error 46", "../../../mpirun-wrap/run.go", "fails with CUDA error 46: submit the job without"},
	{"cannot take a slot: all 8 are taken", "../../../mpirun-wrap/slots.go", "cannot take a slot: all %d are taken"},
	{"has not recovered from a fatal GPU error within", "../../../mpirun-wrap/ready.go", ""},
	{"the list is for 2 ranks on a GPU, and this GPU has 3", "../../../policy/share.go", "the list is for %d ranks on a GPU, and this GPU has %d"},
	{"is less than a client can have: it gets", "../../../policy/share.go", ""},
	{"cannot tune outside a job", "../../../cmd/mpsctl/tune/cmd_tune.go", ""},
	{"cannot report job 7: this node has no report of it", "../../../cmd/mpsctl/cmd_report.go", "this node has no report of it"},

	{"out of memory", "CUDA, cudaGetErrorString(cudaErrorMemoryAllocation)", ""},
	{"all CUDA-capable devices are busy or unavailable", "CUDA until 11, cudaErrorDevicesUnavailable", ""},
	{"CUDA-capable device(s) is/are busy or unavailable", "CUDA 12 and later, the same error", ""},
	{"no CUDA-capable device is detected", "CUDA, cudaErrorNoDevice", ""},
	{"invalid device ordinal", "CUDA, cudaErrorInvalidDevice", ""},
	{"an illegal memory access was encountered", "CUDA, cudaErrorIllegalAddress", ""},
	{"unspecified launch failure", "CUDA, cudaErrorLaunchFailure", ""},
	{"MPS client failed to connect to the MPS control daemon or the MPS server", "CUDA, cudaErrorMpsConnectionFailed", ""},
	{"MPS server is not ready to accept new MPS client requests", "CUDA, cudaErrorMpsServerNotReady", ""},
	{"CUDA out of memory. Tried to allocate", "PyTorch, its allocator, also under --mem", ""},
	{"No CUDA GPUs are available", "PyTorch, torch.cuda.init", ""},
	{"Duplicate GPU detected", "NCCL, init.cc: two ranks on one GPU", ""},
	{"ncclInvalidUsage", "NCCL, the name of that error", ""},
	{"CUBLAS_STATUS_ALLOC_FAILED", "cuBLAS, cublasCreate on a full GPU", ""},
	{"RESOURCE_EXHAUSTED: Out of memory", "JAX, XLA's allocator", ""},
	{"srun: unrecognized option '--mps'", "srun without the SPANK plugin, by getopt", ""},
	{"Invalid generic resource (gres) specification", "Slurm, slurm_errno: ESLURM_INVALID_GRES", ""},
	{"Invalid feature specification", "Slurm, slurm_errno: ESLURM_INVALID_FEATURE", ""},
	{"Requested node configuration is not available", "Slurm, slurm_errno: ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE", ""},
	{"are still not ready", "srun, if the prolog failed", ""},
	{"launch failed requeued held", "squeue, the reason of a batch job whose prolog failed", ""},
	{"Exited with exit code 137", "srun, if SIGKILL ended a program below a shell", ""},
	{"(Resources)", "squeue, the reason of a job that waits", ""},
	{"mpsctl: command not found", "bash, if PATH has no /usr/sbin", ""},
}

// docs/troubleshooting.md has each of these texts as it is printed, because users search for words and not for numbers.
func TestTheWordsThatUsersSee(t *testing.T) {
	page := e2e.Read(t, "../../../docs/troubleshooting.md")
	own := 0
	for _, p := range printed {
		if !strings.Contains(page, p.words) {
			t.Errorf("docs/troubleshooting.md has no %q (%s)", p.words, p.source)
		}
		if !strings.HasPrefix(p.source, "../../../") {
			continue
		}
		own++
		if code := cmp.Or(p.code, p.words); !strings.Contains(e2e.Read(t, p.source), code) {
			t.Errorf("%s does not print %q", p.source, code)
		}
	}
	if own != 11 || len(printed) != 35 {
		t.Errorf("%d texts, of which %d are ours: want 35 and 11", len(printed), own)
	}
}

// The page also has the names of CUDA's errors, and words that are seen less often.
func TestTheWordsOfOtherPrograms(t *testing.T) {
	page := e2e.Read(t, "../../../docs/troubleshooting.md")
	for _, words := range []string{
		"cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorDevicesUnavailable", "cudaErrorNoDevice",
		"cudaErrorInvalidDevice", "cudaErrorIllegalState", "cudaErrorIllegalAddress", "cudaErrorLaunchFailure",
		"cudaErrorMpsConnectionFailed", "cudaErrorMpsRpcFailure", "cudaErrorMpsServerNotReady",
		"cudaErrorMpsMaxClientsReached", "cudaErrorMpsMaxConnectionsReached", "cudaErrorMpsClientTerminated",
		"CUBLAS_STATUS_NOT_INITIALIZED", "failed call to cuInit", "Exited with exit code 125", "task 3: Killed",
		"Something is wrong with the boot of the nodes", "CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_PREALLOCATE=false",
	} {
		if !strings.Contains(page, words) {
			t.Errorf("docs/troubleshooting.md has no %q", words)
		}
	}
}
