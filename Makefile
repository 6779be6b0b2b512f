# SPDX-License-Identifier: Apache-2.0
# "make help" prints the targets, each with the text after "##". The demo and the tests install missing packages and
# print a message.

.PHONY: help build parts install install-user packages release spank setup demo play own test test-all test-rest test-slurm test-packages test-release walk nightly check sweep soak bench fuzz vulncheck site-check gpu clean
.DEFAULT_GOAL := build

COMMIT  := $(shell git describe --always --dirty --exclude='*' 2>/dev/null || echo unknown)
# The source of a release has this file in place of a commit.
-include .release
LDEXTRA := # more options for the linker
LDFLAGS := -X github.com/slurm-mps/slurm-mps/site/cli.commit=$(COMMIT) $(LDEXTRA)
FOLDERS := cmd epilog mpirun-wrap policy prolog site
BUILT   := $(CURDIR)/.build
BENCH   := site/lab/bench
# go-nvml binds functions that NVIDIA's header calls deprecated.
export CGO_CFLAGS := -O2 -Wno-deprecated-declarations

help: ## print this
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r target what; do printf '%-16s%s\n' "$$target" "$$what"; done

# The programs that ranks run are static. The others load libnvidia-ml.so.1 when they need it. gpu-usage and mps-tune
# are links, because a node that boots from the network has the programs in its memory.
build: ## the programs, in .build/bin
	@mkdir -p $(BUILT)/bin
	@echo 'make build: the programs, in $(BUILT)/bin'
	CGO_ENABLED=1 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BUILT)/bin/ ./cmd/prolog ./cmd/epilog ./cmd/mpsctl
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BUILT)/bin/ ./cmd/guard ./cmd/mpirun-wrap ./cmd/task-prolog
	ln -sf epilog $(BUILT)/bin/gpu-usage
	ln -sf mpsctl $(BUILT)/bin/mps-tune

# The contents of a package: the programs, man pages, completions and NOTICES, in .build/package. The programs have
# their own folder, because the tests build theirs without a commit into .build/bin. They have no symbols and no debug
# information. A Go traceback needs neither.
parts: ## the programs with man pages, completions and documents, in .build/package
	$(MAKE) build BUILT=$(BUILT)/package LDEXTRA='-s -w'
	site/pkg/parts.sh $(BUILT)/package

# Installs the files of the packages. Without DESTDIR, it also runs the scripts of the packages. A lease of another
# format stops the installation.
PREFIX := /usr
install: parts ## install on this machine, or below DESTDIR; PREFIX replaces /usr
	test -n "$(DESTDIR)" || sh site/pkg/scripts/preinstall
	go run ./site/pkg install -built "$(BUILT)/package" -destdir "$(DESTDIR)" -prefix "$(PREFIX)"
	test -n "$(DESTDIR)" || sh site/pkg/scripts/postinstall

install-user: parts ## install the programs of a user, without root, below PREFIX (~/.local)
	go run ./site/pkg install -list site/pkg/user.yaml -built "$(BUILT)/package" -destdir "$(DESTDIR)" -prefix "$(if $(filter file,$(origin PREFIX)),$$HOME/.local,$(PREFIX))"

# The same commit gives the same bytes.
packages: parts ## .deb and .rpm, in .build/packages
	@rm -rf $(BUILT)/packages
	site/pkg/build.sh $(BUILT)/package $(BUILT)/packages
	SLURM_INCLUDE=$(SLURM_INCLUDE) site/pkg/spank.sh $(BUILT)/package $(BUILT)/packages

# All files of a release, from a checkout without changes (site/pkg/release.sh). For arm64 it installs the cross compiler.
ARCHES ?= amd64 arm64
release: ## all files of a release, in .build/release: VERSION=X.Y.Z, and RELEASE_KEY=FILE to sign
	@case "$(ARCHES)" in *arm64*) site/lab/install.sh gcc-aarch64-linux-gnu libc6-dev-arm64-cross ;; esac
	@ARCHES='$(ARCHES)' RELEASE_KEY='$(RELEASE_KEY)' site/pkg/release.sh '$(VERSION)' $(BUILT)

