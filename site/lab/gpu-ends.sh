#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-ends.sh PACK RESULTS: runs the trial of endings (cmd/e2e/real/ends_test.go) on a machine with GPUs (see
# gpu-pack.sh). PyTorch, CuPy and JAX are used if python3 has them. The trial takes ENDS_MINUTES (8) and half a minute
# more. The test's other ENDS_ variables also work here.
. "$(dirname "$0")/gpu-pack.sh"
export ENDS_MINUTES=${ENDS_MINUTES:-8} ENDS_RESULTS=$results
modes | tee "$results/ends-machine.txt"
"$pack/real.test" -test.run '^TestRealEnds$' -test.v -test.timeout "$(awk "BEGIN { print int($ENDS_MINUTES * 60 + 150) }")s" >"$results/ends-log.txt" 2>&1 || failed=1
grep -E '^(ENDS_SEED|left out)' "$results/ends-log.txt"
[ -e "$results/ends-summary.txt" ] && cat "$results/ends-summary.txt"
grep -E '^ *(--- |panic|[a-z_]+_test\.go)' "$results/ends-log.txt" | cut -c1-200 | head -60
leave "$results/ends-machine.txt" 'victim\.py|cuda-client'
