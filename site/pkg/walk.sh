#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# walk.sh BUILT [SUITE]: follows docs/operator.md on a clean Debian root (BUILT/debian-SUITE, bookworm), like a new
# admin. It installs the .debs of BUILT/packages, Debian's own Slurm and two simulated GPUs, and runs a job of four
# ranks under MPS. It prints each step with its seconds. The lines for slurm.conf and gres.conf come from the
# installed document.
set -euo pipefail
export LC_ALL=C

fail() {
    echo "walk.sh: $*" >&2
    exit 1
}

# outer makes a new root over the clean one, with its own processes and host name. The new root disappears at the end.
outer() {
    local built suite=$2
    built=$(realpath "$1")
    [ "$(id -u)" = 0 ] || fail "cannot make a root: run this as root"
    for what in "debian-$suite" packages; do
        [ -e "$built/$what" ] || fail "cannot walk: there is no $built/$what: make walk makes it"
    done
    work=$(mktemp -d /tmp/walk.XXXX)
    trap 'rm -rf "$work"' EXIT
    (cd "$(dirname "$0")/../.." && go run ./site/pkg/driver "$built/sim" "$work/driver")
    unshare --mount --propagation private --uts --pid --fork --kill-child "$(realpath "$0")" --inside "$built" "$work" "$suite"
}

