#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-room.sh PACK RESULTS: makes memory, places and time of a GPU short while clients end (site/lab/room). PACK is the
# output of make gpu-room-pack. The machine needs python3 with PyTorch, and neither Go nor Slurm. A machine without
# nvidia-smi gets a simulated GPU.
#
# A run takes ROOM_MINUTES (9). A run with the same RESULTS makes only the trials that have no result yet. For another
# folder of results, ROOM_EARLIER is the room.jsonl of the earlier run. ROOM_PARTS is a pattern for the parts, and
# ROOM_POLICY has attributes for the policy, divided by ";", as in 'pause = "0s"'. Each policy needs its own RESULTS.
. "$(dirname "$0")/gpu-pack.sh"
target=-real
command -v nvidia-smi >/dev/null || { target=-simulated; modes() { echo "no GPU"; }; }
modes | tee "$results/room-machine.txt"
"$pack/trial" "$target" -results "$results" -minutes "${ROOM_MINUTES:-9}" -parts "${ROOM_PARTS:-}" \
    -trials "${ROOM_TRIALS:-0}" -policy "${ROOM_POLICY:-}" -earlier "${ROOM_EARLIER:-}" || failed=1
leave "$results/room-machine.txt" 'room\.py|cuda-client'
