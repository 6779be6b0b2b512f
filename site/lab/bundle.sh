#!/bin/bash
# bundle.sh OUTPUT.tar.xz: packs the installed Slurm, munge, Open MPI, MPICH and PMIx into a relocatable tree, slurm-lab/,
# for a machine of the same architecture that has none of them and whose glibc is not older than this one's. The lab
# takes the unpacked tree as Options.Bundle. The same packages give the same bytes.
set -euo pipefail
export LC_ALL=C
umask 022

fail() {
    echo "bundle.sh: $*" >&2
    exit 1
}

[ $# = 1 ] || fail "usage: bundle.sh OUTPUT.tar.xz"
output=$(realpath -m "$1")
for tool in patchelf strip xz ldd tar; do
    command -v "$tool" >/dev/null || fail "cannot make a bundle: there is no $tool; site/lab/install.sh installs what is needed"
done
for program in /usr/sbin/{munged,slurmctld,slurmd} /usr/bin/{mpirun.openmpi,mpiexec.hydra}; do
    [ -x "$program" ] || fail "cannot make a bundle: there is no $program; site/lab/install.sh installs what is needed"
done

libs=/usr/lib/$(gcc -print-multiarch)
[ -d "$libs/openmpi/lib/openmpi3" ] ||
    fail "cannot make a bundle: $libs/openmpi/lib/openmpi3 is not there; it wants Open MPI 4, as Debian 12 and Ubuntu 24.04 have it"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/slurm-lab

# Slurm's plugins that need nothing but Slurm, munge and PMIx. The others drag in databases, Lua and hardware libraries.
plugins='accounting_storage_none acct_gather_.*_none auth_munge auth_none burst_buffer_none cgroup_ cli_filter_none
core_spec_none cred_ data_parser_ ext_sensors_none gpu_generic gpu_nvidia gres_ hash_ job_container_ job_submit_(all|defaults|logging|require)
jobacct_gather_ jobcomp_(none|filetxt|script) launch_ mcs_none mpi_(none|pmi2|pmix) namespace_ node_features_helpers power_none
preempt_ prep_ priority_ proctrack_ route_ sched_ select_cons_ select_linear serializer_(json|url) site_factor_ spank_
switch_none task_ tls_none topology_(none|default|tree|flat)'

# Open MPI's components that need InfiniBand, libfabric, UCX or a debugger, and OpenSHMEM's.
drop_components='mca_(mtl_.*|btl_(ofi|openib|usnic|uct)|pml_(ucx|cm|monitoring)|osc_(ucx|monitoring)|coll_(monitoring|ucc)|common_(ofi|ucx|monitoring)|(atomic|memheap|scoll|spml|sshmem)_.*)'

# Libraries that every machine has and that must be the machine's own: glibc's, and the compiler's.
host_libs='(libc|libm|libdl|libpthread|librt|libresolv|libutil|libnsl|libanl|libnss_.*|ld-linux.*|libBrokenLocale|libthread_db|libmvec|libstdc\+\+|libgcc_s|libz)\.so'

copy() { # files… folder
    mkdir -p "${*: -1}"
    cp --dereference --no-preserve=mode,ownership,timestamps "$@"
}

slurm() {
    local dir pattern
    dir=$(dirname "$(dpkg-query --listfiles slurm-wlm-basic-plugins | grep '/auth_munge\.so$')")
    copy /usr/sbin/{slurmd,slurmctld,slurmstepd,munged} "$tree/sbin"
    copy /usr/bin/{srun,sbatch,salloc,squeue,sinfo,scontrol,scancel,sattach,sbcast,munge,unmunge} "$tree/bin"
    copy "$dir"/libslurm*.so "$tree/lib"
    pattern="^($(echo $plugins | tr ' ' '|')).*\.so$"
    for plugin in "$dir"/*.so; do
        [[ $(basename "$plugin") =~ $pattern ]] && copy "$plugin" "$tree/plugins"
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
    cp --recursive --preserve=links "$libs"/pmix2/{lib,share} "$tree/pmix2/"
    find "$tree/pmix2" \( -name '*.a' -o -name '*.la' \) -delete
}

# Slurm's mpi/pmix opens libpmix by the absolute folder that it was built with. The loader puts the plugin's own folder
# for $ORIGIN there, so the name is replaced by one of the same length; more slashes change nothing.
relocate_pmix_plugin() {
    local file old=$libs/pmix2/lib new='$ORIGIN/../pmix2/lib'
    while [ ${#new} -lt ${#old} ]; do new=$new/; done
    [ ${#new} = ${#old} ] || fail "cannot relocate Slurm's mpi/pmix: $new is longer than $old"
    for file in "$tree"/plugins/mpi_pmix*.so; do
        grep -q -a -F "$old" "$file" || fail "cannot relocate Slurm's mpi/pmix: $(basename "$file") does not name $old"
        sed -i "s|$old|$new|g" "$file"
    done
}

elf_files() {
    find "$tree" -type f | sort | while read -r file; do
        if [ "$(head -c4 "$file" | tail -c3)" = ELF ]; then echo "$file"; fi
    done
}

# Copies the libraries that the tree needs, and those that they need, and so on. ldd lists them all at once, but as this
# machine finds them.
close_over() {
    elf_files | while read -r file; do ldd "$file" 2>/dev/null || true; done |
        awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u | while read -r name path; do
        [[ $name =~ ^$host_libs ]] && continue
        [ -n "$(find "$tree" -name "$name" -print -quit)" ] || cp --dereference "$path" "$tree/lib/$name"
    done
}

# Makes every program and library find the tree's libraries from its own place.
relocate() {
    local dir rpath sub
    elf_files | while read -r file; do
        dir=$(dirname "$file")
        rpath=''
        for sub in lib pmix2/lib mpilib; do
            rpath=$rpath${rpath:+:}\$ORIGIN/$(realpath --relative-to="$dir" "$tree/$sub")
        done
        strip --strip-unneeded "$file"
        patchelf --force-rpath --set-rpath "$rpath" "$file"
    done
}

pack() {
    find "$tree" -type d -exec chmod 755 {} +
    find "$tree" -type f -exec chmod 644 {} +
    chmod 755 "$tree"/{bin,sbin,ompi/bin,mpich/bin}/*
    tar --create --directory="$work" --sort=name --format=gnu --mtime=@0 --owner=0 --group=0 --numeric-owner slurm-lab |
        xz -9 --threads=1 >"$output.part"
    mv "$output.part" "$output"
}

mkdir -p "$tree"
slurm
openmpi
mpich
pmix
relocate_pmix_plugin
close_over
relocate
pack