# inside runs in the new namespaces. It makes the mounts, and then enters the clean root.
inside() {
    local built=$1 root=$2/root
    mkdir "$2/layer" "$root"
    mount -t tmpfs layer "$2/layer"
    mkdir "$2/layer/upper" "$2/layer/work"
    mount -t overlay overlay -o "lowerdir=$built/debian-$3,upperdir=$2/layer/upper,workdir=$2/layer/work" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs sys "$root/sys"
    mount -t tmpfs -o mode=755 dev "$root/dev"
    mkdir -m 1777 "$root/dev/shm"
    for device in null zero full random urandom tty; do
        touch "$root/dev/$device"
        mount --bind "/dev/$device" "$root/dev/$device"
    done
    mknod -m 666 "$root/dev/nvidia0" c 195 0 # for slurmd
    mknod -m 666 "$root/dev/nvidia1" c 195 1
    mount -t tmpfs -o mode=755 run "$root/run"
    hostname gpu01
    echo "127.0.0.1 localhost gpu01" >"$root/etc/hosts"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    mkdir "$root/walk"
    cp "$built"/packages/*.deb "$root/walk/"
    [ -z "${DEBIAN_EXPIRED:-}" ] || echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/expired"
    cp -a "$2/driver" "$root/opt/driver"
    chmod -R a+rX "$root/opt/driver"
    for device in nvidiactl nvidia-uvm; do # files that the simulated driver opens
        touch "$root/dev/$device"
        mount --bind "$root/opt/driver/node/dev/$device" "$root/dev/$device"
    done
    cp "$0" "$root/walk/walk.sh"
    chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive /walk/walk.sh --walk
}

# step SENTENCE: prints the sentence, and times the commands after it.
step() {
    done_with
    echo "== $1"
    began=$(date +%s%N)
}
done_with() {
    if [ -n "${began:-}" ]; then printf '   %d.%d s\n' $((($(date +%s%N) - began) / 1000000000)) $((($(date +%s%N) - began) / 100000000 % 10)); fi
}

# summary PAIR: ends the walk unless the summary of job 2, of four ranks on two GPUs, has the pair.
summary() {
    grep '"job":2,.*"step":"summary"' /var/log/slurm-mps/slurm-mps.log | grep -qF -- "$1" || fail "the summary of job 2 lacks $1"
}

quietly() { "$@" >/walk/log 2>&1 || { tail -n 20 /walk/log >&2; fail "cannot run $*"; }; }

# site prepares what a site already has: Slurm, a driver and a user.
site() {
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d # there is no systemd here
    chmod 755 /usr/sbin/policy-rc.d
    quietly apt-get -q update
    quietly apt-get -q -y install --no-install-recommends slurm-wlm munge
    useradd --create-home --uid 2001 hpc1
    cat >/etc/slurm/slurm.conf <<CONF
ClusterName=walk
SlurmctldHost=gpu01
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmctldPort=46817
SlurmdPort=46818
PartitionName=main Nodes=ALL Default=YES State=UP
CONF
    echo 'CgroupPlugin=cgroup/v1' >/etc/slurm/cgroup.conf
    mkdir -p /var/spool/slurmctld /var/spool/slurmd /run/munge
    chown munge: /run/munge
    su -s /bin/sh munge -c munged
}

# document prints the lines for Slurm's files from the installed document.
document() { awk '/^```conf$/ {on = 1; next} /^```$/ {on = 0} on' /usr/share/doc/slurm-mps/operator.md; }

walk() {
    step "what a site has: Slurm, a driver, a user"
    site
    step "apt-get install ./slurm-mps_*.deb"
    quietly apt-get -q -y install /walk/slurm-mps_*.deb
    release=$(slurmd -V | sed 's/.* \([0-9]*\.[0-9]*\)\..*/\1/')
    step "apt-get install ./slurm-mps-spank-$release*.deb"
    quietly apt-get -q -y install /walk/slurm-mps-spank-"$release"_*.deb
    step "slurm.conf and gres.conf: the lines of docs/operator.md, without Contain, because this root has no control groups, of which doctor will warn; site.hcl: where this driver is"
    document | grep -v -e '^NodeName=' -e '^Name=' | sed 's/,Contain$//' >>/etc/slurm/slurm.conf # there is no control group
    document | sed -n 's/^NodeName=.* Gres=gpu:4 \(.*\) \.\.\.$/NodeName=gpu01 CPUs=16 RealMemory=1000 Gres=gpu:2 \1/p' >>/etc/slurm/slurm.conf
    document | sed -n 's/^\(Name=gpu .*\)\[0-3\]$/\1[0-1]/p' >/etc/slurm/gres.conf
    tail -n 6 /etc/slurm/slurm.conf /etc/slurm/gres.conf
    printf 'mps_control = "/opt/driver/bin/nvidia-cuda-mps-control"\nnvml_library = "/opt/driver/lib/libnvidia-ml.so.1"\n' >/etc/slurm-mps/site.hcl
    step "start slurmctld and slurmd"
    slurmctld
    slurmd
    for _ in $(seq 100); do
        [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && break
        sleep 0.1
    done
    sinfo
    step "mpsctl doctor"
    mpsctl doctor || true
    step "srun --gres=gpu:1 --constraint=mps -n2 mpirun-wrap --report true"
    su hpc1 -c 'cd && srun --gres=gpu:1 --constraint=mps -n2 mpirun-wrap --report true'
    step "srun --gres=gpu:2 --constraint=mps -n4 mpirun-wrap --report cuda-client info"
    su hpc1 -c 'cd && LD_LIBRARY_PATH=/opt/driver/lib srun --gres=gpu:2 --constraint=mps -n4 mpirun-wrap --report /opt/driver/bin/cuda-client info' | tee /walk/out
    [ "$(grep -c 'err=0(cudaSuccess) sm=' /walk/out)" = 4 ] || fail "the ranks are not under MPS: $(cat /walk/out /var/log/slurmd.log)"
    step "srun --mps=share=even --gres=gpu:1 -n2 mpirun-wrap cuda-client info"
    su hpc1 -c 'cd && LD_LIBRARY_PATH=/opt/driver/lib srun --mps=share=even --gres=gpu:1 -n2 mpirun-wrap --report /opt/driver/bin/cuda-client info' | tee /walk/option
    [ "$(grep -c 'err=0(cudaSuccess) sm=66' /walk/option)" = 2 ] || fail "the ranks of --mps are not under MPS: $(cat /walk/option /var/log/slurmd.log)"
    step "afterwards"
    for _ in $(seq 100); do
        [ "$(sinfo -h -o %T)" = idle ] && break
        sleep 0.1
    done
    mpsctl status
    sinfo -h -o 'the node is %T'
    grep -h '"step":"summary"' /var/log/slurm-mps/slurm-mps.log
    summary '"gpus":2'
    summary '"clients_seen":4'
    summary '"clients_peak":4'
    summary '"closed":true'
    done_with
}

case ${1:-} in
--inside) inside "$2" "$3" "$4" ;;
--walk) walk ;;
'') fail "usage: walk.sh BUILT [SUITE]" ;;
*) outer "$1" "${2:-bookworm}" ;;
esac
