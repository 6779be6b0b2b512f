#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# walk.sh BUILT [SUITE [RELEASE OLDER]]: follows docs/operator.md on a clean Debian root (BUILT/debian-SUITE, bookworm),
# like a new admin. It installs the .debs of BUILT/packages, Debian's own Slurm and two simulated GPUs, and runs a job
# of four ranks under MPS. It prints each step with its seconds. The lines for slurm.conf and gres.conf come from the
# installed document.
#
# With two folders of released files it verifies RELEASE by the commands of docs/RELEASES.md, starts with OLDER, goes to
# RELEASE and back, each time while a job runs, and purges the packages: then no file and no process of them is left.
set -euo pipefail
export LC_ALL=C

fail() {
    echo "walk.sh: $*" >&2
    exit 1
}

# outer makes a new root over the clean one, with its own processes and host name. The new root disappears at the end.
outer() {
    local built suite=$2 new old
    built=$(realpath "$1")
    new=$(realpath "${3:-$built/packages}")
    old=$(realpath "${4:-$new}")
    [ "$(id -u)" = 0 ] || fail "cannot make a root: run this as root"
    for what in "$built/debian-$suite" "$new" "$old"; do
        [ -e "$what" ] || fail "cannot walk: there is no $what: make walk and make test-release make it"
    done
    work=$(mktemp -d /tmp/walk.XXXX)
    trap 'rm -rf "$work"' EXIT
    cd "$(dirname "$0")/../.."
    go run ./site/pkg/driver "$built/sim" "$work/driver"
    sed -n '/^```sh$/,/^```$/p' docs/RELEASES.md | sed -n '2,3p' >"$work/verify" # the third is done by release_test.go
    unshare --mount --propagation private --uts --pid --fork --kill-child "$PWD/site/pkg/walk.sh" --inside "$built" "$work" "$suite" "$new" "$old"
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
    mkdir -p "$root/walk/new" "$root/walk/old"
    mount --bind -o ro "$4" "$root/walk/new"
    mount --bind -o ro "$5" "$root/walk/old"
    printf 'Acquire::http::Timeout "30";\nAcquire::Retries "2";\n' >"$root/etc/apt/apt.conf.d/bounded" # no network is an error, and no wait
    [ -z "${DEBIAN_EXPIRED:-}" ] || echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/expired"
    cp -a "$2/driver" "$root/opt/driver"
    chmod -R a+rX "$root/opt/driver"
    for device in nvidiactl nvidia-uvm; do # files that the simulated driver opens
        touch "$root/dev/$device"
        mount --bind "$root/opt/driver/node/dev/$device" "$root/dev/$device"
    done
    cp "$0" "$2/verify" "$root/walk/"
    local ways=(--walk) way
    [ "$4" = "$5" ] || ways+=(--life)
    for way in "${ways[@]}"; do
        chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive /walk/walk.sh "$way"
    done
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

# await WHAT COMMAND...: waits until the command succeeds, for three minutes at most.
await() {
    local end=$((SECONDS + 180))
    until "${@:2}" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "$1 does not come: $(tail -n 20 /var/log/slurmctld.log /var/log/slurmd.log)"
        sleep 0.2
    done
}
idle() { [ "$(sinfo -h -o %T)" = idle ]; }

quietly() { "$@" >/walk/log 2>&1 || { tail -n 20 /walk/log >&2; fail "cannot run $*"; }; }

# site prepares what a site already has: Slurm, a driver and a user.
site() {
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d # there is no systemd here
    chmod 755 /usr/sbin/policy-rc.d
    apt-get -q update -o APT::Update::Error-Mode=any >/walk/log 2>&1 ||
        fail "cannot fetch Debian's packages: this walk needs a network: $(tail -n 3 /walk/log)"
    quietly apt-get -q -y install --no-install-recommends slurm-wlm munge openssh-client
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
    touch /etc/slurm/gres.conf
    echo 'CgroupPlugin=cgroup/v1' >/etc/slurm/cgroup.conf
    mkdir -p /var/spool/slurmctld /var/spool/slurmd /run/munge
    chown munge: /run/munge
    su -s /bin/sh munge -c munged
}

# document prints the lines for Slurm's files from the installed document.
document() { awk '/^```conf$/ {on = 1; next} /^```$/ {on = 0} on' /usr/share/doc/slurm-mps/operator.md; }

arch=$(dpkg --print-architecture)
walk() {
    step "what a site has: Slurm, a driver, a user"
    site
    if [ -e /walk/new/SHA256SUMS.sig ]; then
        step "the commands of docs/RELEASES.md"
        (cd /walk/new && sh -ex /walk/verify)
    fi
    paths >/walk/before
    step "apt-get install ./slurm-mps_*.deb"
    quietly apt-get -q -y install /walk/old/slurm-mps_*_"$arch".deb
    release=$(slurmd -V | sed 's/.* \([0-9]*\.[0-9]*\)\..*/\1/')
    step "apt-get install ./slurm-mps-spank-$release*.deb"
    quietly apt-get -q -y install /walk/old/slurm-mps-spank-"$release"_*_"$arch".deb
    step "slurm.conf and gres.conf: the lines of docs/operator.md, without Contain, because this root has no control groups, of which doctor will warn; site.hcl: where this driver is"
    document | grep -v -e '^NodeName=' -e '^Name=' | sed 's/,Contain$//' >>/etc/slurm/slurm.conf # there is no control group
    document | sed -n 's/^NodeName=.* Gres=gpu:4 \(.*\) \.\.\.$/NodeName=gpu01 CPUs=16 RealMemory=1000 Gres=gpu:2 \1/p' >>/etc/slurm/slurm.conf
    document | sed -n 's/^\(Name=gpu .*\)\[0-3\]$/\1[0-1]/p' >/etc/slurm/gres.conf
    tail -n 6 /etc/slurm/slurm.conf /etc/slurm/gres.conf
    printf 'mps_control = "/opt/driver/bin/nvidia-cuda-mps-control"\nnvml_library = "/opt/driver/lib/libnvidia-ml.so.1"\n' >/etc/slurm-mps/site.hcl
    step "start slurmctld and slurmd"
    slurmctld
    slurmd
    await "an idle node" idle
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
    await "an idle node" idle
    mpsctl status
    sinfo -h -o 'the node is %T'
    grep -h '"step":"summary"' /var/log/slurm-mps/slurm-mps.log
    summary '"gpus":2'
    summary '"clients_seen":4'
    summary '"closed":true'
    done_with
}

# life is what a site does with a release after the first jobs. Nothing of it is in the end on the node.
life() {
    local debs=("slurm-mps_*_$arch.deb" "slurm-mps-spank-$(slurmd -V | sed 's/.* \([0-9]*\.[0-9]*\)\..*/\1/')_*_$arch.deb")
    starts
    step "apt-get install ./slurm-mps_*.deb of the newer release, while job $job runs"
    # shellcheck disable=SC2086 # patterns
    (cd /walk/new && quietly apt-get -q -y install $(printf './%s ' ${debs[*]}))
    goes_on /walk/new
    ends
    starts
    step "apt-get install --allow-downgrades with the older release, while job $job runs"
    # shellcheck disable=SC2086
    (cd /walk/old && quietly apt-get -q -y install --allow-downgrades $(printf './%s ' ${debs[*]}))
    goes_on /walk/old
    step "apt-get purge slurm-mps, while job $job runs: it is refused"
    if apt-get -q -y purge slurm-mps >/walk/log 2>&1; then fail "the package was removed under job $job"; fi
    grep "held for job $job: drain the node" /walk/log || fail "the refusal has no reason: $(cat /walk/log)"
    goes_on /walk/old
    ends
    step "uninstall, as docs/operator.md has it"
    sed -i -E '/^(Prolog|Epilog|TaskProlog)=/d; s/ Feature=mps//' /etc/slurm/slurm.conf
    for daemon in slurmd slurmctld; do
        pid=$(cat /run/$daemon.pid)
        kill "$pid"
        await "the end of $daemon" test ! -e "/proc/$pid"
        $daemon
    done
    await "an idle node" idle
    quietly apt-get -q -y purge slurm-mps 'slurm-mps-spank-*'
    paths >/walk/after
    diff /walk/before /walk/after || fail "the files above are left or lost"
    if dpkg-query -W 'slurm-mps*' 2>/dev/null; then fail "dpkg knows the packages above"; fi
    # The folders of /run/slurm-mps and two files stay until the next boot.
    if find /run/slurm-mps ! -type d ! -name lock ! -name takers | grep .; then fail "/run/slurm-mps keeps the files above"; fi
    for exe in /proc/[0-9]*/exe; do
        case $(readlink "$exe") in *slurm-mps/* | *nvidia-cuda-mps* | */cuda-client | */mpsctl) fail "$exe is left: $(readlink "$exe")" ;; esac
    done
    su hpc1 -c 'cd && srun --gres=gpu:1 true'
    done_with
}

