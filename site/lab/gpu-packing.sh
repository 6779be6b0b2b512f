#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-packing.sh PACK RESULTS: measures what 1, 2, 4 and 8 equal ranks do on a GPU, beside GPM's figures and the
# recorder's (codes/packing.py), as the test TestLeaveOneOut of site/usage/judge reads it. PACK is the output of make
# gpu-codes-pack. PACKING_PART is the half of the programs, 1 or 2, because a half takes 8 minutes. The second run adds
# to the file RESULTS/packing.txt. Name it testdata/packing-GPU.txt.
# No second turn begins after a minute.
export CODES_SCRIPT=packing.sh CODES_MODES=ours CODES_MINUTES=1 PACKING_PART=${PACKING_PART:-1}
"$(dirname "$0")/gpu-codes.sh" "$1" "$2"
failed=$?
grep -hE '^(# share|pack) ' "$2/codes.txt" >"$2/packing.txt"
exit $failed
