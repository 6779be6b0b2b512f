# SPDX-License-Identifier: Apache-2.0
# "make help" prints the targets, each with what stands behind "##". Demo and tests install what they lack and say so.

.PHONY: all help build parts install packages spank setup demo play test test-slurm test-packages walk check lint sweep mutants soak reliability bench benchmarks fuzz slurm-bundle gpu-pack gpu-ends-pack gpu-test gpu-ends gpu-programs gpu-bench clean

COMMIT  := $(shell git describe --always --dirty --exclude='*' 2>/dev/null || echo unknown)
LDFLAGS := -X github.com/slurm-mps/slurm-mps/cmd/internal/cli.commit=$(COMMIT)
ROOMS   := cmd epilog mpirun-wrap policy prolog site
BUILT   := $(CURDIR)/.build
BENCH   := site/lab/bench
# go-nvml binds functions that NVIDIA's header calls deprecated.
export CGO_CFLAGS := -O2 -Wno-deprecated-declarations

# The first target, which "make" alone means.
all: build ## the same as build

help: ## print this
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r target what; do printf '%-16s%s\n' "$$target" "$$what"; done

# The programs that ranks run are static; the others load libnvidia-ml.so.1 when they need it.
build: ## the programs, in .build/bin
	@mkdir -p $(BUILT)/bin
	CGO_ENABLED=1 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BUILT)/bin/ ./cmd/prolog ./cmd/epilog ./cmd/gpu-usage ./cmd/mpsctl ./cmd/mps-tune
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BUILT)/bin/ ./cmd/guard ./cmd/mpirun-wrap ./cmd/task-prolog

# What a package holds: the programs, man pages, completions and NOTICES, in .build/package. The programs have a folder of
# their own, because tests build theirs without a commit into .build/bin.
parts: ## the programs with all that belongs to them, in .build/package
	$(MAKE) build BUILT=$(BUILT)/package
	site/pkg/parts.sh $(BUILT)/package

# The files of the packages. Without DESTDIR, the scripts of the packages run too: a lease of another form stops it.
PREFIX := /usr
install: parts ## install on this machine, or below DESTDIR; PREFIX is in place of /usr
	test -n "$(DESTDIR)" || sh site/pkg/scripts/preinstall
	go run ./site/pkg/install -built "$(BUILT)/package" -destdir "$(DESTDIR)" -prefix "$(PREFIX)"
	test -n "$(DESTDIR)" || sh site/pkg/scripts/postinstall

# The same commit gives the same bytes.
packages: parts ## .deb and .rpm, in .build/packages
	site/pkg/build.sh $(BUILT)/package $(BUILT)/packages
	SLURM_INCLUDE=$(SLURM_INCLUDE) site/pkg/spank.sh $(BUILT)/package $(BUILT)/packages

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

# The jobs of the soak load all cores, so they come when the other tests are done.
test: setup ## all tests
	REQUIRE_LAB=1 go test -parallel 4 -timeout 13m -skip '^TestSoak$$' ./...
	REQUIRE_LAB=1 go test -C $(BENCH) -timeout 5m ./...
	SOAK_JOBS=30 SOAK_WIDE=2 REQUIRE_LAB=1 go test -count=1 -timeout 10m -run '^TestSoak$$' ./cmd
	FUZZTIME=6s FUZZ='FuzzParse|FuzzOptions|FuzzReadGres|FuzzReadSettings' site/lab/fuzz.sh $(BUILT)/fuzz

# The tests that a Slurm runs in, on another Debian's Slurm beside the installed one: SUITE=forky has Slurm 26.05.
SUITE ?= trixie
slurm-bundle: $(BUILT)/slurm-$(SUITE) ## the Slurm of Debian's SUITE (trixie), in .build
$(BUILT)/slurm-%: | setup
	site/lab/bundle.sh $@ $*
test-slurm: slurm-bundle ## the tests with Slurm, on the Slurm of Debian's SUITE
	REQUIRE_LAB=1 SLURM_BUNDLE=$(BUILT)/slurm-$(SUITE) go test -parallel 4 -timeout 13m -skip "^TestSoak$$" ./cmd ./site/lab ./site/slurm

# The .deb installed, upgraded and removed in a clean Debian root, which is fetched once.
test-packages: packages $(BUILT)/debian-bookworm ## install, upgrade and remove the packages in a clean root
	PACKAGES=$(BUILT) go test -count=1 -timeout 20m -v ./site/pkg/... -run 'Root|MakeInstall'
