#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bundle.sh OUTPUT.tar.xz: packs the installed Slurm, munge, Open MPI, MPICH and PMIx into a relocatable tree,
# slurm-lab/. The tree is for a machine of the same architecture that has none of these programs. Its glibc must not
# be older than the glibc of this machine. The lab gets the unpacked tree as Options.Bundle. The same packages give
# the same bytes.
#
# bundle.sh FOLDER SUITE: makes such a tree of Slurm, munge and PMIx from another release of Debian ("trixie"). So a
# lab has a second Slurm beside the installed one. The tree also has that release's glibc, and each program contains
# the path of its loader. So the tree works only in this FOLDER. The MPIs are the machine's own. The headers for the
# SPANK plugin are in FOLDER/include/slurm.
set -euo pipefail
export LC_ALL=C
umask 022

fail() {
    echo "bundle.sh: $*" >&2
    exit 1
}

case $# in
1 | 2) ;;
*) fail "usage: bundle.sh OUTPUT.tar.xz, or bundle.sh FOLDER SUITE" ;;
esac
output=$(realpath -m "$1")
suite=${2:-}
[[ $suite =~ ^[a-z]*$ ]] || fail "cannot make a bundle: $suite is no release of Debian; use trixie, for example"
for tool in patchelf strip xz ldd tar; do
    command -v "$tool" >/dev/null || fail "cannot make a bundle: there is no $tool; site/lab/install.sh installs what is needed"
done
libs=/usr/lib/$(gcc -print-multiarch)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/slurm-lab
from='' # the folder of the unpacked packages; empty for the machine's own

installed() {
    for program in /usr/sbin/{munged,slurmctld,slurmd} /usr/bin/{mpirun.openmpi,mpiexec.hydra}; do
        [ -x "$program" ] || fail "cannot make a bundle: there is no $program; site/lab/install.sh installs what is needed"
    done
    [ -d "$libs/openmpi/lib/openmpi3" ] ||
        fail "cannot make a bundle: $libs/openmpi/lib/openmpi3 is not there; it wants Open MPI 4, as Debian 12 and Ubuntu 24.04 have it"
}

# Slurm's plugins that need only Slurm, munge and PMIx. The others need databases, Lua and hardware libraries.
plugins='accounting_storage_none acct_gather_.*_none auth_munge auth_none burst_buffer_none cgroup_ cli_filter_none
core_spec_none cred_ data_parser_ ext_sensors_none gpu_generic gpu_nvidia gres_ hash_ job_container_ job_submit_(all|defaults|logging|require)
jobacct_gather_ jobcomp_(none|filetxt|script) launch_ mcs_none mpi_(none|pmi2|pmix) namespace_ node_features_helpers power_none
preempt_ prep_ priority_ proctrack_ route_ sched_ select_cons_ select_linear serializer_(json|url|yaml) site_factor_ spank_
switch_none task_ tls_none topology_(none|default|tree|flat) compress_ conn_ http_parser_ url_parser_ metrics_ certgen_ certmgr_'

# Open MPI's components that need InfiniBand, libfabric, UCX or a debugger, and the components for OpenSHMEM.
drop_components='mca_(mtl_.*|btl_(ofi|openib|usnic|uct)|pml_(ucx|cm|monitoring)|osc_(ucx|monitoring)|coll_(monitoring|ucc)|common_(ofi|ucx|monitoring)|(atomic|memheap|scoll|spml|sshmem)_.*)'

# Libraries that every machine has and that the tree must take from the machine: those of glibc and of the compiler.
host_libs='(libc|libm|libdl|libpthread|librt|libresolv|libutil|libnsl|libanl|libnss_.*|ld-linux.*|libBrokenLocale|libthread_db|libmvec|libstdc\+\+|libgcc_s|libz)\.so'

copy() { # files… folder
    mkdir -p "${*: -1}"
    cp --dereference --no-preserve=mode,ownership,timestamps "$@"
}

