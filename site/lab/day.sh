#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# day.sh: the tests of a day, for `make test`: all unit tests of what is shipped, and the tests that cmd/e2e/day.txt names.
# day.sh -skip: the expression of the tests that day.txt names whole, for `make test-all`, which runs all others.
# A line of day.txt has a package and a test, perhaps with a "/" and an expression for rows.
set -euo pipefail
cd "$(dirname "$0")/../.."
names=cmd/e2e/day.txt
if [ "${1:-}" = -skip ]; then
	echo "^($(grep -v / < <(cut -d' ' -f2 $names) | paste -sd'|'))\$"
	exit
fi

# A name that no test has would be a proof that no one misses.
while read -r package name; do
	grep -q "^func ${name%%/*}(" "$package"/*_test.go || { echo "day.sh: $names names $package ${name%%/*}, which is no test" >&2; exit 1; }
done <$names

began=$SECONDS failed=0 log=${BUILT:-$PWD/.build}/day.log
mkdir -p "$(dirname "$log")"
flags=(-count=1 -vet=off -ldflags='-s -w' -p 3 -parallel 4)
units=$(go list ./... | grep -vE '/(cmd/e2e|site/lab|site/sim)(/|$)')
go test "${flags[@]}" -timeout 5m -skip '^(TestHugeFiles|TestWhatLoadsNeverFails)$' $units | grep -v 'no test files' || failed=1
packages=$(cut -d' ' -f1 $names | sort -u | sed 's|^|./|')
pattern=$(cut -d' ' -f2 $names | sed -E 's|^([^/]*)|^\1$|' | paste -sd'|')
REQUIRE_LAB=1 go test "${flags[@]}" -timeout 8m -v -run "$pattern" $packages >"$log" 2>&1 || failed=1
if grep -qE '^(FAIL|panic:)' "$log"; then grep -vE '^ *(=== |--- (PASS|SKIP))' "$log"; else grep -E '^ok ' "$log" || failed=1; fi

# Go is content with an expression for rows that no row has.
while IFS=/ read -r name row; do
	rows=$(sed -nE "s#^ +--- [A-Z]+: $name/([^ /]+) .*#\1#p" "$log")
	grep -Eq -- "$row" <<<"$rows" || { echo "day.sh: $name has no row $row" >&2; failed=1; }
done < <(cut -d' ' -f2 $names | grep /)
count=$(grep -c '^--- PASS' "$log" || true)
echo "make test: $([ $failed = 0 ] && echo passed || echo FAILED): the unit tests and $count tests of $names, in $((SECONDS - began)) s"
exit $failed