$(BUILT)/debian-%:
	site/pkg/root.sh $@ $*

# docs/operator.md followed in such a root: the .debs, Debian's Slurm and simulated GPUs, to a job under MPS. SUITE=trixie
# has Slurm 24.11, SUITE=forky 26.05; without SUITE it is bookworm with 22.05.
WALK := $(if $(filter file,$(origin SUITE)),bookworm,$(SUITE))
walk: packages $(BUILT)/debian-$(WALK) ## follow docs/operator.md in a clean root
	site/pkg/walk.sh $(BUILT) $(WALK)

# Every effect of prolog and epilog, killed and refused: a quarter of an hour on two cores. Then many of them at once, with
# the race detector. A test joins by joinSweep.
sweep: setup ## kill and refuse every effect of prolog and epilog
	SWEEP=points REQUIRE_LAB=1 go test -timeout 120m -v ./cmd
	SWEEP=race REQUIRE_LAB=1 go test -timeout 10m -v ./cmd

# Planted faults, one at a time in a copy of the source, and whether the tests named for them go red: a quarter of an hour on
# two cores. MUTANTS names some of them.
mutants: setup ## plant faults, and run the tests that must notice them
	go run ./site/lab/mutants $(MUTANTS)

# And 10,000 random jobs with random faults: an hour and a quarter on two cores, seven nodes of the cluster for each core up
# to four. SOAK_MINUTES ends them earlier, SOAK_SEED repeats them.
SOAK_JOBS ?= 10000
SOAK_SEED ?= $(shell date +%s)
SOAK_WIDE ?= $(shell nproc)
soak: sweep ## run random jobs with random faults
	SOAK_JOBS=$(SOAK_JOBS) SOAK_SEED=$(SOAK_SEED) SOAK_WIDE=$(SOAK_WIDE) SOAK_LOG=$(BUILT)/soak.tsv REQUIRE_LAB=1 go test -timeout 0 -v ./cmd -run 'TestSoak$$'

# docs/reliability.md from what tests given RELIABILITY=FILE have written and docs/measurements/reliability keeps.
reliability: ## make docs/reliability.md from its data
	go run ./site/lab/reliability

check: ## gofmt, go vet and the checks of site/lab/lint
	@test -z "$$(gofmt -l $(ROOMS))" || { echo "gofmt would change:"; gofmt -l $(ROOMS); exit 1; }
	go vet ./...
	go vet -C $(BENCH) ./...
	go run ./site/lab/lint

# golangci-lint is no dependency, because its build takes more than two minutes on two cores. Long lines from before the
# rule are no errors: lll sees only the lines that have changed since LINT_BASE.
LINT_BASE ?= $(shell git merge-base HEAD origin/HEAD 2>/dev/null || echo HEAD)
lint: check ## check, and golangci-lint if it is installed
	@if command -v golangci-lint >/dev/null; then \
	    for module in . $(BENCH); do \
	        (cd $$module && golangci-lint run --disable lll && golangci-lint run --enable-only lll --new-from-rev $(LINT_BASE)) || exit 1; \
	    done; \
	else \
	    echo "golangci-lint is not on PATH, so only make check has run"; \
	fi

# Every fuzzer for FUZZTIME. The test target gives those that read what admins and users write 6 s each.
fuzz: ## run every fuzzer for FUZZTIME
	FUZZTIME=$(or $(FUZZTIME),10m) site/lab/fuzz.sh $(BUILT)/fuzz

bench: setup build ## measure what prolog, epilog and wrapper cost
	go test -run '^$$' -bench . ./policy/... ./site/lease ./site/inspect
	go run -C $(BENCH) .

# The tables of docs/benchmarks.md and docs/plots, from docs/measurements.
benchmarks: ## make docs/benchmarks.md from its data
	go run -C $(BENCH) ./report -docs $(CURDIR)/docs

