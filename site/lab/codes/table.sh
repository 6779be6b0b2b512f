#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# table.sh FILE...: prints the table of docs/measurements from the lines of gpu-codes: the median, the least and the
# most steps a second of each input, number of ranks and mode.
set -euo pipefail
echo '| input | ranks | no MPS | MPS by hand, 100/n percent | slurm-mps, as shipped |'
echo '|---|---|---|---|---|'
sort -k3,3 -k4,4n -k2,2 -k5,5g "$@" | awk '
    function cell() { return sprintf("%.0f (%.0f to %.0f)", n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2, v[1], v[n]) }
    function flush() { if (n) of[mode] = cell(); n = 0 }
    function row() { if (key != "") print "| " key " | " of["slices"] " | " of["bare"] " | " of["ours"] " |" }
    { k = $3 " | " $4 }
    k != key || $2 != mode { flush() }
    k != key { row(); key = k }
    { mode = $2; v[++n] = $5 }
    END { flush(); row() }'
