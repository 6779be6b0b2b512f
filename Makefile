# SPDX-License-Identifier: Apache-2.0
# "make help" prints the targets, each with the text after "##". The demo and the tests install missing packages and
# print a message.

.PHONY: all help build parts install install-user packages release spank setup demo play test test-all test-rest test-slurm test-packages test-release walk nightly check lint sweep soak soak-jobs bench fuzz vulncheck slurm-bundle site-check gpu-pack gpu-ends-pack gpu-room-pack gpu-test gpu-ends gpu-room gpu-shared gpu-programs soaks-pack own soak-own clean

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

# all is the first target, so "make" without arguments makes it.
all: build ## the same as build

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

demo: setup ## show in four acts what slurm-mps does, on a real Slurm and simulated GPUs: 20 s
	@go run ./site/lab/demo

play: setup ## open a shell of a user on that Slurm, with ten things to try
	@go run ./site/lab/demo -play

own: setup ## show mpirun-wrap --own with four ranks by Open MPI, on a simulated GPU: 10 s
	@go run ./site/lab/own

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
slurm-bundle: $(BUILT)/slurm-$(SUITE) ## the Slurm of Debian's SUITE (trixie), in .build
$(BUILT)/slurm-%: | setup
	site/lab/bundle.sh $@ $*
test-slurm: slurm-bundle ## the tests with Slurm, on the Slurm of Debian's SUITE
	REQUIRE_LAB=1 SLURM_BUNDLE=$(BUILT)/slurm-$(SUITE) $(TESTSUM) --jsonfile=$(EVENTS) --packages='./cmd/e2e/slurm ./site/lab ./site/slurm' -- -count=1 -vet=off -parallel 4 -timeout 13m
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

# 10,000 random jobs with random faults, for the target soak after the sweep. On two cores 500 jobs take 11 minutes. The
# cluster has seven nodes for each core, up to four cores. SOAK_MINUTES ends the run earlier, and SOAK_SEED repeats it.
SOAK_JOBS ?= 10000
SOAK_SEED ?= $(shell date +%s)
SOAK_WIDE ?= $(shell nproc)
soak: sweep soak-jobs ## the sweep, and random jobs with random faults
soak-jobs: setup ## run random jobs with random faults
	SOAK_JOBS=$(SOAK_JOBS) SOAK_SEED=$(SOAK_SEED) SOAK_WIDE=$(SOAK_WIDE) REQUIRE_LAB=1 go test -timeout 0 -v ./cmd/e2e/soak -run 'TestSoak$$'

soak-own: ## run random steps of mpirun-wrap --own with kills, without Slurm and under it
	OWN_STARTS=$(or $(OWN_STARTS),2000) OWN_LOG=$(BUILT)/soak-own.jsonl REQUIRE_LAB=1 go test -timeout 0 -v -p 1 -parallel 1 ./cmd/e2e/own -run Soak

SOURCES := '*.go' '*.c' '*.s' '*.h' '*.sh' '*.py' '*.lua'
check: ## gofmt, go vet, and a license line in each source file
	@test -z "$$(gofmt -l $(FOLDERS))" || { echo "gofmt would change:"; gofmt -l $(FOLDERS); exit 1; }
	go vet ./...
	go vet -C $(BENCH) ./...
	@bare=$$(git grep --untracked -L 'SPDX-License-Identifier: Apache-2.0' -- $(SOURCES) ':!*/testdata/*'); \
	test -z "$$bare" || { echo "these files need a license line:"; echo "$$bare"; exit 1; }

# golangci-lint is no dependency, because its build takes more than two minutes on two cores. Long lines that are
# older than the rule are no errors, because lll checks only the lines changed since LINT_BASE.
LINT_BASE ?= $(shell git merge-base HEAD origin/HEAD 2>/dev/null || echo HEAD)
lint: check ## check, and golangci-lint if it is installed
	@if command -v golangci-lint >/dev/null; then \
	    for module in . $(BENCH); do \
	        (cd $$module && golangci-lint run --disable lll && golangci-lint run --enable-only lll --new-from-rev $(LINT_BASE)) || exit 1; \
	    done; \
	else \
	    echo "golangci-lint is not on PATH, so only make check has run"; \
	fi

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