# What a machine with a GPU needs, which may have neither Go nor Slurm: carry it there and run site/lab/gpu.sh on it.
gpu-pack: setup build $(BUILT)/slurm-bundle.tar.xz $(BUILT)/gpu/old/bin ## what a machine with a GPU needs, in .build/gpu
	ALLOW_MODE_CHANGES= go run ./site/lab/job >/dev/null
	mkdir -p $(BUILT)/gpu/bin $(BUILT)/gpu/sim/bin $(BUILT)/gpu/ends $(BUILT)/gpu/programs
	cp $(BUILT)/bin/* $(BUILT)/gpu/bin/
	cp $(BUILT)/sim/bin/cuda-client $(BUILT)/sim/bin/mpi-ranks $(BUILT)/gpu/sim/bin/
	cp $(BUILT)/slurm-bundle.tar.xz $(BUILT)/gpu/
	go build -trimpath -ldflags '-s -w' -o $(BUILT)/gpu/ ./site/lab/job
	go build -C $(BENCH) -trimpath -ldflags '-s -w' -o $(BUILT)/gpu/ . ./gpu
	mpicc.openmpi -O2 -o $(BUILT)/gpu/ranks $(BENCH)/gpu/ranks/ranks.c -ldl
	cp $(BENCH)/gpu/ranks/kernels.cu $(BENCH)/gpu/ranks/work.h $(BUILT)/gpu/
	CGO_ENABLED=0 go build -C $(BENCH) -trimpath -o $(BUILT)/gpu/bin/ ./execs
	gcc -O2 -static -o $(BUILT)/gpu/bin/nothing $(BENCH)/nothing/nothing.c
	cp site/lab/ends/victim.py $(BUILT)/gpu/ends/
	cp site/lab/programs/programs.py $$(command -v parallel) $(BUILT)/gpu/programs/
	go test -c -trimpath -ldflags '-s -w' -o $(BUILT)/gpu/cmd.test ./cmd
	CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o $(BUILT)/gpu/conformance.test ./site/sim/conformance

# The product before the guard, which the trial of endings compares: its wrapper held the files of its own program.
BEFORE_GUARD := 89486c1
$(BUILT)/gpu/old/bin:
	rm -rf $(BUILT)/old && mkdir -p $(BUILT)/old $(BUILT)/gpu/old
	git archive $(BEFORE_GUARD) | tar -x -C $(BUILT)/old
	cd $(BUILT)/old && CGO_ENABLED=1 go build -trimpath -ldflags '-s -w' -o bin/ ./cmd/prolog ./cmd/epilog ./cmd/mpsctl
	cd $(BUILT)/old && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ ./cmd/mpirun-wrap ./cmd/task-prolog
	mv $(BUILT)/old/bin $@ && rm -rf $(BUILT)/old

# What the trial of endings needs of the pack, in one small file.
gpu-ends-pack: gpu-pack ## the part of it that gpu-ends needs, in one file
	rm -rf $(BUILT)/small && mkdir -p $(BUILT)/small/gpu/sim/bin
	cd $(BUILT)/gpu && cp -r bin old ends programs cmd.test slurm-bundle.tar.xz ../small/gpu/ && cp sim/bin/cuda-client ../small/gpu/sim/bin/
	cd $(BUILT)/small/gpu && rm -f bin/execs bin/nothing bin/mps-tune old/bin/mpsctl && strip bin/*
	tar -C $(BUILT)/small -cf - gpu | xz -T0 -2 >$(BUILT)/gpu-ends.tar.xz && rm -rf $(BUILT)/small

# The correctness run; with ALLOW_MODE_CHANGES=1 the shipped way, on a machine of your own (site/lab/gpu.sh says more).
gpu-test: gpu-pack ## the tests that need a GPU
	site/lab/gpu.sh $(BUILT)/gpu $(BUILT)/gpu-results

# Programs as users write them, without the wrapper and with it, and ensembles (site/lab/gpu-programs.sh says more).
gpu-programs: gpu-pack ## PyTorch, JAX, pools and ensembles in jobs, on a GPU
	site/lab/gpu-programs.sh $(BUILT)/gpu $(BUILT)/gpu-results

# Every ending of every client beside neighbours: ENDS_MINUTES of it (site/lab/gpu-ends.sh says more).
gpu-ends: gpu-pack ## end clients in every way beside neighbours, on a GPU
	site/lab/gpu-ends.sh $(BUILT)/gpu $(BUILT)/gpu-results

# What ranks get of the GPU under every rule; run again, it goes on where it stopped.
gpu-bench: gpu-pack ## measure what ranks get of a GPU under each rule
	site/lab/gpu-bench.sh $(BUILT)/gpu $(BUILT)/gpu-results

$(BUILT)/slurm-bundle.tar.xz: | setup
	site/lab/bundle.sh $@

clean: ## remove .build
	rm -rf $(BUILT)