# The SPANK plugin, for the release of Slurm whose headers are in SLURM_INCLUDE/slurm.
SLURM_INCLUDE ?= /usr/include
spank: ## the SPANK plugin, for the Slurm headers in SLURM_INCLUDE
	@mkdir -p $(BUILT)/lib
	site/spank/build.sh $(SLURM_INCLUDE) $(BUILT)/lib/slurm_mps.so

setup: ## install the packages that the tests need
	@site/lab/install.sh

demo: setup ## show in five acts what slurm-mps does, on a real Slurm and simulated GPUs: 25 s
	@go run ./site/lab/demo

play: setup ## open a shell of a user on that Slurm, with ten things to try
	@go run ./site/lab/demo -play

own: setup ## show mpirun-wrap --own with four ranks by Open MPI, outside of Slurm, on a simulated GPU: 10 s
	@go run ./site/lab/demo -act 5

# site/lab/day.sh runs all unit tests of what is shipped, and the tests of cmd/e2e/day.txt.
test: setup ## the tests for each change: 3 min on two cores
	@BUILT=$(BUILT) site/lab/day.sh

# All other tests. Tests wait most of the time, so more run at once than there are processors. "make check" vets. Binaries
# without symbols are linked faster. By day a test that fails beside the others runs once more, alone, and is named at
# the end; RERUNS=0 runs none again. The soak runs last, because
# its jobs load all cores.
RERUNS  ?= 1
TESTSUM := go tool -modfile=$(BENCH)/go.mod gotestsum --format=pkgname $(if $(filter-out 0,$(RERUNS)),--rerun-fails=$(RERUNS) --rerun-fails-max-failures=16 --rerun-fails-run-root-test)
EVENTS  ?= $(BUILT)/tests.json
PARTLY  := ./cmd/e2e/... ./site/lab/... ./site/sim/... # packages that have tests beside those of the day
test-all: test-rest ## all tests that "make test" leaves out: 15 min on two cores
	FUZZTIME=6s FUZZ='FuzzParse|FuzzOptions|FuzzReadGres|FuzzReadSettings' site/lab/fuzz.sh $(BUILT)/fuzz
test-rest: setup
	@mkdir -p $(BUILT)
	REQUIRE_LAB=1 $(TESTSUM) --jsonfile=$(EVENTS) --packages='$(PARTLY)' -- -count=1 -vet=off -ldflags='-s -w' -p 3 -parallel 3 -timeout 20m -skip "$$(site/lab/day.sh -skip)|^TestSoak$$"
	go test -count=1 -vet=off -timeout 5m -run '^(TestHugeFiles|TestWhatLoadsNeverFails)$$' ./policy/policyfile
	REQUIRE_LAB=1 go test -C $(BENCH) -vet=off -timeout 5m ./...
	SOAK_JOBS=30 REQUIRE_LAB=1 go test -vet=off -count=1 -timeout 10m -run '^TestSoak$$' ./cmd/e2e/soak

# NIGHTLY=1 is in the environment of the parts: tests that are small by day are whole then.
nightly: setup ## all tests under load, soaks, fuzzers, packages and other Slurms: 100 min at most
	site/lab/night.sh

# The tests that use Slurm, with the Slurm of another Debian beside the installed one. SUITE=forky has Slurm 26.05.
SUITE ?= trixie
$(BUILT)/slurm-%: | setup
	site/lab/bundle.sh $@ $*
test-slurm: $(BUILT)/slurm-$(SUITE) ## the tests with Slurm, on the Slurm of Debian's SUITE
	REQUIRE_LAB=1 SLURM_BUNDLE=$(BUILT)/slurm-$(SUITE) $(TESTSUM) --jsonfile=$(EVENTS) --packages='./cmd/e2e/slurm ./site/slurm' -- -count=1 -vet=off -parallel 4 -timeout 13m
	REQUIRE_LAB=1 SLURM_BUNDLE=$(BUILT)/slurm-$(SUITE) go test -count=1 -vet=off -parallel 4 -timeout 13m -run Slurm ./cmd/e2e/job ./cmd/e2e/kill ./cmd/e2e/own

