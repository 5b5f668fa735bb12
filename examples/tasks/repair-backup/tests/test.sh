#!/bin/sh
# The copies must be right, the script untouched, and the configuration such that the script works again.
tests=/tests
logs=/logs/verifier
mkdir -p "$logs"

copied() {
    [ "$(ls backup | wc -l)" -eq 3 ] || return 1
    for name in apples bridge candle; do
        cmp -s "backup/$name.note" "$tests/$name.note" || return 1
    done
}

runs_again() {
    cmp -s backup.sh "$tests/backup.sh.expected" && rm -f backup/* && sh backup.sh && copied
}

reward=0
if cd /app && copied && runs_again; then
    reward=1
fi
echo "$reward" > "$logs/reward.txt"