# paths prints all files of the root, without those of apt, dpkg, Slurm and the user.
paths() {
    find / -xdev | grep -v -E '^/(walk|opt|tmp|home|var/(cache|spool|lib/(dpkg|apt|systemd)|log/(apt|dpkg\.log|alternatives\.log|slurm(ctld|d)\.log)))' | sort
}

# starts submits a job of two ranks, and returns when both compute.
starts() {
    step "sbatch --gres=gpu:1 --constraint=mps -n2 --wrap 'srun mpirun-wrap cuda-client spin'"
    job=$(su hpc1 -c "cd && LD_LIBRARY_PATH=/opt/driver/lib sbatch --parsable --gres=gpu:1 --constraint=mps -n2 -o %j.out --wrap 'srun mpirun-wrap /opt/driver/bin/cuda-client spin -ms 1 -for 3000'")
    await "the start of job $job" computes
    ranks=$(of_clients)
}
computes() { [ "$(grep -c ' ready' "/home/hpc1/$job.out")" = 2 ]; }
of_clients() { grep -lx cuda-client /proc/[0-9]*/comm; }

# goes_on FOLDER: ends the walk unless the programs are the folder's, and the job's ranks are the same and its clients.
goes_on() {
    mpirun-wrap --version | tee /walk/version
    grep -qF "slurm-mps $(dpkg-deb -f "$1"/slurm-mps_*_"$arch".deb Version | sed 's/-1$//')+" /walk/version || fail "the programs are not of $1"
    [ "$(of_clients)" = "$ranks" ] || fail "the ranks of job $job were $ranks, and are $(of_clients)"
    mpsctl status | tee /walk/status
    grep -q "job $job" /walk/status && [ "$(grep -c cuda-client /walk/status)" = 2 ] || fail "job $job has no two clients"
    modes Default Exclusive_Process
}

# ends cancels the job, and waits until the programs of now have closed it.
ends() {
    step "scancel $job"
    su hpc1 -c "scancel $job"
    await "an idle node" idle
    grep "\"job\":$job,.*\"step\":\"summary\"" /var/log/slurm-mps/slurm-mps.log | grep -F '"closed":true' || fail "job $job was not closed"
    [ -z "$(ls /run/slurm-mps/leases)" ] || fail "a lease is left: $(ls /run/slurm-mps/leases)"
    modes Default Default
}
# modes MODE...: ends the walk unless the GPUs have these compute modes.
modes() { [ "$(/opt/driver/bin/nvidia-smi --query-gpu=compute_mode --format=csv,noheader | sort | xargs)" = "$*" ] || fail "the GPUs are not in the modes $*"; }

case ${1:-} in
--inside) inside "${@:2}" ;;
--walk) walk ;;
--life) life ;;
'') fail "usage: walk.sh BUILT [SUITE [RELEASE OLDER]]" ;;
*) outer "$1" "${2:-bookworm}" "${@:3}" ;;
esac
