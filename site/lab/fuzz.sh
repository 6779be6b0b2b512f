#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh FOLDER: builds the fuzzers into FOLDER, and runs each for FUZZTIME (a time, or a number of executions like
# 10000000x). Without Go, it runs the fuzzers that are already in FOLDER. FUZZ=REGEX runs only the fuzzers with a
# matching name. JOBS fuzzers run at once, with WORKERS processes each. Inputs that fail are written to the package's
# testdata, as seeds.
set -eu
folder=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
build() { # only packages with a chosen fuzzer, because a build for fuzzing compiles all imports again
	mkdir -p "$folder"
	: >"$folder/list"
	grep -rlE --include='*_test.go' "^func (${FUZZ:-Fuzz.*})\(f \*testing\.F\)" policy site mpirun-wrap | xargs -n 1 dirname | sort -u | while read -r dir; do
		binary=$folder/${dir//\//-}
		go test -c -fuzz Fuzz -o "$binary" "./$dir"
		"$binary" -test.list '^Fuzz' | while read -r name; do echo "$dir $name" >>"$folder/list"; done
	done
}
one() {
	local folder=$1 dir=$2 name=$3 log=$1/$3.log
	if (cd "$dir" && "$folder/${dir//\//-}" -test.run '^$' -test.fuzz "^$name\$" -test.fuzztime "${FUZZTIME:-20s}" \
		-test.fuzzminimizetime 1000x -test.parallel "${WORKERS:-1}" -test.fuzzcachedir "$folder/cache/$name") >"$log" 2>&1; then
		echo "$name: $(grep -o 'elapsed.*' "$log" | tail -1)"
	elif grep -q '^ *context deadline exceeded$' "$log" && ! grep -q -e 'Failing input' -e 'fuzzing process hung' -e 'terminated unexpectedly' "$log"; then
		# Go's fuzzing met the end of the time between two answers of a worker. It found no failing input.
		echo "$name: $(grep -o 'elapsed.*' "$log" | tail -1)"
	else
		echo "$name failed:"
		cat "$log"
		return 1
	fi
}
export -f one
if command -v go >/dev/null; then build; fi
grep -E " (${FUZZ:-.*})\$" "$folder/list" | xargs -P "${JOBS:-2}" -I{} bash -c "one '$folder' {}"
