#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install.sh [PACKAGE...]: installs these Debian packages, or those that a lab needs, if some are missing. It works on
# Debian 12 and 13 and on Ubuntu 24.04, as root. If no package is missing, it prints nothing and changes nothing. It starts no service,
# because a lab starts its own daemons and this machine must not become a Slurm node.
set -eu

packages='slurm-wlm munge openmpi-bin libopenmpi-dev mpich libmpich-dev libpmix-dev libslurm-dev gcc libc6-dev make xz-utils patchelf parallel'
[ $# = 0 ] || packages=$*
policy=/usr/sbin/policy-rc.d # every package's maintainer script asks this program before it starts a service
kept=$policy.kept-by-slurm-mps-lab
log=''

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

# Prints the arguments that are not installed.
missing() {
    for package; do
        status=$(dpkg-query --show --showformat='${db:Status-Abbrev}' "$package" 2>/dev/null || true)
        case $status in
        ii*) ;;
        *) printf ' %s' "$package" ;;
        esac
    done
}

# A former run that was killed may have left our policy. The file in $kept is the machine's own policy.
deny_services() {
    if [ ! -e "$kept" ] && [ -e "$policy" ]; then
        mv "$policy" "$kept"
    fi
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
}

restore() {
    rm -f "$policy"
    if [ -e "$kept" ]; then
        mv "$kept" "$policy"
    fi
    rm -f "$log"
}

# Runs apt-get without questions. It prints the output only after a failure.
apt() {
    if ! DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -q -y "$@" >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        fail "cannot install$absent: 'apt-get $1' failed, its last lines are above"
    fi
}

command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
    fail "cannot install $packages: there is no apt-get here; use Debian 12, Debian 13 or Ubuntu 24.04, or a bundle made by bundle.sh"
# shellcheck disable=SC2086 # the list is split on purpose
absent=$(missing $packages)
[ -n "$absent" ] || exit 0
[ "$(id -u)" = 0 ] || fail "cannot install$absent: run this as root"

echo "install.sh: installing with apt-get:$absent"
log=$(mktemp)
trap restore EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
deny_services
apt update
# shellcheck disable=SC2086
apt install --no-install-recommends $absent
# shellcheck disable=SC2086
absent=$(missing $packages)
[ -z "$absent" ] || fail "cannot install$absent: apt-get reported success, but dpkg does not list them"
