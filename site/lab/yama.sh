#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# yama.sh BUILT RESULTS: tries mpirun-wrap --own under each ptrace_scope of Yama (site/lab/yama), in a virtual machine
# with Debian's kernel and simulated GPUs. BUILT has bin and sim, from `go run ./site/lab/room -build`. RESULTS gets
# yama.jsonl, a line for each trial, and console.txt with the kernel's messages. It works on
# Debian 12 and 13 as root. YAMA_TRIALS (2) is the number of trials of each way under each scope. YAMA_LIMIT (1200) is the
# limit in seconds. YAMA_ACCEL is qemu's accelerator: kvm is faster than tcg, which works everywhere.
set -euo pipefail
export LC_ALL=C

fail() {
    echo "yama.sh: $*" >&2
    exit 1
}

# setup installs what is missing. It only unpacks the kernel.
setup() {
    local absent=''
    command -v apt-get >/dev/null || fail "cannot install qemu: there is no apt-get here; use Debian 12 or 13"
    for package in qemu-system-x86 busybox-static cpio; do
        [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || absent+=" $package"
    done
    if [ -n "$absent" ]; then
        echo "yama.sh: installing with apt-get:$absent"
        apt-get -q update >/dev/null
        # shellcheck disable=SC2086 # the list is split on purpose
        DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $absent >/dev/null
    fi
    ls "$built"/yama/boot/vmlinuz-* >/dev/null 2>&1 && return
    local kernel
    kernel=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [ -n "$kernel" ] || fail "cannot find a kernel: apt-get update, or use Debian 12 or 13"
    echo "yama.sh: downloading and unpacking $kernel into $built/yama"
    (cd "$built/yama" && apt-get -q -o APT::Sandbox::User=root download "$kernel" >/dev/null)
    dpkg-deb --fsys-tarfile "$built"/yama/"$kernel"_*.deb | tar -x -C "$built/yama" --wildcards './boot/vmlinuz-*' './boot/config-*'
    rm "$built"/yama/*.deb
}

# root makes the file system of the virtual machine: the programs, their libraries and busybox.
root() {
    mkdir -p "$1"/{bin,sbin,dev,proc,sys,tmp,usr/bin,built/bin,built/sim}
    cp "$(command -v busybox)" "$1/bin/busybox"
    cp -L "$built"/bin/* "$1/built/bin/"
    cp -rL "$built/sim/bin" "$built/sim/lib" "$1/built/sim/"
    rm -f "$1/built/sim/bin/mpi-ranks" "$1"/built/bin/{prolog,epilog,gpu-usage,mpsctl,mps-tune,task-prolog,execs,nothing}
    { ldd "$1"/built/sim/bin/* "$1"/built/sim/lib/* 2>/dev/null || true; } | sed -n 's|^.*[[:space:]]\(/[^ ]*\) (0x.*|\1|p' | sort -u |
        while read -r library; do cp -L --parents "$library" "$1"; done
    (cd "$(dirname "$0")/../.." && CGO_ENABLED=0 go build -trimpath -o "$1/bin/yama" ./site/lab/yama)
    cat >"$1/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=1777 shm /dev/shm
echo "kernel \$(uname -r), \$(nproc) processors, ptrace_scope \$(cat /proc/sys/kernel/yama/ptrace_scope)"
yama -built /built -trials ${YAMA_TRIALS:-2} >/dev/ttyS1 && echo "all trials are as documented" || echo "some trials are not as documented"
poweroff -f
INIT
    chmod 755 "$1/init"
}

[ $# = 2 ] || fail "usage: yama.sh BUILT RESULTS"
[ "$(id -u)" = 0 ] || fail "cannot install: run this as root"
mkdir -p "$1/yama" "$2"
built=$(realpath "$1") results=$(realpath "$2")
setup
work=$(mktemp -d /tmp/yama.XXXX)
trap 'rm -rf "$work"' EXIT
root "$work/root"
(cd "$work/root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initrd"
kernel=$(printf '%s\n' "$built"/yama/boot/vmlinuz-* | tail -n 1)
echo "yama.sh: booting ${kernel##*/}"
timeout "${YAMA_LIMIT:-1200}" qemu-system-x86_64 -accel "${YAMA_ACCEL:-tcg}" -cpu max -smp 2 -m 2048 -nodefaults -display none -no-reboot \
    -kernel "$kernel" -initrd "$work/initrd" -append 'console=ttyS0 panic=-1 loglevel=6' \
    -serial "file:$results/console.txt" -serial "file:$results/yama.jsonl" || fail "the virtual machine has not ended well: see $results/console.txt"
tr -d '\r' <"$results/yama.jsonl" >"$work/lines" && cp "$work/lines" "$results/yama.jsonl"
tail -n 3 "$results/console.txt"
grep -q 'all trials are as documented' "$results/console.txt" || fail "a trial was not as documented: see $results/yama.jsonl"
