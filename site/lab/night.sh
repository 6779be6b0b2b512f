#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# night.sh [PART...]: runs what is too long for a day, whole or the parts with these names, one after the other. The page
# of results and each part's output are in .build/night. The limits of all parts are 98 minutes, so the night ends then,
# whatever hangs. A part that takes too long has failed, with code 124. The exit code is 0 if each part's is. make
# test-release and make walk are no parts: they need a network and more time, and belong before a release.
set -uo pipefail
cd "$(dirname "$0")/../.."
folder=$PWD/.build/night
mkdir -p "$folder"
export NIGHTLY=1 RERUNS=0

# What fails only beside others is a fault of the product or of the test, so no test runs again here.
storm() {
	local pids=() failed=0
	for n in 1 2 3; do
		SOAK_NAME=$n make test-rest RERUNS=0 EVENTS="$folder/storm-$n.json" >"$folder/storm-$n.log" 2>&1 &
		pids+=($!)
	done
	for n in 1 2 3; do
		wait "${pids[n - 1]}" || failed=1
		echo "storm $n:"
		grep -E '^(=== FAIL|DONE|FAIL)|^--- FAIL' "$folder/storm-$n.log"
	done
	return $failed
}
# The packages with threads or with several writers of a file. policy has neither.
race() { go test -race -vet=off -timeout 5m ./prolog ./epilog ./mpirun-wrap/... ./site/guard/... ./site/lease; }
slurms() { make test-slurm SUITE="$1"; }
export -f storm race slurms
export folder

parts='check|make check|2
day|make test|5
storm|storm|40
sweep|make sweep|14
soak|make soak-jobs SOAK_MINUTES=4|7
own|make soak-own OWN_STARTS=300|4
race|race|6
fuzz|make fuzz FUZZTIME=5s|4
packages|make test-packages|7
trixie|slurms trixie|5
forky|slurms forky|4'

page=$folder/page.md failed=0
printf 'Commit %s, %s processors, load %s.\n\n| part | command | limit, min | code | seconds |\n|---|---|--:|--:|--:|\n' \
	"$(git describe --always --dirty --exclude='*')" "$(nproc)" "$(cut -d' ' -f1 /proc/loadavg)" >"$page"
while IFS='|' read -r name command limit; do
	[ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
	began=$SECONDS code=0
	timeout --kill-after=20 "${limit}m" bash -uc "$command" >"$folder/$name.log" 2>&1 </dev/null || code=$?
	[ $code = 0 ] || failed=1
	printf '| %s | `%s` | %s | %s | %s |\n' "$name" "$command" "$limit" "$code" $((SECONDS - began)) >>"$page"
	echo "night.sh: $name: $code after $((SECONDS - began)) s" >&2
done <<<"$parts"
cat "$page"
exit $failed
