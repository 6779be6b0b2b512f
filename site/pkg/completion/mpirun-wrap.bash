# SPDX-License-Identifier: Apache-2.0
# bash completion of mpirun-wrap. It completes the flags and their values, and then the program with the program's own
# completion.
_mpirun_wrap() {
    local cur=$2 flag='' program='' i
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ $flag ]]; then # bash splits --gpu=block into three words
            [[ ${COMP_WORDS[i]} == = ]] || flag=
            continue
        fi
        case ${COMP_WORDS[i]} in
            --) program=next; ((i++)); break ;;
            --gpu | --share | --mem | --ids | --local-rank | --local-size | --slots-wait | --root) flag=${COMP_WORDS[i]} ;;
            =) flag=switch ;;
            -*) ;;
            *) program=here; break ;;
        esac
    done
    [[ $cur == = ]] && cur=
    case $flag in
        --gpu) mapfile -t COMPREPLY < <(compgen -W 'auto block cyclic all inherit' -- "$cur") ;;
        --share) mapfile -t COMPREPLY < <(compgen -W 'none even overlap:' -- "$cur") ;;
        --mem) mapfile -t COMPREPLY < <(compgen -W 'none even' -- "$cur") ;;
        --ids) mapfile -t COMPREPLY < <(compgen -W 'uuid index' -- "$cur") ;;
        --root) mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
        ?*) ;;
        *)
            if [[ ! $program && $cur == -* ]]; then
                mapfile -t COMPREPLY < <(compgen -W "$(mpirun-wrap --help | sed -n 's/^  \(--[a-z-]*\).*/\1/p') --help" -- "$cur")
            elif declare -F _command_offset >/dev/null; then
                _command_offset "$i"
            else
                mapfile -t COMPREPLY < <(compgen -c -f -- "$cur")
            fi ;;
    esac
}
complete -F _mpirun_wrap mpirun-wrap