# daemon NAME: prints the path of a daemon. A package's maintainer script gives slurmd-wlm its plain name, but that
# script does not run for an unpacked package.
daemon() {
    if [ -e "$from/usr/sbin/$1" ]; then echo "$from/usr/sbin/$1"; else echo "$from/usr/sbin/$1-wlm"; fi
}

slurm() {
    local dir pattern name
    dir=$(dirname "$(find "$from$libs" -name auth_munge.so -print -quit)")
    copy "$from/usr/sbin/munged" "$tree/sbin"
    for name in slurmd slurmctld slurmstepd; do
        cp --dereference --no-preserve=mode,ownership,timestamps "$(daemon $name)" "$tree/sbin/$name"
    done
    copy "$from"/usr/bin/{srun,sbatch,salloc,squeue,sinfo,scontrol,scancel,sattach,sbcast,munge,unmunge} "$tree/bin"
    [ ! -e "$from/usr/bin/swait" ] || copy "$from/usr/bin/swait" "$tree/bin" # since 26.05
    copy "$dir"/libslurm*.so "$tree/lib"
    pattern="^($(echo $plugins | tr ' ' '|')).*\.so$"
    for plugin in "$dir"/*.so; do
        if [[ $(basename "$plugin") =~ $pattern ]]; then copy "$plugin" "$tree/plugins"; fi
    done
}

openmpi() {
    local dir=$tree/ompi/lib/${libs#/usr/lib/}/openmpi/lib components file
    copy /usr/bin/{mpirun.openmpi,orted,ompi_info} "$tree/ompi/bin"
    ln -s mpirun.openmpi "$tree/ompi/bin/mpirun"
    mkdir -p "$dir" "$tree/ompi/share"
    cp --recursive --preserve=links /usr/share/openmpi "$tree/ompi/share/"
    cp --recursive --preserve=links "$libs"/openmpi/lib/openmpi3 "$dir/"
    components=$dir/openmpi3
    find "$components" -name '*.la' -delete -o -name '*.a' -delete -o -name 'libompi_dbg*' -delete
    for file in "$components"/*.so; do
        [[ $(basename "$file") =~ ^$drop_components\.so$ ]] && rm "$file"
    done
    copy "$libs"/{libmpi.so.40,libopen-rte.so.40,libopen-pal.so.40} "$tree/mpilib"
    for file in libmpi libopen-rte libopen-pal; do ln -s "$file.so.40" "$tree/mpilib/$file.so"; done
    copy "$libs"/openmpi/include/mpi*.h "$tree/include/openmpi"
    cp --recursive "$libs/openmpi/include/openmpi" "$tree/include/openmpi/"
}

mpich() {
    copy /usr/bin/{mpiexec.hydra,hydra_pmi_proxy} "$tree/mpich/bin"
    ln -s mpiexec.hydra "$tree/mpich/bin/mpiexec"
    copy "$libs/libmpich.so.12" "$tree/mpilib"
    ln -s libmpich.so.12 "$tree/mpilib/libmpi.so.12"
    copy /usr/include/"${libs#/usr/lib/}"/mpich/mpi*.h "$tree/include/mpich"
}

pmix() {
    mkdir -p "$tree/pmix2"
    cp --recursive --preserve=links "$from$libs"/pmix2/{lib,share} "$tree/pmix2/"
    find "$tree/pmix2" \( -name '*.a' -o -name '*.la' \) -delete
}

# Slurm's mpi/pmix opens libpmix by the absolute path of the folder that it was built with. This function replaces the
# path by one with $ORIGIN, because the loader replaces $ORIGIN by the plugin's own folder. Both must have the same
# length, so slashes are added at the end.
relocate_pmix_plugin() {
    local file old=$libs/pmix2/lib new='$ORIGIN/../pmix2/lib'
    while [ ${#new} -lt ${#old} ]; do new=$new/; done
    [ ${#new} = ${#old} ] || fail "cannot relocate Slurm's mpi/pmix: $new is longer than $old"
    for file in "$tree"/plugins/mpi_pmix*.so; do
        [ -e "$file" ] || continue # Debian's 26.05 has none
        grep -q -a -F "$old" "$file" || fail "cannot relocate Slurm's mpi/pmix: $(basename "$file") does not name $old"
        sed -i "s|$old|$new|g" "$file"
    done
}

# Unpacks Slurm and its dependencies from another release, below $from.
unpack() {
    from=$work/from
    "$(dirname "$0")/unpack.sh" "$from" "$suite" slurm-wlm munge libslurm-dev libpmix-dev || exit
}

headers() {
    copy "$from"/usr/include/slurm/*.h "$tree/include/slurm"
}

# The loader and the C library of the release. They find each other by their paths. libgcc_s is opened when a thread
# is cancelled.
glibc() {
    local lib
    interpreter=$(basename "$(patchelf --print-interpreter "$from/usr/sbin/munged")")
    for lib in "$interpreter" libc.so.6 libm.so.6 libresolv.so.2 libgcc_s.so.1; do
        copy "$from$libs/$lib" "$tree/lib"
    done
}

elf_files() {
    find "$tree" -type f | sort | while read -r file; do
        if [ "$(head -c4 "$file" | tail -c3)" = ELF ]; then echo "$file"; fi
    done
}

# needs FILE: prints the libraries that a file needs. For this machine it uses ldd. For another release it uses that
# release's loader.
needs() {
    if [ -z "$from" ]; then
        ldd "$1"
    else
        "$from$libs/$interpreter" --inhibit-cache --library-path "$from$libs:$from$libs/slurm-wlm" --list "$1"
    fi 2>/dev/null || true
}

# Copies the libraries that the tree needs, with their own dependencies. The loader lists all of them at once.
close_over() {
    elf_files | while read -r file; do needs "$file"; done |
        awk '$1 !~ /^\// && $2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u | while read -r name path; do
        [[ -z $from && $name =~ ^$host_libs ]] && continue
        [ -n "$(find "$tree" -name "$name" -print -quit)" ] && continue
        [[ $path == "$from"/* ]] || fail "cannot make a bundle: $suite lacks $name, and this machine's own was found"
        cp --dereference "$path" "$tree/lib/$name"
    done
}

# Changes every program and library so that it finds the tree's libraries relative to its own folder.
relocate() {
    local dir rpath sub
    elf_files | while read -r file; do
        case $(basename "$file") in ld-linux* | libc.so.6) continue ;; esac # these files do not run if they are patched
        dir=$(dirname "$file")
        rpath=''
        for sub in lib pmix2/lib mpilib; do
            rpath=$rpath${rpath:+:}\$ORIGIN/$(realpath --relative-to="$dir" "$tree/$sub")
        done
        strip --strip-unneeded "$file"
        patchelf --force-rpath --set-rpath "$rpath" "$file"
    done
}

# Changes every program so that it starts with the tree's own loader, in the final folder.
own_loader() {
    local file
    for file in "$tree"/{bin,sbin}/*; do
        patchelf --set-interpreter "$output/lib/$interpreter" "$file"
    done
}

modes() {
    find "$tree" -type d -exec chmod 755 {} +
    find "$tree" -type f -exec chmod 644 {} +
    find "$tree" -type f \( -path '*/bin/*' -o -path '*/sbin/*' -o -name 'ld-linux*' \) -exec chmod 755 {} +
}

pack() {
    tar --create --directory="$work" --sort=name --format=gnu --mtime=@0 --owner=0 --group=0 --numeric-owner slurm-lab |
        xz -9 --threads=1 >"$output.part"
    mv "$output.part" "$output"
}

# The folder is complete or absent, and no file of a former one stays.
place() {
    rm -rf "$output" "$output.part"
    mkdir -p "$(dirname "$output")"
    cp --recursive "$tree" "$output.part"
    mv "$output.part" "$output"
}

of_this_machine() {
    installed
    slurm
    openmpi
    mpich
    pmix
    relocate_pmix_plugin
    close_over
    relocate
    modes
    pack
}

of_a_release() {
    unpack
    slurm
    pmix
    headers
    glibc
    relocate_pmix_plugin
    close_over
    relocate
    own_loader
    modes
    place
}

mkdir -p "$tree"
if [ -z "$suite" ]; then of_this_machine; else of_a_release; fi