# Installs, upgrades and removes the .deb in a clean Debian root. The root is fetched once.
test-packages: packages $(BUILT)/debian-bookworm ## install, upgrade and remove the packages in a clean root
	PACKAGES=$(BUILT) go test -count=1 -timeout 20m -v ./site/pkg/... -run 'Root|MakeInstall'
$(BUILT)/debian-%:
	site/pkg/root.sh $@ $*

# Makes a release of the last commit in two folders, compares all bytes, verifies it, follows docs/operator.md with it in
# fresh roots of Debian 12 and 13, from 0.1.0~rc1 to 0.1.0 and back, and builds from its source alone.
test-release: $(BUILT)/debian-bookworm $(BUILT)/debian-trixie ## make a release twice, compare the bytes, and install it on fresh Debians: 15 min, and a network
	RELEASE=$(BUILT) go test -count=1 -timeout 60m -v ./site/pkg -run '^TestRelease$$'

# Follows docs/operator.md in such a root, with the .debs, Debian's Slurm and simulated GPUs, until a job runs under
# MPS. SUITE=trixie has Slurm 24.11, SUITE=forky 26.05. Without SUITE it is bookworm with 22.05.
WALK := $(if $(filter file,$(origin SUITE)),bookworm,$(SUITE))
walk: packages $(BUILT)/debian-$(WALK) ## follow docs/operator.md in a clean root
	site/pkg/walk.sh $(BUILT) $(WALK)

# Kills prolog and epilog at every effect, and makes every effect fail. Nine run at once. Then it runs
# many of them at once, with the race detector. A test joins the sweep by calling JoinSweep.
sweep: setup ## kill and refuse every effect of prolog and epilog
	SWEEP=points REQUIRE_LAB=1 go test -vet=off -p 3 -parallel 3 -timeout 120m -v ./cmd/e2e/...
	SWEEP=race REQUIRE_LAB=1 go test -timeout 10m -v ./cmd/e2e/...

# 10,000 random jobs with random faults, and then random steps of mpirun-wrap --own with kills, without Slurm and under it.
# On two cores 500 jobs take 11 minutes. The cluster has seven nodes for each core, up to four cores. SOAK_MINUTES ends the
# jobs earlier, and SOAK_SEED repeats them.
SOAK_JOBS ?= 10000
SOAK_SEED ?= $(shell date +%s)
SOAK_WIDE ?= $(shell nproc)
soak: setup ## run random jobs with random faults, and random steps of mpirun-wrap --own
	SOAK_JOBS=$(SOAK_JOBS) SOAK_SEED=$(SOAK_SEED) SOAK_WIDE=$(SOAK_WIDE) REQUIRE_LAB=1 go test -timeout 0 -v ./cmd/e2e/soak -run 'TestSoak$$'
	OWN_STARTS=$(or $(OWN_STARTS),2000) OWN_LOG=$(BUILT)/soak-own.jsonl REQUIRE_LAB=1 go test -timeout 0 -v -p 1 -parallel 1 ./cmd/e2e/own -run Soak

SOURCES := '*.go' '*.c' '*.s' '*.h' '*.sh' '*.py' '*.lua'
check: ## gofmt, go vet, and a license line in each source file
	@test -z "$$(gofmt -l $(FOLDERS))" || { echo "gofmt would change:"; gofmt -l $(FOLDERS); exit 1; }
	go vet ./...
	go vet -C $(BENCH) ./...
	@bare=$$(git grep --untracked -L 'SPDX-License-Identifier: Apache-2.0' -- $(SOURCES) ':!*/testdata/*'); \
	test -z "$$bare" || { echo "these files need a license line:"; echo "$$bare"; exit 1; }