# All files for a machine with a GPU, which may have neither Go nor Slurm. Copy the folder there and run
# site/lab/gpu.sh.
gpu-pack: setup build $(BUILT)/slurm-bundle.tar.xz $(BUILT)/gpu/old/bin ## all files for a machine with a GPU, in .build/gpu
	ALLOW_MODE_CHANGES= go run ./site/lab/job >/dev/null
	mkdir -p $(BUILT)/gpu/bin $(BUILT)/gpu/sim/bin $(BUILT)/gpu/ends $(BUILT)/gpu/programs
	cp $(BUILT)/bin/* $(BUILT)/gpu/bin/
	cp $(BUILT)/sim/bin/cuda-client $(BUILT)/sim/bin/mpi-ranks $(BUILT)/gpu/sim/bin/
	cp $(BUILT)/slurm-bundle.tar.xz $(BUILT)/gpu/
	go build -trimpath -ldflags '-s -w' -o $(BUILT)/gpu/ ./site/lab/job
	go build -C $(BENCH) -trimpath -ldflags '-s -w' -o $(BUILT)/gpu/ .
	cp site/lab/ends/victim.py $(BUILT)/gpu/ends/
	cp site/lab/programs/programs.py $$(command -v parallel) $(BUILT)/gpu/programs/
	go test -c -trimpath -ldflags '-s -w' -o $(BUILT)/gpu/real.test ./cmd/e2e/real
	CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o $(BUILT)/gpu/conformance.test ./site/sim/conformance

# The commit before the guard, for comparison in the trial of endings. Its wrapper held the files of its own program.
BEFORE_GUARD := 89486c1
$(BUILT)/gpu/old/bin:
	rm -rf $(BUILT)/old && mkdir -p $(BUILT)/old $(BUILT)/gpu/old
	git archive $(BEFORE_GUARD) | tar -x -C $(BUILT)/old
	cd $(BUILT)/old && CGO_ENABLED=1 go build -trimpath -ldflags '-s -w' -o bin/ ./cmd/prolog ./cmd/epilog ./cmd/mpsctl
	cd $(BUILT)/old && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ ./cmd/mpirun-wrap ./cmd/task-prolog
	mv $(BUILT)/old/bin $@ && rm -rf $(BUILT)/old

# The part of the pack that the trial of endings needs, in one small file.
gpu-ends-pack: gpu-pack ## the part of gpu-pack for gpu-ends, in one file
	rm -rf $(BUILT)/small && mkdir -p $(BUILT)/small/gpu/sim/bin
	cd $(BUILT)/gpu && cp -r bin old ends programs real.test slurm-bundle.tar.xz ../small/gpu/ && cp sim/bin/cuda-client ../small/gpu/sim/bin/
	cd $(BUILT)/small/gpu && rm -f bin/mps-tune old/bin/mpsctl && strip bin/*
	tar -C $(BUILT)/small -cf - gpu | xz -T0 -2 >$(BUILT)/gpu-ends.tar.xz && rm -rf $(BUILT)/small

# The files for the trial of a GPU with little room, in one small file without Slurm. The simulation is among them, so
# that the same file can be tried on a machine without a GPU.
ROOM := $(BUILT)/small/room
gpu-room-pack: ## the files for gpu-room, in one file, .build/gpu-room.tar.xz
	go run ./site/lab/room -build
	$(MAKE) build
	rm -rf $(BUILT)/small && mkdir -p $(ROOM)/bin $(ROOM)/sim $(ROOM)/ends $(ROOM)/room
	cd $(BUILT)/bin && cp prolog epilog guard gpu-usage mpirun-wrap mpsctl $(ROOM)/bin/
	cp -r $(BUILT)/sim/bin $(BUILT)/sim/lib $(ROOM)/sim/
	cp site/lab/ends/victim.py $(ROOM)/ends/ && cp site/lab/room/room.py $(ROOM)/room/
	cp site/lab/shared/trial.py $(ROOM)/ends/
	go build -trimpath -ldflags '-s -w' -o $(ROOM)/trial ./site/lab/room
	go build -trimpath -ldflags '-s -w' -o $(ROOM)/shared ./site/lab/shared
	strip $(ROOM)/bin/* $(ROOM)/sim/bin/nvidia-cuda-mps-*
	tar -C $(BUILT)/small -cf - room | xz -T0 -6 >$(BUILT)/gpu-room.tar.xz && rm -rf $(BUILT)/small

# One file for an admin of another site, who runs it on a node with idle GPUs (see .github/CONTRIBUTING.md).
CHECK := $(BUILT)/small/check
site-check: ## one file that tries a site's driver in 5 min, .build/site-check
	go run ./site/lab/room -build
	$(MAKE) build
	rm -rf $(BUILT)/small && mkdir -p $(CHECK)/bin $(CHECK)/sim/bin
	cd $(BUILT)/bin && cp prolog epilog guard mpirun-wrap mpsctl $(CHECK)/bin/
	cp $(BUILT)/sim/bin/cuda-client $(CHECK)/sim/bin/
	CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o $(CHECK)/conformance.test ./site/sim/conformance
	strip $(CHECK)/bin/*
	go build -trimpath -ldflags '-s -w $(LDFLAGS)' -o $(BUILT)/small/site-check ./site/lab/sitecheck
	$(BUILT)/small/site-check -pack $(CHECK) $(BUILT)/site-check && rm -rf $(BUILT)/small

# The tests for correctness. With ALLOW_MODE_CHANGES=1 they change compute modes as shipped. Use this only on your own
# machine (see site/lab/gpu.sh).
gpu-test: gpu-pack ## the tests that need a GPU
	site/lab/gpu.sh $(BUILT)/gpu $(BUILT)/gpu-results

# Programs like those that users write, without and with the wrapper, and ensembles (see site/lab/gpu-programs.sh).
gpu-programs: gpu-pack ## PyTorch, JAX, pools and ensembles in jobs, on a GPU
	site/lab/gpu-programs.sh $(BUILT)/gpu $(BUILT)/gpu-results

# Long tests on a machine with many cores, which needs no Go: 1,000 jobs with faults on three Slurms.
SOAK_SUITES := trixie forky
soaks-pack: gpu-pack ## the files for site/lab/soaks.sh, in one file
	rm -rf $(BUILT)/small && mkdir -p $(BUILT)/small/soaks/slurms
	cp -r $(BUILT)/gpu/bin $(BUILT)/sim $(BUILT)/slurm-bundle.tar.xz $(BUILT)/small/soaks/
	for suite in $(SOAK_SUITES); do site/lab/bundle.sh /tmp/soak-$$suite $$suite && mv /tmp/soak-$$suite $(BUILT)/small/soaks/slurms/ || exit; done
	CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o $(BUILT)/small/soaks/ ./cmd/e2e/soak ./cmd/e2e/own
	strip $(BUILT)/small/soaks/bin/* $(BUILT)/small/soaks/sim/bin/nvidia-cuda-mps-*
	tar -C $(BUILT)/small -cf - soaks | xz -9 >$(BUILT)/soaks.tar.xz && rm -rf $(BUILT)/small

# Ends clients beside neighbours in every way, for ENDS_MINUTES (see site/lab/gpu-ends.sh).
gpu-ends: gpu-pack ## end clients in every way beside neighbours, on a GPU
	site/lab/gpu-ends.sh $(BUILT)/gpu $(BUILT)/gpu-results

# Makes memory, places and time of a GPU short while clients end (see site/lab/gpu-room.sh). A second run continues.
gpu-room: gpu-room-pack ## try what dead clients take of a GPU with little room
	site/lab/gpu-room.sh $(BUILT)/gpu-room.tar.xz $(BUILT)/gpu-results

# Jobs that share a GPU by gres/mps (see site/lab/gpu-shared.sh).
gpu-shared: gpu-room-pack ## try jobs that share a GPU, in turns and together
	site/lab/gpu-shared.sh $(BUILT)/gpu-room.tar.xz $(BUILT)/gpu-results

$(BUILT)/slurm-bundle.tar.xz: | setup
	site/lab/bundle.sh $@

clean: ## remove .build
	rm -rf $(BUILT)
