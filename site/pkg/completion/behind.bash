# SPDX-License-Identifier: Apache-2.0
# bash completion of mpirun-wrap and mps-tune behind a launcher: srun mpirun-wrap --<TAB>. Slurm has a completion of
# srun, and bash knows one for each command. So no package loads this file. If you want it, write this line into
# ~/.bashrc, or into a file of /etc/profile.d, behind the lines that load bash-completion:
#
#   source /usr/share/doc/slurm-mps/examples/completion-behind-srun.bash
#
# All other words are completed by the launcher's own completion, which is loaded with the first of them.
declare -A _slurm_mps_launcher

_slurm_mps_behind() {
    local i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]##*/} in
            mpirun-wrap | mps-tune)
                _command_offset "$i"
                return ;;
        esac
    done
    [[ ${_slurm_mps_launcher[$1]+loaded} ]] || _slurm_mps_load "$1"
    if [[ ${_slurm_mps_launcher[$1]} ]]; then
        "${_slurm_mps_launcher[$1]}" "$@"
    else
        compopt -o bashdefault -o default
    fi
}

# _slurm_mps_load NAME: finds the launcher's own function, and completes the launcher by _slurm_mps_behind again. The
# options of the launcher's own completion stay.
_slurm_mps_load() {
    local name=${1##*/} spec=''
    complete -r "$name"
    _completion_loader "$name"
    spec=$(complete -p "$name" 2>/dev/null)
    _slurm_mps_launcher[$1]=''
    if [[ $spec =~ ' -F '([^ ]+)' ' && ${BASH_REMATCH[1]} != _minimal ]]; then
        _slurm_mps_launcher[$1]=${BASH_REMATCH[1]}
        eval "${spec/ -F ${BASH_REMATCH[1]} / -F _slurm_mps_behind }"
    else
        complete -F _slurm_mps_behind "$name"
    fi
}

if declare -F _command_offset _completion_loader >/dev/null; then
    complete -F _slurm_mps_behind srun mpirun mpiexec
fi
