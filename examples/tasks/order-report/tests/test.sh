#!/bin/sh
# Looks at the file system only: how the result came about does not matter.
tests=/tests
logs=/logs/verifier
mkdir -p "$logs"
reward=0
if cd /app && cmp -s report.txt "$tests/expected"; then
    reward=1
fi
echo "$reward" > "$logs/reward.txt"