# Asks vuln.go.dev which known vulnerabilities the programs and the tools reach.
vulncheck: ## known vulnerabilities of the modules and of Go: it needs a network
	go tool -modfile=site/pkg/tools/go.mod govulncheck ./...
	go tool -modfile=site/pkg/tools/go.mod govulncheck -C $(BENCH) ./...

# Runs every fuzzer for FUZZTIME. The target test runs the fuzzers of input from admins and users for 6 s each.
fuzz: ## run every fuzzer for FUZZTIME
	FUZZTIME=$(or $(FUZZTIME),10m) site/lab/fuzz.sh $(BUILT)/fuzz

# With PAIRS it measures the slowest of so many prologs and epilogs, alone and beside load. Each pair is a line of
# .build/tail.jsonl.
bench: setup build ## measure the cost of prolog and epilog; PAIRS=N: the slowest of N hooks
ifdef PAIRS
	go run -C $(BENCH) . -pairs $(PAIRS) -json $(BUILT)/tail.jsonl
else
	go test -run '^$$' -bench . ./policy/... ./site/lease ./site/state
	go run -C $(BENCH) .
endif

# All files for a machine with a GPU, which may have neither Go nor Slurm: copy the folder there and run site/lab/gpu.sh.
# With PART it runs a part on this machine: trials, acts, programs or soaks. With ALLOW_MODE_CHANGES=1 the acts change
# compute modes as shipped. Use this only on your own machine.
GPU         := $(BUILT)/gpu
SOAK_SUITES := trixie forky
gpu: setup site-check $(BUILT)/slurm-bundle.tar.xz ## all files for a machine with a GPU, in .build/gpu; PART=trials: run these
	rm -rf $(GPU) && mkdir -p $(GPU)/sim/bin $(GPU)/programs
	cp -r $(BUILT)/bin $(BUILT)/site-check $(BUILT)/slurm-bundle.tar.xz $(GPU)/
	cp $(BUILT)/sim/bin/cuda-client $(GPU)/sim/bin/
	cp site/lab/programs/programs.py $$(command -v parallel) $(GPU)/programs/
	go test -c -trimpath -ldflags '-s -w' -o $(GPU)/real.test ./cmd/e2e/real
	CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o $(GPU)/conformance.test ./site/sim/conformance
ifeq ($(PART),soaks)
	cp -r $(BUILT)/sim $(GPU)/ && mkdir -p $(GPU)/slurms
	for suite in $(SOAK_SUITES); do site/lab/bundle.sh /tmp/soak-$$suite $$suite && mv /tmp/soak-$$suite $(GPU)/slurms/ || exit; done
	CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o $(GPU)/ ./cmd/e2e/soak ./cmd/e2e/program ./cmd/e2e/own
endif
	test -z "$(PART)" || site/lab/gpu.sh "$(PART)" $(GPU) $(BUILT)/gpu-results
$(BUILT)/slurm-bundle.tar.xz: | setup
	site/lab/bundle.sh $@

# One file for an admin of another site, who runs it on a node with idle GPUs (see .github/CONTRIBUTING.md).
CHECK := $(BUILT)/small/check
site-check: ## one file that tries a site's driver in 5 min, .build/site-check
	go run ./site/lab/sitecheck -build
	$(MAKE) build
	rm -rf $(BUILT)/small && mkdir -p $(CHECK)/bin $(CHECK)/sim/bin
	cd $(BUILT)/bin && cp prolog epilog guard mpirun-wrap task-prolog mpsctl $(CHECK)/bin/
	cp $(BUILT)/sim/bin/cuda-client $(CHECK)/sim/bin/
	CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o $(CHECK)/conformance.test ./site/sim/conformance
	strip $(CHECK)/bin/*
	go build -trimpath -ldflags '-s -w $(LDFLAGS)' -o $(BUILT)/small/site-check ./site/lab/sitecheck
	$(BUILT)/small/site-check -pack $(CHECK) $(BUILT)/site-check && rm -rf $(BUILT)/small

clean: ## remove .build
	rm -rf $(BUILT)
