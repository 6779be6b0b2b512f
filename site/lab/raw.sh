#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# raw.sh ARCHIVE FOLDER...: packs the raw files of a measurement into ARCHIVE, a .tar.gz below docs/measurements. The
# same files give the same bytes. To add a folder to an archive, unpack the archive first and name all folders. Then
# describe the files in the README.md beside the archive.
set -eu
archive=$1
shift
if [ $# -eq 0 ]; then
    echo "usage: raw.sh ARCHIVE FOLDER..." >&2
    exit 2
fi
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -cf - "$@" | gzip -9n >"$archive"
