#compdef mpirun-wrap
# SPDX-License-Identifier: Apache-2.0
# zsh completion of mpirun-wrap: the flags and their values, and then the program with the program's own completion.
_arguments -S -A '-*' \
    '--gpu=[the GPU]:choice:(auto block cyclic all inherit)' \
    '--share=[the share]:share:(none even overlap\:)' \
    '--mem=[device memory that the rank can have]:size:(none even)' \
    '--ids=[what CUDA_VISIBLE_DEVICES has]:kind:(uuid index)' \
    '--local-rank=[place on the node]:number:' \
    '--local-size=[number of ranks on the node]:number:' \
    '--slots=-[take a free slot]::number:' \
    '--slots-wait=[wait so long for a free slot]:time:' \
    '--own[start an MPS daemon for these ranks]' \
    '--report[print GPU and share]' \
    '(-v --verbose)'{-v,--verbose}'[--report, with the reasons]' \
    '--dry-run[print and run nothing]' \
    '--json[print JSON]' \
    '--root=[folder of the ticket]:folder:_files -/' \
    '--version[print the version]' \
    '--help[print the usage]' \
    '(-):program: _command_names -e' \
    '*:: : _normal'
