#!/bin/sh
# record.sh FOLDER KIND: a hook that writes its environment to FOLDER/KIND.JOB.NODE, whole or not at all.
file=$1/$2.$SLURM_JOB_ID.$SLURMD_NODENAME
/usr/bin/env >"$file.$$" && /bin/mv "$file.$$" "$file"
