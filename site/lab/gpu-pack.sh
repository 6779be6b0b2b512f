# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# gpu-pack.sh is read by scripts that run tests on a machine with GPUs, as root. Their arguments are PACK RESULTS.
# PACK is the output of make gpu-pack: the folder or a .tar.xz of it. The machine needs neither Go nor Slurm. This
# file changes no compute mode, no MIG setting and no clock.
set -u
unset ALLOW_MODE_CHANGES
mkdir -p "$2" && results=$(cd "$2" && pwd) || exit 2
work=$(mktemp -d /tmp/gpup.XXX) && chmod 755 "$work" || exit 2
trap 'rm -rf "$work"' EXIT
mkdir "$work/pack" "$work/slurm" || exit 2
if [ -d "$1" ]; then # the jobs' user must be able to read it
    cp -r "$1/." "$work/pack" || exit 2
else
    tar -xJf "$1" --strip-components=1 -C "$work/pack" || exit 2
fi
pack=$work/pack
export BUILT_FOLDER=$pack CONFORMANCE_TARGET=real
if [ -e "$pack/slurm-bundle.tar.xz" ]; then # the pack of gpu-room.sh has none
    tar -xJf "$pack/slurm-bundle.tar.xz" -C "$work/slurm" || exit 2
    export SLURM_BUNDLE=$(echo "$work"/slurm/*)
fi
failed=0

modes() { nvidia-smi --query-gpu=name,uuid,driver_version,compute_mode --format=csv,noheader; }

# leave MACHINE PROGRAMS: ends the script. It fails if a test failed, if a process of MPS, Slurm or PROGRAMS is left,
# or if the GPUs differ from the output of modes in the file MACHINE.
leave() {
    local left
    left=$(pgrep -fa "nvidia-cuda-mps|slurm(ctl)?d|munged|$2" | grep -v -e pgrep -e '<defunct>')
    [ -z "${left:-}" ] || { failed=1; echo "left behind: $left"; }
    modes | diff - "$1" || { failed=1; echo "the GPUs are not as they were"; }
    exit $failed
}
