#!/bin/sh
# Copies the notes. Settings are in conf/backup.conf; what happens is written to the log named there.
cd /app || exit 1
. ./conf/backup.conf
say() { echo "backup: $*" >> "$LOG"; }
[ -d "$SOURCE" ] || { say "SOURCE=$SOURCE is not a folder; the notes were moved, see conf/history.txt"; exit 1; }
[ -d "$TARGET" ] || { say "TARGET=$TARGET does not exist; make it or name another"; exit 1; }
set -- "$SOURCE"/*"$SUFFIX"
[ -e "$1" ] || { say "no file in $SOURCE ends with SUFFIX=$SUFFIX"; exit 1; }
cp "$@" "$TARGET"/ && say "copied $# files"
