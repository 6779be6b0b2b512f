#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh SOURCE MPI OUTPUT: builds LAMMPS with its GPU package for this machine's GPU, with nvcc. SOURCE is the
# unpacked source of LAMMPS (Debian: apt-get source lammps); MPI is a folder with the headers and the library of Open
# MPI (include, lib). OUTPUT gets lmp and the inputs of LAMMPS' own benchmarks.
set -euo pipefail
source=$(realpath "$1") mpi=$(realpath "$2")
mkdir -p "$3" && output=$(realpath "$3")
export CUDA_HOME=/usr/local/cuda PATH=$output/tools:/usr/local/cuda/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$output/tools" "$work/lammps"
cp -r "$source/src" "$source/lib" "$work/lammps/"
cat >"$output/tools/mpicxx" <<END
#!/bin/sh
exec g++ -I"$mpi/include" "\$@" -L"$mpi/lib" -Wl,--allow-shlib-undefined -lmpi
END
chmod +x "$output/tools/mpicxx"
# LAMMPS refuses a GPU that is not in the mode default, unless it knows of MPS.
make -C "$work/lammps/lib/gpu" -f Makefile.linux -j"$(nproc)" CUDA_ARCH=-arch=native \
    CUDA_OPTS="-DUNIX -O3 --use_fast_math -DLAMMPS_SMALLBIG -Xcompiler -fPIC -DCUDA_MPS_SUPPORT" \
    CUDR_OPTS="-O2 -DLAMMPS_SMALLBIG -DCUDA_MPS_SUPPORT" >"$work/gpu.log" 2>&1 || { tail -20 "$work/gpu.log"; exit 1; }
cd "$work/lammps/src"
for package in molecule manybody kspace rigid gpu; do
    make "yes-$package" >>"$work/yes.log" 2>&1
done
make -j"$(nproc)" mpi CC=mpicxx LINK=mpicxx >"$work/lmp.log" 2>&1 || { tail -20 "$work/lmp.log"; exit 1; }
cp lmp_mpi "$output/lmp"
cp "$source"/bench/{in.lj,in.eam,in.rhodo,data.rhodo,Cu_u3.eam} "$output/"
rm -rf "$output/tools"
